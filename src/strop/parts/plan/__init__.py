"""Yields the updates of a step: which tokens form one optimiser step, and how often."""
