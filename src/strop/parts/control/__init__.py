"""Moves knobs for the next step from this step's metrics."""
