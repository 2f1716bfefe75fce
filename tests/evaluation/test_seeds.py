"""Student-t quantiles against tables, closed forms and scipy; intervals over seeds."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from strop.evaluation.seeds import (
    POSITIVE,
    SHARE,
    over_seeds,
    paired_difference,
    paired_p,
    range_of,
)
from strop.support.errors import UserError
from strop.support.students_t import central_probability, t_quantile


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [  # printed tables of Student's t to six decimals and more
        (0.975, 1, 12.706204736),
        (0.975, 2, 4.302652730),
        (0.975, 3, 3.182446305),
        (0.975, 4, 2.776445105),
        (0.975, 5, 2.570581836),
        (0.975, 9, 2.262157163),
        (0.975, 30, 2.042272456),
        (0.95, 7, 1.894578605),
        (0.995, 4, 4.604094871),
        (0.995, 10, 3.169272667),
        (0.9995, 6, 5.958816179),
    ],
)
def test_quantile_matches_tables(p: float, df: int, expected: float) -> None:
    assert t_quantile(p, df) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 8, 9, 30, 39, 100, 12345])
def test_quantile_and_probability_match_scipy(df: int) -> None:
    for p in (1e-4, 0.01, 0.3, 0.5, 0.8, 0.975, 0.9995, 0.99999):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-12)
    for x in (0.0, 0.1, 1.0, 4.0, 60.0):
        inside = stats.t.cdf(x, df) - stats.t.cdf(-x, df)
        found = central_probability(math.atan(x / math.sqrt(df)), df)
        assert found == pytest.approx(inside, rel=1e-9, abs=1e-12)


def test_an_estimate_is_written_with_its_interval() -> None:
    assert f"{over_seeds([0.25, 0.5, 0.75]):+.2f}" == "+0.50 (-0.12 to +1.12)"
    assert f"{over_seeds([0.25]):.3f}" == "0.250"


def test_p_value_matches_scipy() -> None:
    ours, theirs = [0.31, 0.42, 0.55, 0.48], [0.29, 0.44, 0.47, 0.41]
    assert paired_p(ours, theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)


@given(st.floats(0.01, 0.99))
def test_quantile_matches_closed_forms(p: float) -> None:
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9, abs=1e-9)
    two = (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    assert t_quantile(p, 2) == pytest.approx(two, rel=1e-9, abs=1e-9)
    assert t_quantile(1 - p, 7) == pytest.approx(-t_quantile(p, 7), abs=1e-9)
    assert t_quantile(p, 1_001) == pytest.approx(NormalDist().inv_cdf(p), rel=3e-3, abs=1e-6)


def test_mean_over_seeds_worked_example() -> None:
    # mean 2, s = 1, n = 3, t = 4.30265273: half width 4.30265273 / sqrt(3) = 2.48413772
    found = over_seeds([1.0, 2.0, 3.0])
    assert found[:3] == pytest.approx((2.0, -0.48413772, 4.48413772), abs=1e-7)
    assert found.n_seeds == 3


def test_pairing_removes_what_the_seed_does_to_both() -> None:
    theirs = [0.1, 0.5, 0.9]
    ours = [0.2, 0.6, 1.1]  # differences 0.1, 0.1, 0.2: s = 0.0577350
    found = paired_difference(ours, theirs)
    assert found.value == pytest.approx(0.4 / 3)
    assert found.high - found.value == pytest.approx(
        4.30265273 * 0.0577350 / math.sqrt(3), abs=1e-6
    )


def test_interval_covers_as_often_as_it_says() -> None:
    x = np.random.default_rng(0).normal(0.0, 1.0, (2000, 4))
    found = [over_seeds(row.tolist()) for row in x]
    assert np.mean([f.low <= 0 <= f.high for f in found]) == pytest.approx(0.95, abs=0.015)


def test_a_limit_stays_inside_what_the_number_can_be() -> None:
    # 0.7 and 0.9: s / sqrt(2) = 0.1, half = 12.7062 x 0.1 = 1.27062: both leave (0, 1).
    # logit 0.8 = 1.3862944, half / (0.8 x 0.2) = 7.9413750: 1 / (1 + exp(6.5550806)) and so on
    found = over_seeds([0.7, 0.9], within=SHARE)
    assert found[:3] == pytest.approx((0.8, 0.0014209, 0.9999111), abs=2e-7)
    # 3 and 5: half = 12.7062; the lower limit is 4 exp(-12.7062 / 4), the upper one Student's
    assert over_seeds([3.0, 5.0], within=POSITIVE)[:3] == pytest.approx(
        (4, 4 * math.exp(-12.7062047 / 4), 16.7062047)
    )
    assert over_seeds([0.4, 0.5, 0.6], within=SHARE) == over_seeds([0.4, 0.5, 0.6])
    gap = paired_difference([0.9, 0.3], [0.1, 0.1], within=SHARE)  # 0.8 and 0.2
    assert -1 < gap.low < gap.value < gap.high < 1
    either = paired_difference([1.0, 0.9], [-1.0, -0.6], within=(-1, 1))  # 2 is the most
    assert either.value == pytest.approx(1.75)
    assert -2 < either.low < either.value < either.high < 2


def test_a_mean_outside_the_range_of_its_name_keeps_students_interval() -> None:
    assert over_seeds([37.0, 38.0, 40.0], within=SHARE) == over_seeds([37.0, 38.0, 40.0])
    assert over_seeds([-3.0, -2.0], within=POSITIVE) == over_seeds([-3.0, -2.0])


def test_equal_seeds_do_not_tell_how_sure_their_mean_is() -> None:
    equal = over_seeds([0.1, 0.1, 0.1])
    assert equal.value == 0.1
    assert math.isnan(equal.low)
    assert math.isnan(equal.high)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("pass@8", SHARE), ("eval/validation/maj@4", SHARE), ("reached to pass@1 0.5", SHARE),
     ("late/entropy", POSITIVE), ("seconds to pass@1 0.5", POSITIVE), ("distinct@8", POSITIVE),
     ("mean/frac_reward_zero_std", SHARE), ("mean/rewards/frac_unscored", SHARE),
     ("exit/token_limit", SHARE), ("eval/validation/reward_accuracy", SHARE),
     ("episode/done_fraction", SHARE), ("tied_top", SHARE), ("distinct_fraction", SHARE),
     ("eval/validation/entropy", POSITIVE), ("eval/hard/distinct@8", POSITIVE),
     ("eval/validation/completions/mean_length", POSITIVE), ("eval/validation/auc", SHARE),
     ("late/reward", (-math.inf, math.inf))],
)  # fmt: skip
def test_what_a_number_can_be_follows_from_its_name(name: str, wanted: tuple) -> None:
    assert range_of(name) == wanted


def test_edges() -> None:
    one = over_seeds([0.5])
    assert one.value == 0.5
    assert math.isnan(one.low)
    with pytest.raises(UserError, match="same seeds"):
        paired_difference([1.0], [1.0, 2.0])
    for values in ([], [math.nan, 1.0]):
        with pytest.raises(UserError, match="finite number per seed"):
            over_seeds(values)
    with pytest.raises(ValueError, match="df"):
        t_quantile(0.9, 0)


@pytest.mark.parametrize(
    ("t", "df", "p"),
    [(12.7062047, 1, 0.05), (4.3026527, 2, 0.05), (2.7764451, 4, 0.05), (4.6040949, 4, 0.01),
     (8.6103018, 4, 0.001), (2.2621572, 9, 0.05), (3.2498355, 9, 0.01)],
)  # fmt: skip
def test_paired_p_matches_tables(t: float, df: int, p: float) -> None:
    assert paired_p(*_with_t(t, df)) == pytest.approx(p, rel=1e-5)


@given(st.floats(1e-6, 0.99), st.integers(1, 30))
def test_paired_p_is_the_quantile_backwards(p: float, df: int) -> None:
    assert paired_p(*_with_t(t_quantile(1 - p / 2, df), df)) == pytest.approx(p, rel=1e-6, abs=1e-9)


def test_paired_p_at_its_edges() -> None:
    assert paired_p([0.3], [0.1]) == 1.0
    assert paired_p([0.3, 0.4], [0.3, 0.4]) == 1.0
    assert paired_p([1.0, 2.0], [0.0, 1.0]) == 0.0
    with pytest.raises(UserError, match="same seeds"):
        paired_p([1.0], [1.0, 2.0])


def _with_t(t: float, df: int) -> tuple[list[float], list[float]]:
    """Two sides of df + 1 seeds whose differences have this t: mean t / sqrt(n) deviations."""
    n = df + 1
    x = np.arange(n) - df / 2
    x = x / x.std(ddof=1) + t / math.sqrt(n)
    theirs = np.linspace(0, 1, n)
    return (theirs + x).tolist(), theirs.tolist()
