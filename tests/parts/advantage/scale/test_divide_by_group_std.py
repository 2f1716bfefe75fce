import statistics

import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.support.errors import UserError


def test_worked_example():
    # unbiased deviation of (.5, -.5, -.5, .5) = sqrt(4 * .25 / 3) = .57735; .5 / .57735 = .866
    batch = flat_batch((1,) * 4, advantage_B=[0.5, -0.5, -0.5, 0.5])
    found = run(DivideByGroupStd(eps=0.0), batch).value
    expected = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64) * 3**0.5 / 2
    torch.testing.assert_close(found, expected)
    assert run(DivideByGroupStd(eps=0.0, std="biased"), batch).value.tolist() == [1, -1, -1, 1]


def test_matches_slow_loop():
    batch = ragged_batch(1)
    expected = torch.zeros_like(batch["advantage_B"])
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        values = [float(batch["advantage_B"][i]) for i in members]
        scale = statistics.stdev(values) if len(values) > 1 else 1.0
        for i, value in zip(members, values, strict=True):
            expected[i] = value / (scale + 1e-2)
    found = run(DivideByGroupStd(eps=1e-2), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_edges():
    batch = flat_batch((1,) * 4, groups=(0, 1, 1, 2), advantage_B=[3.0, 0.0, 0.0, 5.0])
    batch = batch.set(scored_B=torch.tensor([True, True, True, False]))
    assert run(DivideByGroupStd(eps=0.5), batch).value.tolist() == [2, 0, 0, 0]
    alike = batch.set(advantage_B=torch.full((4,), -2.0).double())  # nobody centred them
    assert run(DivideByGroupStd(eps=0.5), alike).value[1:3].tolist() == [-4, -4]
    assert run(DivideByGroupStd(eps=0.0), alike).value[1:3].tolist() == [0, 0]
    with pytest.raises(UserError, match="eps"):
        DivideByGroupStd(eps=-1.0)
    with pytest.raises(UserError, match="std"):
        DivideByGroupStd(std="mean")


@pytest.mark.parametrize(("std", "variance"), [("unbiased", 6.0), ("biased", 4.5)])
def test_imagined_members_are_in_the_deviation(std, variance):
    # 3 and 1 with two at -2: squares 9 + 1 + 4 + 4 of four members
    part = DivideByGroupStd(eps=0.0, std=std, num_imagined=2)
    found = run(part, flat_batch((1,) * 2, advantage_B=[3.0, 1.0])).value
    assert found.tolist() == pytest.approx([3 / variance**0.5, 1 / variance**0.5])


def test_factor_of_the_deviation():
    batch = flat_batch((1,) * 5, groups=(0, 0, 0, 0, 1), advantage_B=[0.5, -0.5, -0.5, 0.5, 6.0])
    found = run(DivideByGroupStd(eps=0.5, std="biased", factor=3.0), batch).value
    assert found.tolist() == pytest.approx([0.25, -0.25, -0.25, 0.25, 6 / 3.5])
