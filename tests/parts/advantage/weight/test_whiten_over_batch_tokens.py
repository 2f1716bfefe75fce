import statistics

import pytest
import torch
from builders import flat_batch, ragged_batch, run

from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.support.errors import UserError


def test_worked_example():
    # rewards 1, 0, 0, 1 on 2, 4, 4, 2 tokens: mean 4/12, unbiased variance 8/3/11 = .2424
    batch = flat_batch((2, 4, 4, 2), advantage_T=[1.0] * 2 + [0.0] * 8 + [1.0] * 2)
    found = run(WhitenOverBatchTokens(), batch).value.tolist()
    assert found[:3] == pytest.approx([1.3540, 1.3540, -0.6770], abs=5e-5)
    assert found[-1] == found[0]


def test_matches_slow_loop():
    batch = ragged_batch(1)
    noise_T = torch.randn(batch.size("T"), dtype=torch.float64)
    batch = batch.set(advantage_T=torch.where(batch["mask_T"], noise_T, float("nan")))
    rows = batch["gradient_T"].nonzero().squeeze(1).tolist()  # policy tokens of scored rollouts
    values = [float(noise_T[t]) for t in rows]
    mean, variance = statistics.mean(values), statistics.variance(values)
    expected = torch.zeros_like(noise_T)
    for t, value in zip(rows, values, strict=True):
        expected[t] = (value - mean) / (variance + 0.3) ** 0.5
    found = run(WhitenOverBatchTokens(eps=0.3), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_edges():
    part = WhitenOverBatchTokens(eps=0.0)
    assert run(part, flat_batch((3,), advantage_T=[0.1] * 3)).value.tolist() == [0, 0, 0]
    assert run(part, flat_batch((1,), advantage_T=[5.0])).value.tolist() == [0]
    batch = flat_batch((1, 1, 1), advantage_T=[1.0, 3.0, 100.0])
    batch = batch.set(scored_B=torch.tensor([True, True, False]))
    assert run(part, batch).value.tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5, 0])
    with pytest.raises(UserError, match="eps"):
        WhitenOverBatchTokens(eps=-1.0)


def test_the_deviation_is_logged():
    told = run(WhitenOverBatchTokens(), flat_batch((1, 3), advantage_T=[1.0, 0, 0, 0])).metrics
    assert told == {"advantage/batch_std": pytest.approx(0.5)}
