"""Sampling rules against their definitions, written as loops over one row."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.engines.rules import BanTokens, MinP, TopK, TopP
from strop.support.errors import UserError

logit_rows = st.lists(
    st.lists(st.integers(-12, 12).map(lambda x: x / 4), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
)


def support(logits: torch.Tensor) -> list[set[int]]:
    return [{i for i, x in enumerate(row) if x > -math.inf} for row in logits.tolist()]


def probabilities(row: list[float]) -> list[float]:
    weights = [math.exp(x) for x in row]
    return [w / sum(weights) for w in weights]


@given(logit_rows, st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_sufficient_set(rows, p):
    kept = support(TopP(p)(torch.tensor(rows, dtype=torch.float64)))
    for row, found in zip(rows, kept, strict=True):
        prob = probabilities(row)
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        total, expected = 0.0, set()
        for i in order:
            if expected and total >= p - 1e-12:
                break
            expected.add(i)
            total += prob[i]
        if all(abs(sum(prob[i] for i in order[:k]) - p) > 1e-9 for k in range(1, 7)):
            assert found == expected


@given(logit_rows, st.integers(1, 8))
def test_top_k_keeps_k_and_ties(rows, k):
    kept = support(TopK(k)(torch.tensor(rows, dtype=torch.float64)))
    for row, found in zip(rows, kept, strict=True):
        least = sorted(row, reverse=True)[min(k, len(row)) - 1]
        assert found == {i for i, x in enumerate(row) if x >= least}


@given(logit_rows, st.floats(0.01, 1.0))
def test_min_p_compares_with_the_most_likely(rows, p):
    kept = support(MinP(p)(torch.tensor(rows, dtype=torch.float64)))
    for row, found in zip(rows, kept, strict=True):
        prob = probabilities(row)
        if all(abs(x - p * max(prob)) > 1e-9 for x in prob):
            assert found == {i for i, x in enumerate(prob) if x >= p * max(prob)}


def test_worked_example():
    # probabilities .5 .3 .15 .05
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
    assert support(TopP(0.79)(logits)) == [{0, 1}]  # .5 + .3 = .8 >= .79
    assert support(TopP(0.81)(logits)) == [{0, 1, 2}]
    assert support(TopP(1.0)(logits)) == [{0, 1, 2, 3}]
    assert support(MinP(0.4)(logits)) == [{0, 1}]  # .4 * .5 = .2
    assert support(TopK(3)(logits)) == [{0, 1, 2}]
    assert support(BanTokens((0, 3))(logits)) == [{1, 2}]
    assert support(TopP(0.6)(BanTokens((0,))(logits))) == [{1}]  # .3 / .5 = .6 of what is left


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopP(0.0),
        lambda: TopP(1.5),
        lambda: MinP(-0.1),
        lambda: TopK(0),
        lambda: BanTokens((-1,)),
    ],
)
def test_ranges_are_checked(make):
    with pytest.raises(UserError):
        make()


def test_the_token_that_is_none_is_named():
    with pytest.raises(UserError, match="has 9; the vocabulary has 4 tokens"):
        BanTokens((1, 9))(torch.zeros(2, 4))


def test_rules_can_travel():
    rules = (TopP(0.9), TopK(3), MinP(0.1), BanTokens((1, 2)))
    assert pickle.loads(pickle.dumps(rules)) == rules
    assert len({*rules, TopP(0.9)}) == 4
