"""Reward functions, and the processes that score rollouts."""
