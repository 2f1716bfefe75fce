"""Recorded calls become a batch, in which a rollout counts once, however it was cut."""

from typing import Any

import pytest
import torch
from builders import pushed, stages
from fakes.services import FakeLog, FakeTexts
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.algorithm import Algorithm
from strop.method.part import Draw
from strop.parts.rollout._recorded import NO_REWARD, drift_of, recorded
from strop.parts.rollout.base import COLUMNS, TURN_COLUMNS
from strop.recipes.grpo import grpo
from strop.support.exits import Exit
from strop.traces.records import Rollout, TurnRecord
from strop.training.services.episodes import with_episodes


def turn(prompt: list[int], output: list[int], **others: Any) -> TurnRecord:
    logps = tuple(-0.1 * token for token in output)
    return TurnRecord(tuple(prompt), tuple(output), **{"output_log_probs": logps, **others})


def batch_of(*rollouts: Rollout, log: Any = None, **others: Any) -> Batch:
    draws, seeds = [Draw(7, len(rollouts))], range(40, 40 + len(rollouts))
    return recorded(draws, rollouts, [*seeds], log or FakeLog(), **others)


def test_calls_that_follow_are_one_growing_context() -> None:
    first = turn([1, 2], [3, 4], versions=(5, 6), reward=0.25)
    batch = batch_of(Rollout((first, turn([1, 2, 3, 4, 9], [8], valid=False)), reward=1.0))
    assert batch["id_T"].tolist() == [1, 2, 3, 4, 9, 8]
    assert batch["mask_T"].tolist() == [False, False, True, True, False, True]
    assert batch["origin_T"].tolist() == [1, 1, 0, 0, 1, 0]
    assert batch["version_T"].tolist() == [0, 0, 5, 6, 0, -1]
    torch.testing.assert_close(
        batch["logp_behavior_T"], torch.tensor([0, 0, -0.3, -0.4, 0, -0.8]), rtol=0, atol=1e-7
    )
    assert batch.contexts()[1] == 1
    assert batch["reward_K"].tolist() == [0.25, 1]
    assert batch["done_K"].tolist() == [False, True]
    assert batch["valid_K"].tolist() == [True, False]
    assert batch["rollout_uid_B"].tolist() == batch["episode_B"].tolist() == [40]
    assert batch["exit_B"].tolist() == [Exit.DONE]
    written = {*COLUMNS, *TURN_COLUMNS, "sequence_T", "player_B", "role_B", "episode_B"}
    assert {*batch.columns} == written


def test_a_fork_is_a_context_of_the_same_rollout() -> None:
    calls = (turn([1], [2, 3]), turn([5], [6]), turn([1, 2, 3, 4], [7]))
    batch = batch_of(Rollout(calls, 1.0), Rollout((turn([1], [3]),), 0.0))
    assert batch["id_T"].tolist() == [1, 2, 3, 4, 7, 5, 6, 1, 3]
    assert batch["sequence_T"].tolist() == [1, 1, 1, 1, 1, 2, 2, 3, 3]
    assert batch["rollout_K"].tolist() == [0, 0, 0, 1]
    assert batch["index_K"].tolist() == [0, 1, 2, 0]
    # the whole rollout's reward is on its last turn here, so that no turn is without what follows
    assert batch["reward_K"].tolist() == [0, 0, 1, 0]
    graded = with_episodes(batch, None)
    assert graded.outcome_B.tolist() == [1, 0]


def test_a_realigned_tail_is_text_that_was_given() -> None:
    batch = batch_of(Rollout((turn([1], [2, 3, 4]), turn([1, 2, 8, 9], [5])), 1.0))
    assert batch["id_T"].tolist() == [1, 2, 8, 9, 5]
    assert batch["mask_T"].tolist() == [False, True, False, False, True]
    forked = batch_of(Rollout((turn([1], [2, 3, 4]), turn([1, 2, 8], [5])), 1.0), fork_threshold=2)
    assert forked["id_T"].tolist() == [1, 2, 3, 4, 1, 2, 8, 5]


def test_tokens_that_are_not_to_be_learned_from_are_given() -> None:
    masked = turn([1], [2, 3, 4], output_mask=(True, False, True), versions=(3, 3, 3))
    batch = batch_of(Rollout((masked,), 1.0))
    assert batch["mask_T"].tolist() == [False, True, False, True]
    assert batch["origin_T"].tolist() == [1, 0, 1, 0]
    assert batch["version_T"].tolist() == [0, 3, 0, 3]
    assert batch["logp_behavior_T"][2] == 0
    assert batch["length_B"].tolist() == [2]


