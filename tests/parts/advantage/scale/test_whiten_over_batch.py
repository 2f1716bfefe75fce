import statistics

import pytest
import torch
from builders import flat_batch, ragged_batch, run

from strop.parts.advantage.scale.whiten_over_batch import WhitenOverBatch
from strop.support.errors import UserError


def test_worked_example():
    # mean 3, squares 4 + 1 + 1 + 16 = 22, deviation (n - 1) sqrt(22 / 3) = 2.7080128
    batch = flat_batch((1, 2, 1, 1), (0, 0, 1, 2), advantage_B=[1.0, 2.0, 2.0, 7.0])
    expected = [-0.7385489, -0.3692745, -0.3692745, 1.4770979]
    assert run(WhitenOverBatch(eps=0.0), batch).value.tolist() == pytest.approx(expected)
    # a deviation up to the floor is not divided by
    assert run(WhitenOverBatch(floor=3.0), batch).value.tolist() == [-2.0, -1.0, -1.0, 4.0]


def test_matches_slow_loop():
    batch = ragged_batch(2)
    scored = batch["scored_B"].nonzero().squeeze(1).tolist()
    values = [float(batch["advantage_B"][i]) for i in scored]
    mean, std = statistics.mean(values), statistics.stdev(values)
    found = run(WhitenOverBatch(eps=0.1), batch).value
    for i, value in zip(scored, values, strict=True):
        assert found[i].item() == pytest.approx((value - mean) / (std + 0.1), rel=1e-9)
    assert found[~batch["scored_B"]].tolist() == [0.0]


def test_edges():
    equal = flat_batch((1, 1, 1), advantage_B=[0.3] * 3)
    assert run(WhitenOverBatch(), equal).value.tolist() == [0.0] * 3
    alone = flat_batch((1, 1), advantage_B=[5.0, 9.0], scored_B=torch.tensor([True, False]))
    assert run(WhitenOverBatch(), alone).value.tolist() == [0.0, 0.0]
    with pytest.raises(UserError, match=r"whiten_over_batch\.floor"):
        WhitenOverBatch(floor=-1.0)


def test_the_deviation_is_logged():
    told = run(WhitenOverBatch(), flat_batch((1,) * 4, advantage_B=[1.0, 0.0, 0.0, 1.0])).metrics
    assert told == {"advantage/batch_std": pytest.approx(3**-0.5)}
