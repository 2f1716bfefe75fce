"""The gain from a search tool, computed by hand."""

import numpy as np
import pytest

from strop.evaluation.retrieval import reading_gains
from strop.support.errors import UserError


def test_by_hand():
    closed, passages, search = [1.0, 0, 0, 0, np.nan], [1.0, 1, 1, 0, 1], [1.0, 1, 0, 0, 1]
    found = reading_gains(closed, passages, search)
    assert found["tool gain"].value == pytest.approx(1 / 4)
    assert found["tool gain where the book was needed"].value == pytest.approx(1 / 3)
    assert found["reading gap"].value == pytest.approx(1 / 4)
    assert found["tool gain"].n_prompts == 4  # one has no score closed book
    assert found["tool gain"].low <= 1 / 4 <= found["tool gain"].high


def test_search_that_is_no_better_than_the_closed_book_gains_nothing():
    """Of means of several answers, too; weights 1/2 and 3/4 of gains 1/4 and -1/4 by hand."""
    needed = "tool gain where the book was needed"
    half = [0.5, 0.25]
    assert reading_gains(half, half, half)[needed].value == 0
    found = reading_gains(half, half, [0.75, 0.0])[needed]
    assert found.value == pytest.approx((1 / 8 - 3 / 16) / (5 / 4))


def test_what_is_refused():
    with pytest.raises(UserError, match="scores of 1, 2, 2 questions"):
        reading_gains([1.0], [1.0, 0], [1.0, 0])
    with pytest.raises(UserError, match="no question was scored in all three"):
        reading_gains([np.nan], [1.0], [0.0])
