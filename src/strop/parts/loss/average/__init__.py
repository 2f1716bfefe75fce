"""Writes `share_T`: how token losses become one number."""
