"""Built-in environments, one a file; `corridor.py` holds `Corridor` and is `data.task=corridor`."""
