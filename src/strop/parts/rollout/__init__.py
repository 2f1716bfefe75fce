"""Rollouts: strategies, engines that generate tokens, and the driver between the two."""
