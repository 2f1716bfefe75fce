"""Writes `reward_B` and its components from whole groups of rollouts."""
