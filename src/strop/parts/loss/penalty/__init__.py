"""Writes `objective_T` of terms beside the advantage: divergences and entropy."""
