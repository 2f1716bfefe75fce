"""Runs code that nobody has read."""
