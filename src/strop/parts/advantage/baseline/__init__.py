"""What is subtracted from a rollout's advantage."""
