"""What tells two methods apart on the same rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strop.method.chains import generators
from strop.training.learner.same_rows import SameRows, Unequal, _differ


def methods(**uses: list[tuple[str, str]]) -> Any:
    return [SimpleNamespace(uses=lambda own=own: own) for own in uses.values()]


def test_parts_that_both_methods_have_go_on_with_their_state():
    state = {"sampling.a": 1, "advantage.b": 2, "advantage.c": 3}
    rows = SameRows(generators(0, 1), state, None, ())
    one, other = methods(
        own=[("sampling.a", "a(n=2)"), ("advantage.b", "b(n=2)"), ("advantage.c", "c")],
        other=[("sampling.a", "a(n=2)"), ("advantage.b", "b(n=3)"), ("advantage.d", "d")],
    )
    assert rows._chains(one, other).state == {"sampling.a": 1}


def test_columns_differ_by_more_than_rounding_of_the_largest():
    one = torch.tensor([0.0, 4.0])
    assert not _differ(one, one + 3e-5)  # 4 * 1e-5 is rounding
    assert _differ(one, one + 5e-5)
    assert _differ(one, -one)
    assert _differ(None, one)
    assert not _differ(None, torch.zeros(2))
    assert not _differ(torch.zeros(0), torch.zeros(0))
    assert _differ(one, one * float("nan"))


def test_rows_of_several_rounds_are_not_compared():
    rows = SameRows(generators(0, 1), {}, None, ())
    own: Any = SimpleNamespace(reward=("first", "second", "third"))
    rows.rewarded = [("first", "one"), ("second", "two"), ("third", "three")]
    assert rows._whole(own) == "three"
    rows.rewarded *= 2
    with pytest.raises(Unequal, match="curation"):
        rows._whole(own)
