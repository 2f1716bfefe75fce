"""Writes `objective_T` of terms that train a critic."""
