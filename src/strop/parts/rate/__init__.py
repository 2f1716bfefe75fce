"""Writes lr_scale: how large the steps of an update are, from its rollouts."""
