"""Decisions over seeds: Holm's numbers by hand, and when there is no verdict."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import nct
from scipy.stats import t as student

from strop.comparison.plan import START
from strop.comparison.table import estimate, resolution
from strop.comparison.verdict import Compared, errors, holm, judge, smallest_resolved
from strop.evaluation.seeds import SeedEstimate


def test_holm_by_hand() -> None:
    # smallest 0.01 x 3 = 0.03, then 0.02 x 2 = 0.04, then 0.04 x 1
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    # 0.01 x 3 = 0.03; 0.03 x 2 = 0.06; 0.04 x 1 = 0.04, but never below one that came before
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_order_and_lies_between_the_p_value_and_bonferroni(values: list[float]) -> None:
    adjusted = holm(values)
    for p, q in zip(values, adjusted, strict=True):
        assert p <= q <= min(1, len(values) * p) + 1e-12
    order = sorted(range(len(values)), key=lambda i: values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_a_difference_that_rounds_to_zero_has_no_minus() -> None:
    assert estimate(SeedEstimate(-0.0001, -0.0004, 0.002, 5)) == "0.000 (0.000 to 0.002)"
    assert estimate(SeedEstimate(-0.0001, -0.001, 0.0, 5), signed=True)[:7] == "+0.000 "


def test_an_interval_that_leaves_out_0_is_shown_without_0() -> None:
    """Its limit has the digits that it takes, so that it agrees with the verdict."""
    gap = SeedEstimate(-0.01, -0.02, -0.00003, 5)
    assert estimate(gap, signed=True) == "-0.01000 (-0.02000 to -0.00003)"
    assert estimate(SeedEstimate(0.01, 0.0006, 0.02, 5)) == "0.010 (0.001 to 0.020)"
    assert estimate(SeedEstimate(900.0, 0.3, 1800.0, 5)) == "900.0 (0.3 to 1,800.0)"


def judged(gaps: dict[str, list[float]]) -> dict[str, Compared]:
    """Methods that differ from `base` (0.1, 0.2, ...) by gaps, a seed each."""
    most = max(map(len, gaps.values()))
    base = {seed: 0.1 * (seed + 1) for seed in range(most)}
    scores = {"base": base} | {
        name: {seed: base[seed] + gap for seed, gap in enumerate(values)}
        for name, values in gaps.items()
    }
    return {c.label: c for c in judge({"pass@1": scores}, "base")}


def test_a_difference_is_decided_by_pairs() -> None:
    # differences 1..5 hundredths: mean 0.03, s = 0.0158114, error 0.00707107, t = 4.2426407;
    # t(0.975, 4) = 2.7764451: -+ 0.0196325. Two-sided p of t = 4.2426407 with 4 degrees of freedom:
    # sin(theta) = t / sqrt(t^2 + 4) = 0.9045340, P = s (1 + cos^2 / 2) = 0.9867644, p = 0.0132356
    found = judged({"other": [0.01, 0.02, 0.03, 0.04, 0.05]})
    assert found["other"].difference is not None
    assert found["other"].difference[:3] == pytest.approx((0.03, 0.0103675, 0.0496325), abs=1e-7)
    assert found["other"].p == pytest.approx(0.0132356, abs=1e-6)
    assert found["other"].verdict == "higher"
    assert found["base"].difference is None
    assert found["base"].verdict == ""
    assert judged({"other": [-0.01, -0.02, -0.03, -0.04, -0.05]})["other"].verdict == "lower"


def test_four_seeds_decide_nothing() -> None:
    assert judged({"other": [0.5, 0.51, 0.5, 0.51]})["other"].verdict == ""
    pairs = {"sure": [0.5, 0.51, 0.5, 0.51, 0.5], "few": [0.5, 0.51, 0.5, 0.51]}
    assert {name: c.verdict for name, c in judged(pairs).items()} == {
        "base": "", "sure": "higher", "few": "",
    }  # fmt: skip


def test_an_interval_that_holds_zero_decides_nothing() -> None:
    assert judged({"other": [0.01, -0.02, 0.03, -0.01, 0.02]})["other"].verdict == "not decided"


def test_a_difference_alone_is_decided_and_among_four_it_is_not() -> None:
    once = [0.01, 0.02, 0.03, 0.04, 0.05]  # p = 0.0132356
    assert judged({"one": once})["one"].verdict == "higher"
    noise = {f"noise{i}": [0.01, -0.02, 0.03, -0.01, 0.02 * i] for i in range(3)}
    among = judged({"one": once, **noise})["one"]
    assert among.adjusted == pytest.approx(4 * 0.0132356, abs=1e-5)
    assert among.difference is not None
    assert among.difference.low > 0
    assert among.verdict == "not decided"


def test_the_model_before_training_is_compared_with_nothing() -> None:
    scores = {"pass@1": {START: {0: 0.1}, "base": {0: 0.2, 1: 0.3}}}
    found = {c.label: c for c in judge(scores, "base")}
    assert found[START].difference is None
    assert found[START].mean.value == 0.1


@pytest.mark.parametrize("num_tests", [1, 7])
@pytest.mark.parametrize("n_seeds", [3, 5, 40])
def test_what_is_resolved_is_found_in_eight_of_ten(n_seeds: int, num_tests: int) -> None:
    # the power, from scipy's noncentral t distribution
    size = smallest_resolved(1.0, n_seeds, num_tests)
    limit = student.ppf(1 - 0.05 / (2 * num_tests), n_seeds - 1)
    power = nct.sf(limit, n_seeds - 1, size)  # the other tail's share is below 1e-7
    assert power == pytest.approx(0.8, abs=1e-4)


def test_errors_of_two_seeds_and_two_prompts_by_hand() -> None:
    # seeds' means 2 and 4: variance 2, over 2 seeds 1. Prompts' means 2 and 4: the same. Rest: all
    # +-1, so sum 4 over 1 degree of freedom, 4; over 4 entries 1. Other prompts: 1 + 1 - 1.
    assert errors(np.array([[0.0, 4.0], [4.0, 4.0]])) == pytest.approx((1.0, 1.0))
    # prompts that differ alike for both seeds: means 2, 4 (seeds), 0, 6 (prompts, variance 18)
    assert errors(np.array([[-1.0, 5.0], [1.0, 7.0]])) == pytest.approx((1.0, math.sqrt(1 + 9)))


def test_errors_are_those_of_new_seeds_and_of_new_prompts() -> None:
    rng = np.random.default_rng(0)
    found, means = [], []
    for _ in range(4000):
        gap_SP = (0.3 * rng.standard_normal((5, 1)) + 0.8 * rng.standard_normal(12)
                  + 0.5 * rng.standard_normal((5, 12)))  # fmt: skip
        found.append([error**2 for error in errors(gap_SP)])
        means.append(gap_SP.mean())
    these, other = np.mean(found, 0)
    assert these == pytest.approx(0.3**2 / 5 + 0.5**2 / 60, rel=0.05)  # prompts held fixed
    assert other == pytest.approx(np.var(means), rel=0.07)


def test_a_comparison_says_what_it_resolves() -> None:
    # differences 1..5 hundredths: error 0.00707107, of which 3.7611 are found (scipy's nct, 0.8)
    found = judged({"other": [0.01, 0.02, 0.03, 0.04, 0.05]})["other"]
    assert found.resolves == pytest.approx(0.00707107 * 3.7611, rel=1e-3)
    assert math.isnan(found.elsewhere)
    assert math.isnan(judged({"other": [0.01] * 5})["other"].resolves)  # seeds do not differ
    assert math.isnan(judged({"other": [0.01]})["other"].resolves)


def test_no_difference_of_shares_above_one_is_said_to_be_found() -> None:
    wide = judged({"other": [-0.9, 0.9, -0.9, 0.9, 0.9]})["other"]
    assert wide.resolves > 1  # error 0.44, of which four degrees of freedom find 3.76
    assert resolution(wide) == "; resolves no difference that can be"
    assert resolution(wide._replace(metric="reward")) == f"; resolves {wide.resolves:.3f}"


def test_nothing_is_said_to_be_found_by_seeds_that_decide_nothing() -> None:
    few = judged({"other": [0.01, 0.02, 0.03, 0.04]})["other"]
    assert few.resolves > 0
    assert resolution(few) == ""


def test_prompts_count_where_all_runs_have_a_score_of_them() -> None:
    base = {seed: np.array([0.0, 0.5, math.nan, 1.0]) for seed in range(2)}
    gaps = np.array([[-1.0, 5.0, 0.0, math.nan], [1.0, 7.0, 0.0, 0.0]])
    ours = {seed: base[seed] + gaps[seed] for seed in range(2)}
    scores = {"base": {0: 0.0, 1: 0.0}, "other": {0: 2.0, 1: 4.0}}
    by_prompt = {"pass@1": {"base": base, "other": ours}}
    found = judge({"pass@1": scores}, "base", by_prompt)[1]
    assert found.elsewhere / found.resolves == pytest.approx(math.sqrt(10))


def test_other_prompts_are_not_paired() -> None:
    scores = {"base": {0: 0.0, 1: 0.0}, "other": {0: 2.0, 1: 4.0}}
    by_prompt = {"pass@1": {label: {seed: np.zeros(size) for seed in range(2)}
                            for label, size in (("base", 4), ("other", 6))}}  # fmt: skip
    found = judge({"pass@1": scores}, "base", by_prompt)[1]
    assert math.isnan(found.elsewhere)
    assert found.resolves > 0
