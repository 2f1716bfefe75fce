import statistics

import torch
from builders import NAN, flat_batch, members_of, ragged_batch, run, tokens_of

from strop.parts.selection.drop_median_rollout import DropMedianRollout


def test_worked_example():
    batch = flat_batch((1, 2, 1, 1, 1), reward_B=[0.1, 0.5, 0.9, 1.0, 0.2])
    selected = run(DropMedianRollout(), batch).value
    assert selected.gradient_T.tolist() == [True, False, False, True, True, True]
    assert selected.denominator_T.tolist() == selected.gradient_T.tolist()


def test_matches_slow_loop():
    batch = ragged_batch(3, groups=(3, 1, 4, 2, 6))
    expected = batch["mask_T"].clone()
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        rewards = [float(batch["reward_B"][i]) for i in members]
        dropped = members[rewards.index(statistics.median_low(rewards))]
        expected[tokens_of(batch, dropped)] = False
    assert (run(DropMedianRollout(), batch).value.gradient_T == expected).all()


def test_edges():
    # of equal rewards exactly one goes; of two the lower; a lone one goes; unscored: none goes
    rewards = [0.0, 0.0, 0.0, 0.9, 0.1, 0.4, NAN, NAN]
    batch = flat_batch((1,) * 8, groups=(0, 0, 0, 1, 1, 2, 3, 3), reward_B=rewards)
    batch = batch.set(scored_B=~batch["reward_B"].isnan())
    kept = run(DropMedianRollout(), batch).value.gradient_T
    assert kept.tolist() == [True, False, True, True, False, False, True, True]
    masked = run(DropMedianRollout(), batch.set(mask_T=torch.zeros(8).bool())).value
    assert not masked.denominator_T.any()
