"""Writes the loss: token weights from the columns of the current policy, and their gradients."""
