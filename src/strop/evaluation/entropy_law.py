"""A law that relates a run's scores to its entropy, and its ceiling."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from strop.support.errors import UserError

FEWEST = 3  # evaluations: two always lie on the curve


class EntropyLaw(NamedTuple):
    """score = -a * exp(entropy) + b, fitted to a run's evaluations.

    ceiling = b - a, the score at entropy 0. r_squared: share of the scores' variance that the fit
    explains; with any control of entropy the law need not hold, so check r_squared first.
    """

    a: float
    b: float
    ceiling: float
    r_squared: float

    def score(self, entropy: ArrayLike) -> np.ndarray:
        """The fitted score at an entropy, nats."""
        return np.asarray(self.b - self.a * np.exp(np.asarray(entropy, dtype=np.float64)))


def fit_entropy_law(entropy_S: ArrayLike, score_S: ArrayLike) -> EntropyLaw:
    """Least squares of the scores on [-exp(entropy), 1].

    entropy_S [S]: mean token entropy on training prompts at each evaluation, nats; score_S [S]:
    the validation score. A fit of the first part of a run predicts its end where nothing controls
    entropy: no bonus, no penalty towards a reference, uniform groups left out.

    Raises UserError for fewer than 3 evaluations, numbers that are not finite, and entropies that
    are all equal. Source: arXiv 2505.22617, eq. 6 (its box prints exp(H + b), its equations do
    not).
    """
    entropy = np.asarray(entropy_S, dtype=np.float64)
    score = np.asarray(score_S, dtype=np.float64)
    if entropy.shape != score.shape or entropy.ndim != 1 or len(entropy) < FEWEST:
        raise UserError(
            f"the law of entropy needs {FEWEST} evaluations or more, an entropy and a score of "
            f"each; got {entropy.shape} and {score.shape}"
        )
    if not (np.isfinite(entropy).all() and np.isfinite(score).all()):
        raise UserError("the law of entropy needs finite entropies and scores")
    if np.ptp(entropy) == 0:
        raise UserError("the law of entropy needs evaluations at different entropies")
    columns_S2 = np.stack([-np.exp(entropy), np.ones_like(entropy)], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns_S2, score, rcond=None)
    missed = float(((score - columns_S2 @ [a, b]) ** 2).sum())
    # The mean of equal scores is rounded, so they would seem to have a spread.
    spread = float(((score - score.mean()) ** 2).sum()) if np.ptp(score) else 0.0
    explained = 1 - missed / spread if spread else 1.0
    return EntropyLaw(float(a), float(b), float(b - a), explained)
