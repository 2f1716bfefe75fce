import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    pushed,
    ragged_batch,
    run,
    stages,
)

from strop.batch.batch import Batch
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.check import check
from strop.recipes.dapo import dapo
from strop.recipes.grpo import grpo


def _shaped(algorithm: Algorithm, batch: Batch) -> Batch:
    """After the reward parts that follow the verifiers."""
    for use in algorithm.reward[1:]:
        batch = parts.write(batch, use, parts.call(use, batch))
    return batch


def test_worked_example():
    # limit 16, buffer 2: length 15 costs .5; the group of equal outcomes is dropped although its
    # shaped rewards differ, and one more prompt is asked for
    batch = flat_batch(
        (15, 2, 15, 2),
        groups=(0, 0, 1, 1),
        outcome_B=[1.0, 0.0, 1.0, 1.0],
        reward_B=[1.0, 0.0, 1.0, 1.0],
    ).set(max_length=torch.tensor(16))
    algorithm = dapo()
    batch = _shaped(algorithm, batch)
    assert batch["reward_B"].tolist() == [0.5, 0.0, 0.5, 1.0]
    part = algorithm.curation[0].part
    assert run(part, batch, state=part.init()).value.ask == 1
    last = run(dapo(refill=False).curation[0].part, batch, state=part.init()).value
    assert last.keep_B.tolist() == [True, True, False, False]
    kept = stages(dapo(), batch.keep(last.keep_B))
    # (.5, 0): mean .25, unbiased deviation .353553: +-.707107
    assert kept["advantage_B"].tolist() == pytest.approx([0.707105, -0.707105], abs=1e-6)


def test_composes_and_switches():
    check(dapo(overlong_filter=True))
    assert [use.label for use in dapo().reward] == [
        "score_with_verifiers",
        "penalise_overlong_softly",
    ]
    assert len(dapo(overlong_factor=0.0).reward) == 1
    assert dapo(dynamic_sampling=False).curation == ()
    assert dapo(max_rounds=4).curation[0].part.max_rounds == 4
    assert dapo(max_rounds=4, refill=False).curation[0].part.max_rounds == 1
    assert dapo(overlong_filter=True).selection[0].label == "drop_truncated_rollouts"
    assert dapo(overlong_buffer=64).reward[1].part.buffer == 64


def test_equals_grpo_with_clip_higher_when_lengths_are_equal():
    batch = ragged_batch(1, lengths=(5, 5), num_turns=(1, 1))
    ours = dapo(dynamic_sampling=False, overlong_factor=0.0)
    base = grpo(clip_high=0.28)
    ours_push, base_push = pushed(ours, stages(ours, batch)), pushed(base, stages(base, batch))
    assert ours_push[0] == pytest.approx(base_push[0], rel=1e-12)
    torch.testing.assert_close(ours_push[1]["logp_T"], base_push[1]["logp_T"])


def test_filtered_rollouts_count_in_group_statistics_only():
    batch = ragged_batch(2)
    plain, filtered = stages(dapo(), batch), stages(dapo(overlong_filter=True), batch)
    assert (plain["advantage_B"] == filtered["advantage_B"]).all()
    cut_T = batch["truncated_B"][batch["rollout_T"]]
    assert cut_T.any()
    assert (filtered["gradient_T"] == plain["gradient_T"] & ~cut_T).all()
    assert (filtered["denominator_T"] == filtered["gradient_T"]).all()


def test_gradient_is_that_of_the_published_loss():
    algorithm = dapo()
    batch = stages(algorithm, _shaped(algorithm, ragged_batch(1, lengths=(1, 9))))

    def loss_of(logp_T):
        count = sum(len(tokens) for _, tokens in learning(batch))
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            total = total + clipped(ratio, batch["advantage_B"][i], 0.2, 0.28).sum() / count
        return total

    assert_same_push(algorithm, batch, loss_of)
