"""One named part of the loss: which parts make its objective, its average and its weights."""

from collections.abc import Iterator
from dataclasses import dataclass

from strop.batch.columns import is_head
from strop.catalogue.seams import SLOTS
from strop.method import part as parts
from strop.method.part import Use
from strop.method.schedule import Schedule

LEARNERS = ("policy", "critic")
# The knobs of controls that are outside the algorithm.
LR = "training.lr"
REFERENCE = "model.reference"  # the step whose weights the reference has; 0: the run's start
OUTSIDE = (LR, REFERENCE)


@dataclass(frozen=True)
class Term:
    """loss = -coef * sum_t share_T * correction_T * objective_T over the rows of the term.

    objective: (log_ratio_T or logp_T, advantage_T, ...) -> objective_T. average: (denominator_T,
    ...) -> share_T, over the whole update. ratio: -> log_ratio_T. correction: -> correction_T,
    detached. on: a selection part that narrows this term's masks. learner: whose weights it trains,
    "policy" (starts from gradient_T) or "critic" (starts from the scored part of mask_T; its
    objective reads the value columns of its heads: value_T, value_low_T, ...).
    """

    name: str
    objective: Use
    average: Use
    ratio: Use | None = None
    correction: Use | None = None
    on: Use | None = None
    coef: float | Schedule = 1.0
    learner: str = "policy"

    def uses(self) -> Iterator[tuple[str, Use]]:
        """The filled slots in the order in which they run."""
        for slot in SLOTS:
            use = getattr(self, slot)
            if use is not None:
                yield slot, use


def trained_values(term: Term) -> tuple[str, ...]:
    """The value columns that a term gives a gradient to, sorted; none for the policy's terms."""
    if term.learner != "critic":
        return ()
    reads = (read.column for read in parts.reads(term.objective) if read.required)
    return tuple(sorted(filter(is_head, reads)))


def advantage_of(term: Term) -> str:
    """The column that the term's objective reads as the advantage of a token; empty: none."""
    reads = parts.reads(term.objective)
    return next((read.column for read in reads if read.parameter == "advantage_T"), "")
