"""Rules that narrow the sampling distribution; each maps scaled logits [N, V] to logits [N, V].

A removed token gets -inf. Rules of a request are applied in their order, each to the result of the
one before. A user's own rule is any hashable, picklable callable of the same shape; a `SharedRule`
is known to vLLM's workers too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.engines.vllm.inside import strop_rules
from strop.support.errors import UserError


class SharedRule:
    """A rule that calls a function of `strop_rules` with the rule's fields as its arguments."""

    function: ClassVar[str]

    def __call__(self, logits: Tensor) -> Tensor:
        found: Tensor = getattr(strop_rules, self.function)(logits, **vars(self))
        return found


@dataclass(frozen=True)
class TopP(SharedRule):
    """Keep the smallest set of most likely tokens with total probability >= p.

    Equal probabilities enter by rising token id; the most likely token always stays.
    """

    function: ClassVar[str] = "top_p"
    p: float  # in (0, 1]

    def __post_init__(self) -> None:
        _check_probability("TopP", self.p)


@dataclass(frozen=True)
class TopK(SharedRule):
    """Keep the k most likely tokens, and those exactly as likely as the k-th."""

    function: ClassVar[str] = "top_k"
    k: int  # >= 1; k above the vocabulary keeps all

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"TopK.k is {self.k}; it must be at least 1")


@dataclass(frozen=True)
class MinP(SharedRule):
    """Keep tokens with at least p times the probability of the most likely one."""

    function: ClassVar[str] = "min_p"
    p: float  # in (0, 1]

    def __post_init__(self) -> None:
        _check_probability("MinP", self.p)


@dataclass(frozen=True)
class BanTokens(SharedRule):
    """Never draw these tokens."""

    function: ClassVar[str] = "ban_tokens"
    ids: tuple[int, ...]  # each in [0, V)

    def __post_init__(self) -> None:
        if any(id < 0 for id in self.ids):
            raise UserError(f"BanTokens.ids has {min(self.ids)}; token ids are 0 or more")

    def __call__(self, logits: Tensor) -> Tensor:
        if max(self.ids, default=0) >= logits.shape[-1]:
            raise UserError(
                f"BanTokens.ids has {max(self.ids)}; the vocabulary has {logits.shape[-1]} tokens"
            )
        return super().__call__(logits)


def _check_probability(rule: str, p: float) -> None:
    if not 0 < p <= 1:
        raise UserError(f"{rule}.p is {p}; it must be in (0, 1]")
