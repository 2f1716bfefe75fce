"""Classes of difficulty by tracked success, with the loss of each: shared by recipes."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.loss.bound.measure_loss_by_bin import MeasureLossByBin
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.sampling.sort_by_success import SortBySuccess
from strop.parts.sampling.track_success import TrackSuccess
from strop.recipes._base import average
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

EDGES = (0.4, 0.75)


@inherits(
    grpo, clip_high=0.28, beta=0.001, aggregation="token-mean", num_rollouts=4, num_minibatches=4
)
def classed(
    *,
    # Success rate at which one class ends and the next begins.
    edges: tuple[float, ...] = EDGES,
    # Last steps with a prompt over which its success is averaged; success is any right answer.
    H: int = 50,
    # How far beyond an edge a prompt must be to change its class.
    d: float = 0.03,
    # Whether prompts that are never or always solved are in no class.
    set_apart: bool = False,
    # Whose rule for changing classes is used: "paper" or "code".
    variant: str = "paper",
    clip_low: float = 0.2,
    **parent: Any,
) -> Algorithm:
    """grpo with classes of difficulty, whose losses are measured over several updates."""
    if variant not in ("paper", "code"):
        raise UserError(f"variant is paper or code, not {variant!r}")
    algorithm = grpo(clip_low=clip_low, **parent)
    measure = MeasureLossByBin(len(edges) + 1, clip_low, parent["clip_high"])
    signal = Term("bins", Use(measure), average("token-mean"), ratio=Use(RatioPerToken()), coef=0.0)
    sampling = (
        *algorithm.sampling,
        Use(TrackSuccess(window=H, entry="any")),
        Use(SortBySuccess(edges, d, set_apart, variant)),
    )
    terms = (*algorithm.terms, signal)
    return dataclasses.replace(algorithm, sampling=sampling, terms=terms)
