"""Treat states that look alike as the same state."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.part import require
from strop.parts.probe._contexts import bounds_of


@dataclass(frozen=True)
class MergeSimilarStates:
    """Turns of a prompt whose observations are nearly the same get one state.

        a turn joins the first cluster whose first member has ratio(observations) >= threshold,
        else it starts one; state_k <- the state of the cluster's first member

    The ratio is that of difflib's SequenceMatcher over the observations' tokens, 2 M / (n + m) for
    M matching tokens; turns are taken in row order, within a prompt's group.

    Reads: batch (the tokens), state_K [K] int, group_K [K] int.   Writes: state_K [K] int.
    Source: arXiv 2505.10978; code langfengQ/verl-agent (similarity of anchor states).
    Differs from the source: it compares characters of texts.
    Nearest part: none.
    Edges: threshold 1 joins only equal observations; equal states always join.
    """

    writes: ClassVar[tuple[str, ...]] = ("state_K",)
    facts: ClassVar[frozenset[str]] = frozenset({"order_matters"})
    # Ratio from which two observations are the same. Default: released code (0.95).
    threshold: float = 0.95

    def __post_init__(self) -> None:
        require(self, "threshold", low=0.0, high=1.0)

    def __call__(self, batch: Batch, state_K: Tensor, group_K: Tensor) -> Tensor:
        starts, cuts, _ = bounds_of(batch)
        ids_T = batch["id_T"].cpu()
        clusters: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        merged: dict[tuple[int, int], int] = {}
        found = []
        rows = zip(group_K.tolist(), state_K.tolist(), starts, cuts, strict=True)
        for group, state, start, cut in rows:
            if (group, state) not in merged:
                tokens = tuple(ids_T[start:cut].tolist())
                known = clusters.setdefault(group, [])
                same = next((s for s, other in known if self._alike(other, tokens)), None)
                if same is None:
                    known.append((state, tokens))
                merged[group, state] = state if same is None else same
            found.append(merged[group, state])
        return torch.tensor(found, dtype=state_K.dtype, device=state_K.device)

    def _alike(self, one: Sequence[int], other: Sequence[int]) -> bool:
        matcher = SequenceMatcher(None, one, other, autojunk=False)
        return (
            matcher.real_quick_ratio() >= self.threshold
            and matcher.quick_ratio() >= self.threshold
            and matcher.ratio() >= self.threshold
        )
