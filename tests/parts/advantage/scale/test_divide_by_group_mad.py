import statistics

import pytest
import torch
from builders import NAN, flat_batch, members_of, ragged_batch, run

from strop.parts.advantage.scale.divide_by_group_mad import DivideByGroupMad
from strop.support.errors import UserError

CENTRED = [-0.4, 0.0, 0.4, 0.5, -0.3]  # rewards .1 .5 .9 1 .2 minus their median .5


def test_worked_example():
    # sizes 0 .3 .4 .4 .5: MAD .4; -.4 / .401 = -.9975, .5 / .401 = 1.2469, -.3 / .401 = -.7481
    batch = flat_batch((1,) * 5, advantage_B=CENTRED)
    expected = torch.tensor([-0.9975, 0.0, 0.9975, 1.2469, -0.7481], dtype=torch.float64)
    found = run(DivideByGroupMad(), batch).value
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)
    # four of five are not 0: times 5/4
    rescaled = run(DivideByGroupMad(nonzero_rescale=True), batch).value
    torch.testing.assert_close(rescaled, found * 5 / 4, rtol=1e-12, atol=0)
    # median 0, sizes 0 0 1 2 3: MAD 1; three of five are not 0: times 5/3
    thirds = flat_batch((1,) * 5, advantage_B=[-2.0, 0.0, 0.0, 1.0, 3.0])
    rescaled = run(DivideByGroupMad(eps=0.0, nonzero_rescale=True), thirds).value
    expected = [-10 / 3, 0.0, 0.0, 5 / 3, 5.0]
    assert rescaled.tolist() == pytest.approx(expected, rel=1e-12)
    # a group that was meant to have 9: times 9/4
    rescaled = run(DivideByGroupMad(nonzero_rescale=True, group_size=9), batch).value
    torch.testing.assert_close(rescaled, found * 9 / 4)


def test_matches_slow_loop():
    batch = ragged_batch(2, groups=(3, 1, 4, 2, 7))
    expected = torch.zeros_like(batch["advantage_B"])
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        values = [float(batch["advantage_B"][i]) for i in members]
        middle = statistics.median_low(values)
        mad = statistics.median_low([abs(value - middle) for value in values])
        for i, value in zip(members, values, strict=True):
            expected[i] = value / (max(mad, 0.3) + 1e-3)
    found = run(DivideByGroupMad(floor=0.3), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_mad_of_zero_gives_way_to_the_standard_deviation():
    # (1, 0, 0): sizes 0 0 1, MAD 0; mean 1/3, std sqrt((4/9 + 1/9 + 1/9) / 2) = .57735
    batch = flat_batch((1,) * 4, groups=(0, 0, 0, 1), advantage_B=[1.0, 0.0, 0.0, 0.0])
    result = run(DivideByGroupMad(), batch)
    assert result.value[:3].tolist() == pytest.approx([1 / 0.57835, 0.0, 0.0], rel=1e-5)
    assert result.metrics["advantage/mad_is_zero"] == 0.5  # one group of two
    alone = flat_batch((1,) * 3, advantage_B=[1.0, 0.0, 0.0])
    assert run(DivideByGroupMad(), alone).metrics["advantage/mad_is_zero"] == 1.0
    floored = run(DivideByGroupMad(floor=0.1), batch).value
    assert float(floored[0]) == pytest.approx(1 / 0.101)
    as_source = run(DivideByGroupMad(floor=1e-12), batch).value
    assert float(as_source[0]) == pytest.approx(1000.0)


def test_edges():
    values = [0.6, 0.0, 0.0, NAN, NAN]
    batch = flat_batch((1,) * 5, groups=(0, 1, 1, 1, 2), advantage_B=values)
    batch = batch.set(scored_B=~batch["advantage_B"].isnan())
    result = run(DivideByGroupMad(eps=0.5, floor=1.0, nonzero_rescale=True), batch)
    torch.testing.assert_close(result.value.tolist(), [0.4, 0.0, 0.0, 0.0, 0.0])
    assert result.metrics["advantage/mad_is_zero"] == 0.5  # the single one; the unscored is none
    for field in ("eps", "floor", "group_size"):
        with pytest.raises(UserError, match=field):
            DivideByGroupMad(**{field: -1})
