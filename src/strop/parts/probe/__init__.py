"""Writes columns on demand, just before their first reader."""
