"""The percentile bootstrap: coverage, seeds, and what it refuses."""

import numpy as np
import pytest

from strop.evaluation import summary as module
from strop.evaluation.calibration import mean_over_prompts, share
from strop.evaluation.summary import bootstrap
from strop.support.errors import UserError


def test_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = []
    for trial in range(300):  # 60 prompts of differing difficulty, 4 samples each
        rate_P = rng.beta(2, 3, 60)
        mean_P = rng.binomial(4, rate_P) / 4
        found = bootstrap({"m": mean_over_prompts(mean_P)}, 60, num_resamples=300, seed=trial)["m"]
        covered.append(found.low <= 2 / 5 <= found.high)
    # the standard error of this share is 1.3%
    assert 0.91 <= np.mean(covered) <= 0.98


def test_interval_matches_the_normal_one_for_many_prompts() -> None:
    value_P = np.random.default_rng(1).normal(3.0, 2.0, 900)
    found = bootstrap({"m": mean_over_prompts(value_P)}, 900, num_resamples=4000)["m"]
    half = 1.96 * value_P.std() / 30
    assert found.value == pytest.approx(value_P.mean())
    assert found.low == pytest.approx(value_P.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(value_P.mean() + half, abs=0.1 * half)
    assert found.n_prompts == 900


def test_same_seed_same_interval_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = {"m": mean_over_prompts(np.arange(20.0)), "r": share(np.arange(20.0), np.ones(20))}
    whole = bootstrap(statistics, 20, num_resamples=200, seed=5)
    monkeypatch.setattr(module, "CHUNK", 20 * 7)
    assert bootstrap(statistics, 20, num_resamples=200, seed=5) == whole
    assert bootstrap(statistics, 20, num_resamples=200, seed=6) != whole
    assert whole["m"] == whole["r"]  # both on the same resamples


def test_one_prompt_gives_no_interval() -> None:
    found = bootstrap({"m": mean_over_prompts(np.array([0.25]))}, 1)["m"]
    assert found.value == 0.25
    assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize("wrong", [{"num_resamples": 10}, {"num_prompts": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    settings = {"num_prompts": 3, **wrong}
    with pytest.raises(UserError, match="bootstrap needs"):
        bootstrap({"m": mean_over_prompts(np.ones(3))}, **settings)
