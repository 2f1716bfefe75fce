from collections import Counter

import pytest
import torch
from builders import run
from fakes.services import FakeServices, FakeTexts

from strop.parts.sampling.draw_from_sources import DrawFromSources
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError

POOL = (0, 1, 2, 5, 6, 7, 8, 9)  # 3 and 4 were carved off
MIXED = (("a", 4, 1.0), ("b", 10, 3.0))


def drawn(part, state, seed=0, mixture=MIXED, **handed):
    rng, texts = torch.Generator().manual_seed(seed), FakeTexts()
    texts.mixture = mixture
    handed = {"num_wanted": None, "services": FakeServices(texts=texts), **handed}
    return run(part, None, pool=POOL, state=state, rng=rng, **handed)


def test_sources_come_by_weight_and_each_is_passed_through():
    """3 prompts of weight 1, 5 of weight 3: of 4,000 draws 1,000 and 3,000, +- 4 deviations."""
    outcome = drawn(DrawFromSources(num_prompts=4000, num_rollouts=2), DrawFromSources().init())
    count = Counter(draw.uid for draw in outcome.value)
    first = sum(count[uid] for uid in (0, 1, 2))
    assert first == pytest.approx(1000, abs=110)
    assert max(count[uid] for uid in (0, 1, 2)) - min(count[uid] for uid in (0, 1, 2)) <= 1
    assert max(count[uid] for uid in POOL[3:]) - min(count[uid] for uid in POOL[3:]) <= 1
    assert outcome.metrics["sources/a/epoch"] == pytest.approx(first / 3)
    assert outcome.metrics["sources/b/epoch"] == pytest.approx((4000 - first) / 5)
    assert outcome.metrics["data/epoch"] == pytest.approx(500)
    assert {draw.num_rollouts for draw in outcome.value} == {2}


def test_a_saved_state_goes_on_where_it_was():
    part = DrawFromSources(num_prompts=3)
    first = drawn(part, part.init(), 1)
    second = drawn(part, first.state, 2)
    again = drawn(part, first.state, 2)
    assert [d.uid for d in again.value] == [d.uid for d in second.value]
    assert (
        sum(second.state["cursor"])
        + sum(max(e, 0) * n for e, n in zip(second.state["epoch"], (3, 5), strict=True))
        == 6
    )


def test_equals_draw_in_shuffled_order_with_one_source():
    ours, theirs = DrawFromSources(num_prompts=6), DrawInShuffledOrder(num_prompts=6)
    one, two = ours.init(), theirs.init()
    for step in range(3):
        rng = torch.Generator().manual_seed(step)
        expected = run(theirs, None, pool=POOL, state=two, rng=rng, num_wanted=None)
        found = drawn(ours, one, step, mixture=())
        assert found.value == expected.value
        assert found.metrics["data/epoch"] == pytest.approx(expected.metrics["data/epoch"])
        one, two = found.state, expected.state


def test_a_source_of_which_nothing_is_left_is_named():
    with pytest.raises(UserError, match="no training prompt of the source b is left"):
        drawn(DrawFromSources(), DrawFromSources().init(), mixture=(*MIXED[:1], ("b", 4, 1.0)))
