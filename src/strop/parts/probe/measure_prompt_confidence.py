"""Measure how sure the policy is of each prompt, by its least likely tokens."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import require
from strop.method.services import Scoring


@dataclass(frozen=True)
class MeasurePromptConfidence:
    """Later parts see how familiar the policy finds the prompt itself.

        prompt_confidence_i = exp(mean logp of the `share` least likely tokens of i's prompt)

    The prompt is the tokens before the first policy token; its own first token has no
    log-probability and is left out. Of n tokens floor(share n) count, at least one. It costs one
    forward pass over the prompt of every group, as in its first rollout.

    Reads: batch (the token ids), scoring.
    Writes: prompt_confidence_B [B] float.
    Source: arXiv 2602.05281 (confidence in the prompt).
    Differs from the source: its exact form is not known; this is the form for the answer.
    Nearest part: none.
    Edges: a prompt of one token -> 1.
    """

    writes: ClassVar[tuple[str, ...]] = ("prompt_confidence_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "prompt_confidence_B",
            "float",
            "how sure the policy is of the prompt, 0 to 1",
            random="uniform",
        ),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Share of the tokens, the least likely ones, that make up the confidence. Default: paper.
    share: float = 0.2

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)

    def __call__(self, batch: Batch, scoring: Scoring) -> Tensor:
        shown = batch.take(segments.first(batch["group_B"], batch.size("P")))
        num, rollout_T = shown.size("B"), shown["rollout_T"]
        answered_T = shown["mask_T"].long().cumsum(0)
        before_T = answered_T - shown["mask_T"].long()
        start_B = segments.extreme(before_T, rollout_T, num, largest=False)
        shown = shown.narrow(answered_T == start_B[rollout_T])
        scored_T = segments.place_in_run(shown["rollout_T"], num) > 0
        shown = shown.set(mask_T=scored_T)
        logp_T = scoring.score(shown, "current", ("logp_T",))["logp_T"]
        lowest_P = segments.mean_of_lowest(
            logp_T, shown["rollout_T"], num, self.share, shown["mask_T"]
        )
        return lowest_P.exp()[batch["group_B"]]
