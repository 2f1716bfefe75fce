import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation import preferences as p
from strop.support.errors import UserError

PAIRS = [[-1.0, -2.0], [-3.0, -2.5], [-1.0, -1.0]]


def test_ranking_accuracy_counts_ties_as_right():
    assert p.ranking_accuracy(PAIRS) == pytest.approx(2 / 3)
    assert p.ranking_accuracy(PAIRS, strict=True) == pytest.approx(1 / 3)
    assert p.ranking_accuracy(PAIRS, tie_margin=0.5) == 1.0  # -0.5 counts as a tie
    assert p.ranking_accuracy(PAIRS, tie_margin=1.0, strict=True) == 0.0


def test_means_over_tokens_can_turn_the_order():
    assert p.ranking_accuracy([[-6.0, -4.0]]) == 0.0
    assert p.ranking_accuracy([[-6.0, -4.0]], lengths=[[6, 2]]) == 1.0


def test_of_more_than_two_answers_the_whole_order_counts():
    assert p.ranking_accuracy([[-1.0, -2.0, -3.0], [-1.0, -3.0, -2.0]]) == 0.5
    with pytest.raises(UserError, match="two answers or more"):
        p.ranking_accuracy([[-1.0]])


@pytest.mark.parametrize(
    ("gap", "alpha", "beta", "right"),
    [(-5, 0.75, 0.1, 1), (-20, 0.75, 0.1, 0), (-20, 0.9, 0.1, 1), (-5, 0.75, 1.0, 0)],
)
def test_worked_example_of_the_idealised_accuracy(gap, alpha, beta, right):
    logp_ref = [[float(gap), 0.0]]
    assert p.idealised_ranking_accuracy(logp_ref, alpha=alpha, beta=beta) == right


def test_what_is_no_pairs_is_refused():
    for scores in ([-1.0, -2.0], [[-1.0, -2.0, -3.0]]):
        for call in (
            lambda scores=scores: p.idealised_ranking_accuracy(scores),
            lambda scores=scores: p.hardest_loss(scores),
            lambda scores=scores: p.flips(scores, scores),
        ):
            with pytest.raises(UserError, match=r"pairs \[N, 2\], they are "):
                call()


def test_certain_raters_count_as_999_of_1000():
    edge = np.log(0.999 / 0.001) / 0.1  # 69.07 nats
    assert p.idealised_ranking_accuracy([[0.01 - edge, 0.0]], alpha=1.0) == 1.0
    assert p.idealised_ranking_accuracy([[-0.01 - edge, 0.0]], alpha=1.0) == 0.0
    with pytest.raises(UserError, match="beta must be above 0"):
        p.idealised_ranking_accuracy(PAIRS, beta=0.0)


def test_range_over_betas_and_gap():
    logp_ref = [[-3.0, 0.0], [1.0, 0.0]]  # 6.9 / beta lifts the first up to beta 2.3
    assert p.idealised_range(logp_ref) == (0.5, 1.0, 1.0)
    assert p.alignment_gap([[-1.0, 0.0], [1.0, 0.0]], logp_ref, beta=0.1) == 0.5


def test_worked_example_of_hardness():
    found = p.hardest_loss([[-10.0, 0.0], [-50.0, 0.0]], beta=0.1)
    assert found == pytest.approx([0.3133, 0.0067], abs=5e-5)


@given(st.lists(st.tuples(*[st.floats(-20, 0)] * 4), min_size=1, max_size=8))
def test_a_pair_is_ranked_right_iff_its_loss_is_small_enough(rows):
    policy, reference = np.array([r[:2] for r in rows]), np.array([r[2:] for r in rows])
    delta = (policy - reference)[:, 0] - (policy - reference)[:, 1]
    loss = np.logaddexp(0, -0.1 * delta)
    enough = loss <= p.hardest_loss(reference, beta=0.1) + 1e-12
    gap = policy[:, 0] - policy[:, 1]
    is_clear = (gap == 0) | (abs(gap) > 1e-8)  # closer ones are decided by rounding
    assert (enough == (gap >= 0))[is_clear].all()


def test_flips_add_up():
    right, wrong = [1, 0], [0, 1]
    before = [right] + [wrong] * 2 + [right] * 3 + [wrong] * 4
    found = p.flips(before, [right] * 3 + [wrong] * 7)
    assert found == {
        "stayed_right": 0.1, "became_right": 0.2, "became_wrong": 0.3, "stayed_wrong": 0.4
    }  # fmt: skip


def test_the_example_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "GIVEN_ANSWERS.md").read_text()
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "preferences as p" in b)
    found: dict = {}
    exec(code, found)
    assert (found["best"], found["low"], found["middle"]) == pytest.approx((1, 2 / 3, 2 / 3))
    assert (found["high"], found["gap"]) == pytest.approx((1, 1 / 3))
    assert found["moved"]["stayed_right"] == pytest.approx(2 / 3)
    assert found["moved"]["stayed_wrong"] == pytest.approx(1 / 3)
