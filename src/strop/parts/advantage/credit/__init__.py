"""How a rollout's advantage reaches its turns and tokens."""
