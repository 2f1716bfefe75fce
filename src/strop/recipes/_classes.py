"""Classes of difficulty by tracked success, with the loss of each: shared by recipes."""

import dataclasses

from strop.algorithm import Algorithm, Term
from strop.errors import UserError
from strop.loss.bound.measure_loss_by_bin import MeasureLossByBin
from strop.loss.ratio.ratio_per_token import RatioPerToken
from strop.part import Use
from strop.plan.split_into_minibatches import SplitIntoMinibatches
from strop.recipes._base import average
from strop.sampling.sort_by_success import SortBySuccess
from strop.sampling.track_success import TrackSuccess

EDGES = (0.4, 0.75)


def classed(
    algorithm: Algorithm, edges: tuple[float, ...], history: int, margin: float, variant: str,
    set_apart: bool, minibatches: int, clips: tuple[float, float],
) -> Algorithm:  # fmt: skip
    """The algorithm with classes of difficulty, whose losses are measured over several updates."""
    if variant not in ("paper", "code"):
        raise UserError(f"variant is paper or code, not {variant!r}")
    measure = MeasureLossByBin(len(edges) + 1, *clips)
    signal = Term("bins", Use(measure), average("token-mean"), ratio=Use(RatioPerToken()), coef=0.0)
    sampling = (
        *algorithm.sampling,
        Use(TrackSuccess(window=history, entry="any")),
        Use(SortBySuccess(edges, margin, set_apart, variant)),
    )
    plan = Use(SplitIntoMinibatches(num_minibatches=minibatches))
    terms = (*algorithm.terms, signal)
    return dataclasses.replace(algorithm, sampling=sampling, terms=terms, plan=plan)
