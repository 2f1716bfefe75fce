"""The Python calls: runs, evaluations and comparisons in a few lines."""
