"""Fakes for slow or large things, with the same behaviour."""
