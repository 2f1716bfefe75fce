"""What a rollout's advantage is divided by."""
