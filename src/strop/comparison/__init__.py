"""Compares methods on the same prompts and seeds: a run for each, and paired differences."""
