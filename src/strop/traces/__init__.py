"""Calls of a model that others recorded, or that an agent made: one record a call."""
