"""Builds a page that shows a step of a run token by token."""
