"""Writes `gradient_T` and `denominator_T`: which tokens learn and which count in averages."""
