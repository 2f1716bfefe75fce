"""Helpers that are independent of reinforcement learning: errors, files, processes, HTTP."""
