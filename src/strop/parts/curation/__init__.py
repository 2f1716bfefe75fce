"""Decides which rows make up the groups, before the advantage is known."""
