from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_draw_from_sources import MIXED, POOL, drawn

from strop.parts.sampling._tracked import Tracked
from strop.parts.sampling.draw_from_sources import DrawFromSources
from strop.parts.sampling.draw_sources_by_gap import DrawSourcesByGap, by_gap


def tracked(success):
    """What is known of prompts by their uid."""
    uid_N = torch.tensor(sorted(success), dtype=torch.int64)
    success_N = torch.tensor([success[uid] for uid in sorted(success)], dtype=torch.float64)
    one_N = torch.ones_like(success_N)
    return Tracked(uid_N, success_N, one_N - success_N, success_N, one_N)


def test_the_rule_by_hand():
    # costs 0.2, 0.3, 0.6 with gamma 10: 1/(3 + 1) = 0.25, 1/(3 + 4) = 0.1429, and what is left
    assert by_gap([0.8, 0.7, 0.4], 10) == pytest.approx([0.6071, 0.25, 0.1429], abs=1e-4)
    assert by_gap([0.8, 0.7, 0.4], 0) == pytest.approx([1 / 3] * 3)
    assert by_gap([0.8, 0.7, 0.4], 1e9) == pytest.approx([1, 0, 0], abs=1e-6)
    assert by_gap([0.3], 5) == [1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1e6))
def test_chances_are_a_distribution_that_leaves_nothing_out(values, gamma):
    chances = by_gap(values, gamma)
    assert sum(chances) == pytest.approx(1)
    assert min(chances) > 0
    assert max(chances) == pytest.approx(chances[values.index(max(values))])


def test_the_undecided_source_comes_more_often_and_its_chance_is_told():
    """a is solved (v 0), b undecided (v 1): gamma 10 at the first draw, P_a = 1 / (2 + 10)."""
    part = DrawSourcesByGap(num_prompts=6000)
    known = tracked({0: 1.0, 1: 1.0, 5: 0.5})
    found = drawn(part, part.init(), tracked=known)
    told = {name: found.metrics[f"sources/{name}"] for name in
            ("a/value", "b/value", "a/probability", "b/probability")}  # fmt: skip
    assert list(told.values()) == pytest.approx([0, 1, 1 / 12, 11 / 12])
    count = Counter(draw.uid < 3 for draw in found.value)
    assert count[True] == pytest.approx(500, abs=90)
    for draw in found.value:
        assert draw.probability == pytest.approx(1 / 36 if draw.uid < 3 else 11 / 60)
    # after 6,000 draws the same gap counts sqrt(6001) times as much
    later = drawn(part, found.state, tracked=known)
    assert later.metrics["sources/a/probability"] == pytest.approx(1 / (2 + 10 * 6001**0.5))


def test_what_was_never_seen_is_hoped_for():
    part = DrawSourcesByGap()
    found = drawn(part, part.init(), tracked=tracked({0: 0.5, 5: 0.25}))
    assert found.metrics["sources/b/value"] == pytest.approx(0.75)
    nothing = drawn(part, part.init(), tracked=tracked({}))
    assert nothing.metrics["sources/a/probability"] == pytest.approx(0.5)


def test_equals_draw_from_sources_of_equal_weights_without_a_scale():
    even = tuple((name, end, 1.0) for name, end, _ in MIXED)
    ours, theirs = DrawSourcesByGap(scale=0.0), DrawFromSources()
    found = drawn(ours, ours.init(), 3, even, tracked=tracked({0: 1.0, 5: 0.5}))
    expected = drawn(theirs, theirs.init(), 3, even)
    assert found.value == expected.value
    assert len({draw.uid for draw in found.value} & set(POOL)) > 2
