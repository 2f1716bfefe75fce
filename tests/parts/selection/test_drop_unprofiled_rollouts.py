"""Which right programs are dropped, for rollouts and, with other columns, for turns."""

import math

import pytest
import torch
from builders import flat_batch, run

from strop.method import part as parts
from strop.method.part import Use
from strop.parts.selection.drop_unprofiled_rollouts import DropUnprofiledRollouts

OF_TURNS = (
    *((f"{name}_B", f"{name}_K") for name in ("correct", "profiled", "decoy", "speedup")),
    ("rollout_uid_B", "key_K"),
    ("rollout_T", "turn_T"),
)


def test_turns_leave_as_rollouts_of_one_turn_would():
    num = 60
    share = (torch.arange(num) / num).double()
    columns = {"correct": [True] * num, "decoy": [n % 7 == 0 for n in range(num)],
               "profiled": share, "speedup": share + 1}  # fmt: skip
    uids = torch.arange(num) * 2**40
    alone = flat_batch((1,) * num, rollout_uid_B=uids, **{f"{n}_B": c for n, c in columns.items()})
    turns = flat_batch(
        (3,) * (num // 3), turn_T=torch.arange(num), key_K=uids,
        rollout_K=torch.arange(num // 3).repeat_interleave(3),
        **{f"{name}_K": column for name, column in columns.items()},
    )  # fmt: skip
    part = DropUnprofiledRollouts(tau=0.2, width=0.6, enough_speedup=1.9)

    def kept(use, batch):
        found = parts.call(use, batch, rng=torch.Generator().manual_seed(3))
        return found.value.gradient_T, found.metrics

    one, metrics = kept(Use(part), alone)
    other, same = kept(Use(part, OF_TURNS), turns)
    assert one.equal(other)
    assert metrics == same
    assert 10 < int(one.sum()) < 50
    judged = num - len(range(0, num, 7))  # all but the decoys
    gone = num - int(one.sum())
    assert metrics["profile/dropped_fraction"] == pytest.approx(gone / judged)
    mean = sum(n / num for n in range(num) if n % 7) / judged
    assert metrics["profile/mean"] == pytest.approx(mean)


def filtered(seed=0, part=None, **columns):
    given = {
        "profiled_B": [0.35] * 40, "correct_B": [True] * 40, "decoy_B": [False] * 40,
        "rollout_uid_B": torch.arange(40) * 2**57, "speedup_B": [1.0] * 40, **columns,
    }  # fmt: skip
    batch = flat_batch((1,) * 40, **given)
    rng = torch.Generator().manual_seed(seed)
    return batch, run(part or DropUnprofiledRollouts(), batch, rng=rng).value.gradient_T


def test_a_draw_is_of_the_rollout_and_of_the_seed():
    batch, kept = filtered()
    assert 5 < int(kept.sum()) < 35
    assert filtered()[1].equal(kept)
    assert not filtered(seed=1)[1].equal(kept)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(4))
    rng = torch.Generator().manual_seed(0)
    assert run(DropUnprofiledRollouts(), batch.take(order), rng=rng).value[0].equal(kept[order])


def test_wrong_decoy_and_fast_programs_stay():
    lazy = {"profiled_B": [0.0] * 40}
    assert not filtered(**lazy)[1].any()
    assert filtered(**lazy, correct_B=[False] * 40)[1].all()
    assert filtered(**lazy, decoy_B=[True] * 40)[1].all()
    speedup = torch.arange(40) / 10.0
    fast = DropUnprofiledRollouts(enough_speedup=1.2)
    assert filtered(part=fast, **lazy, speedup_B=speedup)[1].equal(speedup.double() >= 1.2)
    assert filtered(part=DropUnprofiledRollouts(tau=-math.inf), **lazy)[1].all()
    hard = filtered(part=DropUnprofiledRollouts(width=0.0), profiled_B=[0.3, 0.29] * 20)[1]
    assert hard.tolist() == [True, False] * 20
    share_B = torch.tensor([0.7] * 40)  # in single precision, where it is below 0.7
    part, batch = DropUnprofiledRollouts(tau=0.7, width=0.0), filtered()[0].set(profiled_B=share_B)
    assert run(part, batch, rng=torch.Generator()).value.gradient_T.all()
