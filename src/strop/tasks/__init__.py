"""Prompts, references and verifiers: what is trained on and how it is scored."""
