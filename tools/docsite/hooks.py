"""What the generator is told beside its settings."""
