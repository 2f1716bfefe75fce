"""Writes draws: which prompts are rolled out, and how often each."""
