from collections import Counter

import pytest
import torch
from builders import run

from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError

POOL = (10, 11, 12, 13, 14)


def drawn(part, state, seed=0, **handed):
    rng = torch.Generator().manual_seed(seed)
    return run(part, None, pool=POOL, state=state, rng=rng, **{"num_wanted": None, **handed})


def test_the_pool_is_passed_through_before_anything_comes_again():
    part = DrawInShuffledOrder(num_prompts=2, num_rollouts=3)
    state, seen, epochs = part.init(), [], []
    for step in range(5):
        outcome = drawn(part, state, step)
        assert [draw.num_rollouts for draw in outcome.value] == [3, 3]
        seen += [draw.uid for draw in outcome.value]
        epochs.append(outcome.metrics["data/epoch"])
        state = outcome.state
    assert Counter(seen[:5]) == Counter(seen[5:]) == Counter(POOL)
    # the third step takes the last one of the first pass and the first of the second
    assert epochs == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])


def test_a_pool_smaller_than_what_is_wanted_is_passed_through_again():
    outcome = drawn(DrawInShuffledOrder(num_prompts=12), DrawInShuffledOrder().init())
    assert sorted(Counter(draw.uid for draw in outcome.value).values()) == [2, 2, 2, 3, 3]
    assert outcome.metrics["data/epoch"] == pytest.approx(2.4)


def test_a_further_round_goes_on_in_the_same_order():
    part = DrawInShuffledOrder(num_prompts=2)
    first = drawn(part, part.init())
    more = drawn(part, first.state, num_wanted=3)
    uids = [draw.uid for draw in (*first.value, *more.value)]
    assert sorted(uids) == list(POOL)
    with pytest.raises(UserError, match=r"draw_in_shuffled_order\.num_prompts"):
        DrawInShuffledOrder(num_prompts=0)
