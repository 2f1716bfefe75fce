"""Writes `correction_T`: detached factors for the engine's distance from the trainer."""
