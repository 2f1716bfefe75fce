"""Rows of data: files, data sets, prompts as tokens."""
