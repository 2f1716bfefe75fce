"""How many tokens a run has room for."""

from dataclasses import dataclass


@dataclass
class Limits:
    """Most tokens of an answer or of an episode's actions together, of a prompt, of a sequence.

    prompt_tokens: None: what the context leaves. reserved: tokens kept free behind every prompt; 0:
    answer_tokens.
    """

    answer_tokens: int
    context_tokens: int
    prompt_tokens: int | None = None
    reserved: int = 0

    @property
    def kept_free(self) -> int:
        """Tokens of the context that no prompt may take."""
        return self.reserved or self.answer_tokens
