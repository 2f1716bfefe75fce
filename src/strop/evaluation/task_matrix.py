"""What a policy learns and retains when it is trained on several tasks in order.

R[t, j] is its accuracy on task j after task t, b[j] that before any task, Z[t] its accuracy on
held-out suites that it is never trained on, Z[0] that at the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strop.evaluation.samples import Floats
from strop.support.errors import UserError


@dataclass(frozen=True)
class Kept:
    """The numbers of a sequence of T tasks, in the order of the tasks.

    accumulation [T]: mean over all tasks, seen or not, after each. seen [T]: mean over the tasks
    trained on so far. learnt: mean accuracy on a task right after it. forgetting, backward: over
    all tasks but the last, NaN for one task; forward: over all but the first. retention [T]: of
    the held-out suites, empty without any; NaN where the start had 0. error: of a cell.
    """

    accumulation: Floats
    seen: Floats
    learnt: float
    forgetting: float
    backward: float
    forward: float
    retention: Floats
    error: float


def kept(
    matrix: Sequence[Sequence[float]],
    before: Sequence[float],
    heldout: Sequence[float] = (),
    errors: Sequence[Sequence[float]] = (),
) -> Kept:
    """The numbers of a matrix R, of b, and of Z with its start first.

        accumulation_t = mean_j R[t, j];   learnt = mean_j R[j, j]
        forgetting = mean_{j<T} (max_t R[t, j] - R[T, j])
        backward = mean_{j<T} (R[T, j] - R[j, j]);   forward = mean_{j>1} (R[j-1, j] - b[j])
        retention_t = Z[t] / Z[0]

    errors: standard errors of the cells; their mean is `error`, NaN without. Forgetting takes the
    maximum over t of noisy numbers, so where nothing was forgotten it is above 0: by half of
    `error` with two tasks, all of it with four, 1.5 times it with ten. Backward transfer has no
    such bias. Raises UserError for invalid shapes.
    Source: arXiv 2408.14471 (accumulation, retention), the usual definitions (the others).
    """
    R, b = np.asarray(matrix, dtype=np.float64), np.asarray(before, dtype=np.float64)
    Z = np.asarray(heldout, dtype=np.float64)
    if R.ndim != 2 or R.shape[0] != R.shape[1] or b.shape != R.shape[:1] or not len(R):
        raise UserError(
            f"a sequence of T tasks has a matrix of T x T accuracies and T before it, not "
            f"{R.shape} and {b.shape}"
        )
    if Z.size not in (0, len(R) + 1):
        raise UserError(f"held-out accuracies are those of the start and after each task, not {Z}")
    diagonal, last, several = R.diagonal(), R[-1, :-1], len(R) > 1
    with np.errstate(divide="ignore", invalid="ignore"):
        retention = Z[1:] / Z[0] if Z.size else Z
    return Kept(
        accumulation=R.mean(1),
        seen=np.array([R[t, : t + 1].mean() for t in range(len(R))]),
        learnt=float(diagonal.mean()),
        forgetting=float((R[:, :-1].max(0) - last).mean()) if several else np.nan,
        backward=float((last - diagonal[:-1]).mean()) if several else np.nan,
        forward=float((R.diagonal(1) - b[1:]).mean()) if several else np.nan,
        retention=np.where(np.isfinite(retention), retention, np.nan),
        error=float(np.mean(errors)) if len(errors) else np.nan,
    )
