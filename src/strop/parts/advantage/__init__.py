"""Writes `advantage_T`: a chain of baseline, scale, credit and weight parts."""
