"""The whole summary of an evaluation."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.evaluation.samples import Samples
from strop.evaluation.summary import as_json, by_prompt, summarise
from strop.support.errors import UserError


def example() -> Samples:
    """Two prompts: 7 with four samples (two right), 3 with two (both right), one more unscored."""
    return Samples(
        prompt_B=np.array([7, 3, 7, 7, 3, 7, 3]),
        score_B=np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, math.nan]),
        length_B=np.array([10, 20, 30, 40, 50, 60, 999]),
        truncated_B=np.array([False, False, True, False, False, True, True]),
        answer_B=["a", "x", "b", "a", "x", None, "z"],
        confidence_B=np.array([-0.5, -0.1, -1.0, -0.2, -0.3, -0.5, -9.0]),
        entropy_B=np.array([1.0, 0.5, 2.0, 1.0, 0.5, math.nan, 7.0]),
        scored_B=np.array([True] * 6 + [False]),
        measured={"recall": np.array([0.5, 1.0, math.nan, 0.0, 1.0, math.nan, 9.0])},
    )


def test_worked_example() -> None:
    found = {name: estimate.value for name, estimate in summarise(example(), [1, 2]).items()}
    expected = {
        "mean@n": (0.5 + 1) / 2,
        "pass@1": (0.5 + 1) / 2,
        "pass@2": (5 / 6 + 1) / 2,  # 1 - C(2,2) / C(4,2)
        "maj@1": (2 / 4 + 1) / 2,
        # prompt 7, pairs: aa 1, ab a tie (two of them) 1/2, a None (two) 1, b None 0 -> 4 / 6
        "maj@2": (4 / 6 + 1) / 2,
        "distinct@1": (3 / 4 + 1) / 2,
        "distinct@2": ((5 / 6 + 1 / 2) + 1) / 2,  # a: 1 - 1/6, b: 1 - 3/6
        "distinct_fraction": (2 / 4 + 1 / 2) / 2,
        "tied_top": 0.0,  # a is better than b; x stands alone
        # prompt 7 says a, a, b and prompt 3 x, x
        "answer_entropy": (math.log(3) - 2 / 3 * math.log(2)) / 2,
        "effective_answers": (3 / 2 ** (2 / 3) + 1) / 2,
        "answer_entropy_auc": 3 / 4,  # b is wrong, as doubted as the two a and more than the two x
        "answer_share_auc": 1.0,  # b has 1/3 of its votes, a 2/3, x all
        "auc": 7.5 / 8,  # wrong at -1.0 (below 4 right) and -0.5 (below 3, tied with one)
        "entropy": (10 + 10 + 60 + 40 + 25) / 150,
        "completions/mean_length": 210 / 6,
        "completions/clipped_ratio": 2 / 6,
        "measures/recall": 2.5 / 4,  # of the scored that have it
        "completions/min_length": 10,
        "completions/max_length": 60,
        "num_rollouts": 6,
        "num_unscored": 1,
        "num_unscored_prompts": 0,
    }
    calibration = found.pop("ece")
    assert found == pytest.approx(expected)
    # exp(confidence): 0.61 right and 0.61 wrong share a bin, as nothing else does but 0.82 and 0.74
    stated = {0.905: 1, 0.368: 0, 0.819: 1, 0.741: 1}
    rest = sum(abs(right - p) for p, right in stated.items())
    assert calibration == pytest.approx((rest + abs(1 - 2 * math.exp(-0.5))) / 6, abs=1e-3)


def test_prompts_with_the_same_votes_are_equally_doubted_in_any_order_of_their_answers() -> None:
    votes = [*itertools.permutations((1, 2, 3, 2))]  # their sums are rounded in different ways
    answers = [a for each in votes for a, n in zip("abcd", each, strict=True) for _ in range(n)]
    prompt = np.repeat(np.arange(len(votes)), 8)
    right = (prompt % 3 == 0).astype(float)
    zeros = np.zeros(len(prompt), dtype=np.int64)
    samples = Samples(prompt, right, zeros, zeros.astype(bool), answers)
    assert summarise(samples, [1])["answer_entropy_auc"].value == 0.5


def test_intervals_hold_their_estimates_and_narrow_with_prompts() -> None:
    rng = np.random.default_rng(0)

    def width(num_prompts: int) -> float:
        score = rng.random(4 * num_prompts) < np.repeat(rng.random(num_prompts), 4)
        samples = Samples(
            np.repeat(np.arange(num_prompts), 4),
            score.astype(float),
            np.full(4 * num_prompts, 5),
            np.zeros(4 * num_prompts, dtype=bool),
        )
        found = summarise(samples, [1, 2, 4], num_resamples=500)
        assert all(e.low <= e.value <= e.high for e in found.values())
        assert {"maj@1", "auc", "entropy"}.isdisjoint(found)
        return found["pass@1"].high - found["pass@1"].low

    assert width(400) == pytest.approx(width(100) / 2, rel=0.25)


@given(st.permutations(range(7)))
def test_order_of_rollouts_never_matters(order: list[int]) -> None:
    samples = example()
    shuffled = Samples(
        *(column[order] for column in (samples.prompt_B, samples.score_B)),
        samples.length_B[order],
        samples.truncated_B[order],
        [samples.answer_B[i] for i in order],
        samples.confidence_B[order],
        samples.entropy_B[order],
        samples.scored_B[order],
        measured={"recall": samples.measured["recall"][order]},
    )
    first = as_json(summarise(samples, [2], num_resamples=100))
    assert as_json(summarise(shuffled, [2], num_resamples=100)) == pytest.approx(first)


def test_unscored_rollouts_change_nothing_but_their_count() -> None:
    samples = example()
    with_them, without = summarise(samples, [1]), summarise(samples.only_scored(), [1])
    assert with_them.pop("num_unscored").value == 1
    assert without.pop("num_unscored").value == 0
    assert with_them == without
    lost = replace(samples, scored_B=samples.prompt_B == 7)
    found = summarise(lost, [1])
    assert found["num_unscored_prompts"].value == 1
    assert found["pass@1"].n_prompts == 1


def test_what_is_right_follows_the_threshold() -> None:
    samples = replace(example(), score_B=example().score_B * 0.5)
    assert summarise(samples, [1])["pass@1"].value == 0
    rounded = replace(samples, score_B=example().score_B - 1e-7)  # as sums of floats are
    assert summarise(rounded, [1])["pass@1"].value == 0.75
    assert summarise(samples, [1])["mean@n"].value == 0.375


def test_k_beyond_the_largest_prompt_names_it() -> None:
    few = replace(example(), scored_B=np.array([True, False, True, True, True, False, False]))
    message = r"4 scored samples of a prompt, and prompt 7 has n = 3 \(1 more .* k <= 3 or"
    with pytest.raises(UserError, match=message):
        summarise(few, [4])
    with pytest.raises(UserError, match="k = 0"):
        summarise(example(), [0])


def test_a_k_that_one_prompt_alone_has_samples_for_has_no_interval() -> None:
    recall = {"recall@4": np.ones(7)}  # a measure's name may look like that of a score
    found = summarise(replace(example(), measured=recall), [1, 4])
    for name in ("pass@4", "maj@4", "distinct@4"):
        assert found[name].n_prompts == 1
        assert math.isnan(found[name].low)
        assert math.isnan(found[name].high)
    assert (found["pass@1"].n_prompts, found["measures/recall@4"].n_prompts) == (2, 2)
    assert found["measures/recall@4"][:3] == (1.0, 1.0, 1.0)


def test_wrong_columns_are_refused() -> None:
    samples = example()
    with pytest.raises(UserError, match="length_B has 2 entries"):
        replace(samples, length_B=np.array([1, 2]))
    with pytest.raises(UserError, match="not finite"):
        replace(samples, scored_B=None)
    with pytest.raises(UserError, match="log-probability"):
        replace(samples, confidence_B=-samples.confidence_B)
    with pytest.raises(UserError, match="no rollout was scored"):
        summarise(replace(samples, scored_B=np.zeros(7, dtype=bool)), [1])


def test_prompts_without_any_answer_score_zero() -> None:
    found = summarise(replace(example(), answer_B=[None] * 7), [2])
    assert (
        found["maj@2"].value == found["distinct@2"].value == found["distinct_fraction"].value == 0
    )
    assert math.isnan(found["answer_entropy"].value)


def test_json_form_is_flat_and_strict() -> None:
    samples = example()
    flat = as_json(summarise(samples, [1]))
    assert {"pass@1", "pass@1/low", "pass@1/high"} <= set(flat)
    all_right = replace(samples, score_B=np.ones(7))
    flat = as_json(summarise(all_right, [1]))
    assert flat["auc"] is None  # no wrong rollout to compare with
    json.loads(json.dumps(flat, allow_nan=False))


def test_evaluation_needs_no_torch() -> None:
    code = (
        "import sys, strop.evaluation.summary, strop.evaluation.seeds\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_prompt_with_too_few_samples_has_no_pass_at_k():
    samples = Samples(np.array([0, 0, 1]), np.array([1.0, 0.0, 1.0]), np.ones(3), np.zeros(3, bool))
    found = by_prompt(samples, [1, 2], 3)
    np.testing.assert_array_equal(found["pass@1"], [0.5, 1, np.nan])
    np.testing.assert_array_equal(found["pass@2"], [1, np.nan, np.nan])
