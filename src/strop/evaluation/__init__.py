"""Scores of a checkpoint from its rollouts, with intervals; plain numpy, never used in training."""
