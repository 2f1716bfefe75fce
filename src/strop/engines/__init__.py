"""Engines: token ids go in, sampled token ids with their log-probabilities come out."""
