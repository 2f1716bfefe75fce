"""The local engine: continuous batching of a Hugging Face causal model in this process."""
