"""The gain of a search tool: the same questions closed book, with their passages, with search.

    tool gain   = own search - closed book
    reading gap = passages given - own search

A question that is answered closed book does not test search, so the gain is also taken over the
others: weighted by 1 - closed book, where scores are means of several answers. The modes and the
formulas are those of a survey of memory in language models.
"""

import numpy as np
from numpy.typing import ArrayLike

from strop.evaluation.calibration import Statistic, mean_over_prompts, share
from strop.evaluation.samples import Estimate
from strop.evaluation.summary import bootstrap
from strop.support.errors import UserError


def reading_gains(
    closed: ArrayLike, passages: ArrayLike, search: ArrayLike, seed: int = 0
) -> dict[str, Estimate]:
    """The gain and the gap with 95% intervals over questions, from float [P] scores of the same
    ones.

    A question without a score in one of the modes is left out. Raises UserError for scores of
    different numbers of questions, or of none.
    """
    modes = [np.asarray(each, dtype=np.float64) for each in (closed, passages, search)]
    if len({len(each) for each in modes}) > 1:
        counts = ", ".join(str(len(each)) for each in modes)
        raise UserError(f"the modes have scores of {counts} questions: ask the same ones in each")
    known_P = np.isfinite(sum(modes))
    closed_P, passages_P, search_P = (each[known_P] for each in modes)
    if len(closed_P) == 0:
        raise UserError("no question was scored in all three modes")
    unknown_P = 1 - closed_P
    statistics: dict[str, Statistic] = {
        "tool gain": mean_over_prompts(search_P - closed_P),
        "tool gain where the book was needed": share(unknown_P * (search_P - closed_P), unknown_P),
        "reading gap": mean_over_prompts(passages_P - search_P),
    }
    return bootstrap(statistics, len(closed_P), seed=seed)
