"""strop: reinforcement-learning post-training for language models, every idea a part."""

__version__ = "0.1.0"
