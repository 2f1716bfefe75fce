"""The language-model head: per-token columns from hidden states, and gradients back."""