@pytest.mark.parametrize(
    ("reward", "told", "ended", "exit"),
    [
        (0.5, Exit.DONE, "stop", Exit.DONE),
        (0.5, Exit.DONE, "length", Exit.TOKEN_LIMIT),
        (0.5, Exit.TURN_LIMIT, "length", Exit.TURN_LIMIT),
        (None, Exit.DONE, "stop", Exit.DECLARED),
        (None, Exit.TURN_LIMIT, "stop", Exit.DECLARED),
        (0.5, Exit.ENVIRONMENT_CRASH, "stop", Exit.ENVIRONMENT_CRASH),
        (None, Exit.UNREACHABLE, "stop", Exit.UNREACHABLE),
    ],
)
def test_how_it_ended(reward: float | None, told: Exit, ended: str, exit: Exit) -> None:
    log = FakeLog()
    batch = batch_of(Rollout((turn([1], [2], ended=ended),), reward, exit=told), log=log)
    assert batch["exit_B"].tolist() == [exit]
    assert batch["truncated_B"].tolist() == [ended == "length"]
    assert batch["done_K"].tolist() == [told is Exit.DONE and ended == "stop"]
    why = NO_REWARD if exit is Exit.DECLARED else exit.label
    assert log.logged == ({} if exit.is_policys else {"exit_why": {40: why}})


def test_what_is_in_no_column_is_in_the_table() -> None:
    log, texts = FakeLog(), FakeTexts(pieces={1: "a", 2: "b", 3: "c"})
    calls = (turn([1], [2]), turn([1, 2, 3], [1], reward=0.5))
    one = Rollout(calls, 1.0, rewards={"right": 1.0}, why="late")
    batch_of(one, Rollout(calls[:1], 0.0), log=log, texts=texts)
    assert log.logged["recorded_right"] == {40: 1.0}
    assert log.logged["exit_why"] == {40: "late"}
    assert log.logged["turns"][40] == [
        {"observation": "a", "action": "b", "reward": 0.0, "valid": True},
        {"observation": "c", "action": "a", "reward": 1.5, "valid": True},
    ]


def test_equal_prompts_are_one_state_and_equal_outputs_one_action() -> None:
    batch = batch_of(
        Rollout((turn([1], [2]),), 1.0), Rollout((turn([1], [3]), turn([4], [2])), 0.0)
    )
    state, action = batch["state_K"].tolist(), batch["action_K"].tolist()
    assert state[0] == state[1] != state[2]
    assert action[0] == action[2] != action[1]


def test_metrics_of_how_calls_followed() -> None:
    calls = (turn([1], [2, 3]), turn([1, 2, 3, 4], [7]), turn([5], [6]))
    assert drift_of([Rollout(calls, 1.0)]) == {
        "turns/contexts": 2, "turns/clean": 0.5, "turns/realign": 0, "turns/fork": 0.5,
        "turns/drift_tokens": 2.5,
    }  # fmt: skip


# The policy of these tests sees only the last token, so that a context may start anywhere.
START = torch.linspace(-1, 1, 144, dtype=torch.float64).reshape(12, 12).sin()


def logps(table_VV: Tensor, batch: Batch) -> Tensor:
    """Of every token under a policy that sees the one before it."""
    before_T = batch["id_T"].roll(1)
    return table_VV[before_T].log_softmax(-1).gather(1, batch["id_T"][:, None]).squeeze(1)


CUTS = {
    "one": [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 2, 3, 4, 5, 6, 8], [7, 9])],
    "two": [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([2, 8], [7, 9])],
    "three": [([1, 2], [3, 4]), ([4, 5], [6]), ([2, 8], [7, 9])],
}


def gradient_of(cut: str, algorithm: Algorithm) -> Tensor:
    """Of the loss of a group, whose first rollout was recorded in so many contexts."""
    first = Rollout(tuple(turn(*call) for call in CUTS[cut]), 1.0)
    others = [
        Rollout((turn([1, 2], [5, 3, 4]),), 0.0),
        Rollout((turn([1, 2], [6]), turn([1, 2, 6, 3], [4, 4])), 0.5),
        Rollout((turn([1, 2], [3]),), None),
    ]
    batch = recorded([Draw(7, 4)], [first, *others], range(4), FakeLog())
    graded = with_episodes(batch, None)
    scored_B = batch["exit_B"] < Exit.ENVIRONMENT_CRASH
    table_VV = START.clone().requires_grad_()
    logp_T = logps(table_VV, batch)
    old_T = logp_T.detach()
    batch = batch.set(
        reward_B=graded.outcome_B.double(), outcome_B=graded.outcome_B.double(),
        scored_B=scored_B, logp_T=old_T, logp_old_T=old_T, logp_ref_T=old_T - 0.2,
        step=torch.tensor(1), num_steps=torch.tensor(2), max_length=torch.tensor(8),
    )  # fmt: skip
    _, push, _ = pushed(algorithm, stages(algorithm, batch))
    (found,) = torch.autograd.grad(logp_T, table_VV, push["logp_T"].nan_to_num())
    return found


@pytest.mark.parametrize("cut", ["two", "three"])
@pytest.mark.parametrize("average", ["seq-mean-token-mean", "token-mean"])
def test_a_rollout_counts_once_in_however_many_contexts(cut: str, average: str) -> None:
    algorithm = grpo(beta=0.04, aggregation=average)
    whole, parted = gradient_of("one", algorithm), gradient_of(cut, algorithm)
    assert whole.abs().max() > 0.01
    torch.testing.assert_close(parted, whole, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(parted.sum(), whole.sum(), rtol=1e-12, atol=1e-12)
