"""Writes `log_ratio_T`: whose probabilities are compared, and over which unit."""
