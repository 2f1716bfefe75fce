import math

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, learning, pushed, ragged_batch, stages

from strop.method.check import check
from strop.method.schedule import Cosine, Linear, Points
from strop.recipes.entrocraft import entrocraft
from strop.recipes.grpo import grpo


def _example(entropy):
    return flat_batch((1, 2, 1, 2), reward_B=[1.0, 1.0, 1.0, -1.0], entropy_old_T=[entropy] * 6)


@pytest.mark.parametrize(
    ("entropy", "kept"),
    [(0.2, [False] * 4 + [True] * 2), (0.5, [True] * 4 + [False] * 2), (0.4, [True] * 6)],
)
def test_worked_example(entropy, kept):
    # half way the band 0.6 -> 0.1, 0.7 -> 0.2 is (.35, .45); advantages (.5, .5, .5, -1.5)
    algorithm = entrocraft(h_low=Linear(0.6, 0.1), h_high=Linear(0.7, 0.2), eps=0.0)
    batch = stages(algorithm, _example(entropy), step=50, num_steps=100)
    assert batch["advantage_B"].tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5])
    assert batch["gradient_T"].tolist() == kept
    assert batch["denominator_T"].tolist() == kept


def test_composes_with_schedules_and_numbers():
    check(entrocraft(h_low=0.5, h_high=0.5))
    now = entrocraft(h_low=Cosine(0.4, 0.1), h_high=0.5).at_step(10, 10).selection[0].part
    assert (now.h_low, now.h_high) == (pytest.approx(0.1), 0.5)
    drawn = Points(((0.0, 0.6), (0.5, 0.3), (1.0, 0.3)))
    assert entrocraft(h_low=drawn).at_step(5, 20).selection[0].part.h_low == pytest.approx(0.45)
    default = entrocraft().at_step(1, 2).selection[0].part
    assert (default.h_low, default.h_high) == pytest.approx((0.5, 0.6))


def test_an_infinite_band_is_the_base_with_its_aggregation():
    batch = ragged_batch(1)
    ours = entrocraft(h_low=-math.inf, h_high=math.inf)
    base = grpo(aggregation="prompt-mean", beta=1e-3)
    ours_push = pushed(ours, stages(ours, batch))
    base_push = pushed(base, stages(base, batch))
    assert ours_push[0] == pytest.approx(base_push[0], rel=1e-12)
    torch.testing.assert_close(ours_push[1]["logp_T"], base_push[1]["logp_T"])


@pytest.mark.parametrize(("band", "sign"), [((9.0, 10.0), -1), ((-2.0, -1.0), 1)])
def test_gradient_is_that_of_the_published_loss(band, sign):
    algorithm = entrocraft(h_low=band[0], h_high=band[1])
    batch = stages(algorithm, ragged_batch(1, groups=(3, 1, 4, 3)))
    kept = {}
    for i in range(batch.size("B")):
        if batch["scored_B"][i] and sign * float(batch["advantage_B"][i]) >= 0:
            kept.setdefault(int(batch["group_B"][i]), []).append(i)
    assert sorted(i for rows in kept.values() for i in rows) == [i for i, _ in learning(batch)]
    assert len({len(rows) for rows in kept.values()}) > 1

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, tokens in learning(batch):
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            d = batch["logp_ref_T"][tokens] - logp_T[tokens]
            token = clipped(ratio, batch["advantage_B"][i], 0.2, 0.2) + 1e-3 * (d.exp() - d - 1)
            group = kept[int(batch["group_B"][i])]
            total = total + token.sum() / (len(group) * len(kept))
        return total

    assert_same_push(algorithm, batch, loss_of)
