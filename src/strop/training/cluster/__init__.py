"""Runs on a Ray cluster: engines in separate processes, on one machine or on many."""
