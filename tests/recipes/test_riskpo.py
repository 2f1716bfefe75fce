import math
import statistics

import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, stages
from models import Lab, without_times
from runs import Runner

from strop import functional
from strop.batch import segments
from strop.parts.advantage.baseline.sum_over_bundles import SumOverBundles
from strop.parts.advantage.baseline.weigh_lower_tail import WeighLowerTail
from strop.parts.advantage.scale.share_among_bundle import ShareAmongBundle
from strop.recipes.grpo import grpo
from strop.recipes.riskpo import riskpo
from strop.support.errors import UserError

# Two prompts of four rollouts: Z = (1, 2, 0, 1)
REWARDS = torch.tensor([1.0, 1, 0, 0, 0, 1, 0, 1], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
BY_HAND = {"q_alpha": 0.6, "q_beta": 1.4, "credit": "uniform"}


def advantages(**params):
    params = {"bundle_size": 2, **params}
    return functional.advantages("riskpo", rewards=REWARDS, groups=GROUPS, params=params)


def test_worked_example():
    # levels .2, .8 and natural: mix (-.2667, 0, -2.3333, -.2667), over the deviation .8165
    found = advantages(natural=True, **BY_HAND)
    expected = [-0.3266, 0, -2.8577, -0.3266]
    assert found.tolist() == pytest.approx(expected * 2, abs=1e-4)
    plain = advantages(natural=True, normalize_std=False, **BY_HAND)
    assert plain.tolist() == pytest.approx([-0.2667, 0, -2.3333, -0.2667] * 2, abs=1e-4)
    above = advantages(normalize_std=False, **BY_HAND)
    shift = 0.8 / 0.6 / 2.5
    assert (above - plain).tolist() == pytest.approx([shift] * 8, abs=1e-5)


def test_narrow_levels_are_kept_off_zero():
    # levels 1e-6 and 2e-6: the tail is over 2e-6, and so is the middle; the two are halved
    batch = flat_batch((1,) * 2, bundle_score_B=[0.0, 1.0], slot_B=[0, 1], bundle_B=[0, 0],
                       q_alpha=0.6, q_beta=1.4)  # fmt: skip
    found = run(WeighLowerTail((1e-6, 2e-6), weight=1.0), batch).value
    assert found.tolist() == pytest.approx([-0.6 / 2e-6 / 2, 0.4 / 2e-6 / 2])


def test_a_tracker_step_of_the_worked_example():
    part = WeighLowerTail((0.2, 0.8))
    batch = flat_batch((1,) * 4, bundle_score_B=[1.0, 2.0, 0.0, 1.0], slot_B=[0, 1, 2, 3])
    after = part.update(batch["bundle_score_B"], batch["slot_B"], {"low": 0.6, "high": 1.4})
    assert after == pytest.approx({"low": 0.595, "high": 1.405})
    started = part.update(batch["bundle_score_B"], batch["slot_B"], part.init())
    assert started == pytest.approx({"low": 0.6 + 0.1 * (0.2 - 0.25), "high": 1.4 + 0.1 * 0.05})
    # two rollouts of a slot are one score; rollouts without a slot are none
    twice = flat_batch((1,) * 6, bundle_score_B=[1.0, 2.0, 0.0, 1.0, 1.0, 0.0],
                       slot_B=[0, 1, 2, 3, 0, -1])  # fmt: skip
    again = part.update(twice["bundle_score_B"], twice["slot_B"], {"low": 0.6, "high": 1.4})
    assert again == after
    none = part.update(torch.zeros(2), torch.full((2,), -1), {"low": 0.6})
    assert none == {"low": 0.6}


def test_quantiles_of_the_first_step_are_those_of_the_batch():
    expected = advantages(natural=True, **BY_HAND)
    for quantiles in ("tracked", "batch"):
        found = advantages(natural=True, credit="uniform", quantiles=quantiles)
        assert found.tolist() == pytest.approx(expected.tolist())


def test_reduces_to_the_mean_objective():
    # bundles of one, levels 0 and 1, no tail: A = (Z - max) / (1 + eps) over the deviation
    batch = ragged_batch(3, groups=(4, 3, 5))
    options = {"alpha": 0.0, "beta": 1.0, "w": 0.0, "quantiles": "batch", "natural": True}
    ours = stages(riskpo(bundle_size=1, credit="uniform", **options), batch)["advantage_B"]
    theirs = stages(grpo(), batch)["advantage_B"]
    for group in range(3):
        members = members_of(batch, group)
        rewards = [float(batch["reward_B"][i]) for i in members]
        shift = (statistics.mean(rewards) - max(rewards)) / statistics.stdev(rewards)
        for i in members:
            assert float(ours[i] - theirs[i]) == pytest.approx(shift, abs=1e-4)


@pytest.mark.parametrize("credit", ["uniform", "score", "std", "sum-mean"])
def test_credit_against_a_loop(credit):
    given = torch.Generator().manual_seed(2)
    rewards = torch.rand(12, generator=given, dtype=torch.float64).round(decimals=2)
    rewards[5] = 0
    groups = torch.arange(12) % 3  # prompts 0 and 1 make a bundle, 2 is alone in the last
    params = {"bundle_size": 2, "credit": credit, "quantiles": "batch"}
    found = functional.advantages("riskpo", rewards=rewards, groups=groups, params=params)
    expected = [0.0] * 12
    for bundle in ((0, 1), (2,)):
        slots = [[j * 3 + g for g in bundle] for j in range(4)]
        scores = [sum(float(rewards[i]) for i in slot) * 2 / len(bundle) for slot in slots]
        low, high = (float(torch.quantile(torch.tensor(scores), q)) for q in (0.2, 0.8))
        for slot, z in zip(slots, scores, strict=True):
            value = (max(z - low, 0) - max(z - high, 0)) / 0.6
            value = (1.5 * -max(low - z, 0) / 0.2 + value) / 2.5 / statistics.stdev(scores)
            prompts = {i: [float(rewards[3 * j + i % 3]) for j in range(4)] for i in slot}
            parts = {i: float(rewards[i]) - statistics.mean(prompts[i]) for i in slot}
            for i in slot:
                expected[i] = {
                    "uniform": value,
                    "score": value * (0.5 if rewards[i] > 0 else 1.5),
                    "std": value / statistics.stdev(prompts[i]),
                    "sum-mean": value * parts[i] / sum(parts.values()),
                }[credit]
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_shares_are_equal_where_the_sum_is_nothing():
    batch = flat_batch(
        (1,) * 4, groups=(0, 0, 1, 1), advantage_B=[-1.0] * 4, reward_B=[1.0, 0.0, 0.0, 1.0],
        bundle_score_B=[1.0] * 4, slot_B=[0, 1, 0, 1], bundle_B=[0] * 4,
    )  # fmt: skip
    assert run(ShareAmongBundle(normalize_std=False), batch).value.tolist() == [-0.5] * 4


def test_what_is_added_to_deviations():
    # scores 1 and 7 of the slots; prompts with rewards 0, 2 and 1, 5
    batch = flat_batch(
        (1,) * 4, groups=(0, 0, 1, 1), advantage_B=[1.0] * 4, reward_B=[0.0, 2.0, 1.0, 5.0],
        bundle_score_B=[1.0, 7.0, 1.0, 7.0], slot_B=[0, 1, 0, 1], bundle_B=[0] * 4,
    )  # fmt: skip
    found = run(ShareAmongBundle("std", eps=0.5), batch).value.tolist()
    first, second = (1 / (18**0.5 + 0.5) / (square**0.5 + 0.5) for square in (2, 8))
    assert found == pytest.approx([first, first, second, second])


def test_slots_of_ragged_and_unscored_groups():
    scored = [True, False, True, True, True, True, True]
    batch = flat_batch(
        (1,) * 7, groups=(0, 0, 0, 1, 1, 1, 2), advantage_B=[1.0, 9, 2, 3, 4, 5, 6],
        scored_B=scored, rollout_uid_B=[7, 0, 3, 5, 1, 9, 2],
    )  # fmt: skip
    score, again, slot, bundle = run(SumOverBundles(2), batch).value
    # in the order of uids: prompt 0 has 2, 1; prompt 1 has 4, 3, 5; prompt 2 counts twice
    assert score.tolist() == [4.0, 0, 6, 4, 6, 0, 12]
    assert again.equal(score)
    assert bundle.tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert slot[0] == slot[3]
    assert slot[2] == slot[4]
    assert (slot < 0).tolist() == [False, True, False, False, False, True, False]


def test_given_bundles_are_taken():
    groups = torch.tensor([0, 1, 2, 3])
    rewards = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    params = {"credit": "uniform", "q_alpha": 0.0, "q_beta": 100.0, "w": 0.0,
              "normalize_std": False}  # fmt: skip
    found = functional.advantages(
        "riskpo", rewards=rewards, groups=groups, bundles=torch.tensor([5, 9, 9, 5]), params=params
    )
    assert found.tolist() == pytest.approx([5 / 0.6] * 4, rel=1e-4)


def test_quantile_is_torchs():
    given = torch.Generator().manual_seed(0)
    values, key = torch.randn(30, generator=given), torch.randint(0, 4, (30,), generator=given)
    key[key == 2] = 1  # a key without members
    for level in (0.0, 0.2, 0.37, 1.0):
        found = segments.quantile(values, key, 4, level)
        for k in (0, 1, 3):
            assert float(found[k]) == pytest.approx(
                float(torch.quantile(values[key == k], level)), abs=1e-6
            )
        assert found[2] == 0


def test_tracked_quantiles_are_checkpointed(tmp_path):
    lab, runner = Lab.make(tmp_path / "lab"), Runner()
    raw = lab.raw(
        "riskpo(bundle_size=2, quantiles='tracked')", training={"steps": 4, "save_every": 1}
    )
    whole = runner.whole(raw, tmp_path / "whole")
    tracked = whole.state["advantage.weigh_lower_tail"]
    assert tracked.keys() == {"low", "high"}
    assert all(math.isfinite(value) for value in tracked.values())
    first = runner.start(raw, tmp_path / "part")
    seen = []

    def stop(run):
        seen.append(dict(run.state["advantage.weigh_lower_tail"]))
        run.stop_asked = run.done == 2

    runner.go(first, stop)
    assert seen[0] != seen[1]
    rest = runner.resume(tmp_path / "part")
    assert rest.state["advantage.weigh_lower_tail"] == seen[1]
    runner.go(rest)
    assert rest.state["advantage.weigh_lower_tail"] == tracked
    assert without_times(tmp_path / "part") == without_times(tmp_path / "whole")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: riskpo(quantiles="mix"), "quantiles must be one of tracked, batch"),
        (lambda: riskpo(alpha=0.8, beta=0.2), "alpha < beta"),
        (lambda: WeighLowerTail(levels=(1.0,)), "two shares"),
        (lambda: WeighLowerTail(levels=(0.0, 0.5)), "levels begin at 0, below which no tail lies"),
        (lambda: ShareAmongBundle("mean"), "must be one of"),
    ],
)
def test_wrong_options_are_named(call, words):
    with pytest.raises(UserError, match=words):
        call()


def test_the_quantiles_in_use_are_logged():
    scores = {"bundle_score_B": [0.0, 1.0, 2.0, 3.0, 4.0, 0.0], "slot_B": [0, 1, 2, 3, 4, -1]}
    batch = flat_batch((1,) * 6, bundle_B=[0] * 6, **scores)
    told = run(WeighLowerTail(levels=(0.25, 0.75)), batch).metrics
    assert told == {"tail/low": 1.0, "tail/high": 3.0}
    known = run(WeighLowerTail(), batch, state={"low": -2.0, "high": 0.5}).metrics
    assert known == {"tail/low": -2.0, "tail/high": 0.5}
