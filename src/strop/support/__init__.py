"""What knows nothing of reinforcement learning: errors, files, processes, HTTP."""
