"""Environments of other packages, a family a file: `gym.py` holds `Gym`, played as `gym:NAME`."""
