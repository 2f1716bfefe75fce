"""The logged reward of a step if answers make a reward fail, or a reward fails by itself."""

import pytest
import torch
from builders import flat_batch

from strop.data.prompts import Origin
from strop.method.services import Graded
from strop.support.exits import Exit
from strop.training.learner.step_metrics import (
    Clock,
    _means,
    _rewards,
    exit_metrics,
    reward_metrics,
    source_metrics,
)
from strop.training.services.run import _beside_pending, _with_ends


@pytest.mark.parametrize("counted", [True, False])
def test_an_answer_that_breaks_its_reward_counts_in_the_mean(counted):
    # Two are judged, 1 and 0; two break the reward and count 0, or nothing; one is not to blame.
    exits = [Exit.DONE, Exit.TOKEN_LIMIT, Exit.EXCEPTION, Exit.TIMEOUT, Exit.UNREACHABLE]
    batch = flat_batch((1,) * 5, reward_B=[1.0, 0.0, 0.0, 0.0, 0.0]).set(
        exit_B=torch.tensor(exits), scored_B=torch.tensor([True, True, counted, counted, False])
    )
    assert _means(batch) == {"reward": 1 / 4, "reward_judged": 1 / 2}
    assert exit_metrics(batch) == dict.fromkeys(
        ("exit/token_limit", "exit/exception", "exit/timeout", "exit/unreachable"), 1 / 5
    )
    twice = torch.tensor([Exit.TIMEOUT, Exit.DONE, Exit.TIMEOUT, Exit.DONE, Exit.DONE])
    assert exit_metrics(batch.set(exit_B=twice)) == {"exit/timeout": 2 / 5}


def test_a_reward_that_gave_no_number_in_a_step_has_no_mean():
    rows = torch.tensor([[1.0, torch.nan], [0.5, torch.nan]])
    found = reward_metrics(flat_batch((1,) * 2).set(reward_BM=rows), ["rule", "judge"])
    assert found == {"rewards/rule/mean": 0.75, "rewards/rule/std": 0.25}


def test_demonstrations_and_replays_are_no_answers_of_the_step():
    """0: sampled, 2: a demonstration, 4: replayed; the hint (3) before an answer leaves it own."""
    batch = flat_batch((2, 2, 2, 2), reward_B=[0.0, 1.0, 1.0, 0.5])
    batch = batch.set(exit_B=torch.zeros(4, dtype=torch.int64))
    mixed = batch.set(origin_T=torch.tensor([0, 0, 2, 2, 4, 4, 3, 0]))
    assert _means(mixed) == {"reward": 1 / 4, "reward_judged": 1 / 4}
    given = batch.set(origin_T=torch.tensor([2] * 8))
    assert _means(given)["reward"] == 2.5 / 4  # a method of given answers has no others


def test_an_episode_that_was_lost_has_no_score_and_others_keep_what_their_reward_says():
    zeros = torch.zeros(4)
    ended = [Exit.TURN_LIMIT, Exit.ENVIRONMENT_CRASH, Exit.TURN_LIMIT, Exit.UNREACHABLE]
    graded = Graded(
        torch.ones(4, 1), zeros + 2, zeros == 0, {},
        torch.tensor([Exit.DONE, Exit.DONE, Exit.EXCEPTION, Exit.EXCEPTION]),
    )  # fmt: skip
    found = _with_ends(graded, flat_batch((1,) * 4).set(exit_B=torch.tensor(ended)))
    assert found.exit_B.tolist() == [*ended[:2], Exit.EXCEPTION, Exit.UNREACHABLE]
    assert found.scored_B.tolist() == [True, False, True, False]
    assert found.outcome_B.tolist() == [2, 0, 2, 0]
    assert found.reward_BM.isnan().flatten().tolist() == [False, True, False, True]


def test_what_is_pending_has_no_score_between_what_has_ended():
    two = torch.tensor([1.0, 2.0])
    ended = Graded(two[:, None], two, two > 0, {}, torch.tensor([Exit.DONE, Exit.TIMEOUT]))
    found = _beside_pending(ended, torch.tensor([False, True, False]))
    assert found.outcome_B.tolist() == [1, 0, 2]
    assert found.scored_B.tolist() == [True, False, True]
    assert found.reward_BM.nan_to_num(9).flatten().tolist() == [1, 9, 2]
    assert found.exit_B.tolist() == [Exit.DONE, Exit.PENDING, Exit.TIMEOUT]


def test_a_source_has_the_share_and_the_reward_of_its_own_rollouts():
    # uids 0 and 1 are of the first source, 2 to 4 of the second, 5 to 8 of the third
    batch = flat_batch(
        (1,) * 6, groups=[0, 0, 1, 1, 1, 2], uid_P=[1, 4, 5],
        scored_B=[True, False, True, True, True, False],
        reward_B=[0.5, 9.0, 1.0, 0.0, 0.5, 9.0],
    )  # fmt: skip
    origins = (Origin("a", 2), Origin("b", 5), Origin("c", 9), Origin("d", 12))
    assert source_metrics(batch, origins) == {
        "sources/a/share": pytest.approx(1 / 3), "sources/a/reward": 0.5,
        "sources/b/share": 1 / 2, "sources/b/reward": 0.5,
        "sources/c/share": pytest.approx(1 / 6), "sources/d/share": 0,
    }  # fmt: skip
    elsewhere = batch.set(uid_P=torch.tensor([-1, -2, -3]))  # of no source
    assert set(source_metrics(elsewhere, origins).values()) == {0}
    assert source_metrics(batch, ()) == {}


def test_groups_of_a_step_by_their_outcomes():
    # all right, all wrong, mixed, mixed with one unscored, and one in which nothing has a score
    reward_B = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0])
    scored_B = torch.tensor([True] * 8 + [False] * 3)
    batch = flat_batch(
        (1,) * 11, (0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 4), reward_B=reward_B, scored_B=scored_B,
        id_T=[*range(11)], outcome_B=reward_B,
        advantage_B=torch.where(scored_B, 2.0 * reward_B - 0.5, 9.0),
    )  # fmt: skip
    found = _rewards(batch, True)
    deviation = 0.5**0.5  # of 1 and 0, with n - 1
    assert found["reward_std"] == pytest.approx(2 * deviation / 4)
    assert found["frac_reward_zero_std"] == 2 / 4
    assert found["groups/frac_all_1"] == found["groups/frac_all_0"] == 1 / 4
    assert found["groups/frac_mixed"] == 2 / 4
    assert found["advantage/abs_mean"] == pytest.approx((4 * 1.5 + 4 * 0.5) / 8)
    # Outcomes beyond 0 and 1: the step's own best and worst count.
    wider = _rewards(batch.set(outcome_B=3 * reward_B - 1), True)
    assert wider["groups/frac_all_1"] == wider["groups/frac_all_0"] == 1 / 4


def test_seconds_of_a_stage_that_comes_twice_are_added():
    times = iter([0.0, 1.0, 3.0, 4.0, 4.5, 10.0])
    stages: list[str] = []
    clock = Clock(now=lambda: next(times), on_stage=stages.append)
    for stage in ("reward", "reward"):
        with clock(stage):
            pass
    found = clock.metrics(flat_batch((3, 2)))
    assert stages == ["reward", "reward"]
    assert found["timing_s/reward"] == 2.5
    assert found["step_time"] == 10
    assert (found["perf/tokens_per_s"], found["perf/rollouts_per_s"]) == (0.5, 0.2)
