"""A page to look into a step of a run, token by token."""
