"""`strop doctor`: what it looks at, a file each; `command.py` is the command."""
