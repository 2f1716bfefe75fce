import math

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, ragged_batch, rows_learning, stages

from strop import functional
from strop.method.check import check
from strop.recipes.spo_chain import spo_chain

P = torch.tensor([[0.99, 0.5, 0.95, 0.3, 0.99, 0.7, 0.99, 0.2]], dtype=torch.float64)
# The value after tokens 0 and 4 stands before tokens 1 and 5; those at other places do not count.
VALUES = torch.tensor([[0.3, 0.5, 0.9, 0.1, 0.2, 0.75, 0.4, 0.6]], dtype=torch.float64)


def chained(**params):
    algorithm = spo_chain(**params)
    batch = flat_batch((8,), reward_B=[1.0], logp_behavior_T=P[0].log(), prefix_value_T=VALUES[0])
    return stages(algorithm, batch)


def test_worked_example():
    batch = chained(interval=2)
    # before whitening 0.25 on tokens 1, 3, 5, 7: all equal, so 0 afterwards
    assert not batch["advantage_T"].any()
    assert batch["gradient_T"].tolist() == [False, True] * 4
    assert batch["denominator_T"].equal(batch["gradient_T"])
    batch = chained(interval=3)  # cuts at tokens 1 and 7: steps 0.6 - 0.5 (three tokens), 1 - 0.6
    step = [0.1, 0.1, 0.1, 0.4]
    mean = sum(step) / 4
    variance = sum((x - mean) ** 2 for x in step) / 3
    expected = [(x - mean) / math.sqrt(variance + 1e-8) for x in step]
    assert batch["advantage_T"][1::2].tolist() == pytest.approx(expected)
    assert not batch["advantage_T"][::2].any()


def test_padded_call_gives_the_same():
    given = {"logp_beh": P.log(), "prefix_value": VALUES, "rewards": torch.ones(1).double()}
    mask = torch.ones(1, 8, dtype=torch.bool)
    groups = torch.zeros(1, dtype=torch.int64)
    found = functional.advantages(
        "spo_chain", groups=groups, mask=mask, params={"interval": 3}, **given
    )
    torch.testing.assert_close(found[0], chained(interval=3)["advantage_T"])


def test_one_segment_is_a_monte_carlo_baseline():
    # The first token unlikely, one cut: the reward minus the prompt's value on every token.
    batch = ragged_batch(5, num_turns=(1, 1))
    first_T = torch.cat([torch.tensor([False]), batch["mask_T"][1:] & ~batch["mask_T"][:-1]])
    value_T = torch.where(first_T, 0.4, float("nan")).double()
    low = batch.set(prefix_value_T=value_T, logp_behavior_T=torch.full_like(value_T, -1.0))
    found = stages(spo_chain(interval=100), low)
    raw_T = torch.where(found["gradient_T"], batch["reward_B"][batch["rollout_T"]] - 0.4, 0)
    inside = found["gradient_T"]
    whitened = (raw_T - raw_T[inside].mean()) / (raw_T[inside].var() + 1e-8).sqrt()
    torch.testing.assert_close(found["advantage_T"][inside], whitened[inside])


def test_gradient_is_that_of_the_published_loss():
    algorithm = spo_chain(beta=0.02, p0=0.7, interval=2)
    batch = ragged_batch(1, groups=(3, 5, 4))
    value_T = torch.linspace(0, 1, batch.size("T"), dtype=torch.float64)
    batch = stages(algorithm, batch.set(prefix_value_T=value_T))
    rows = rows_learning(batch)
    assert len(rows) > 10
    assert all(float(batch["logp_behavior_T"][t]) < math.log(0.7) for t in rows)

    def loss_of(logp_T):
        log_ratio = (logp_T[rows] - batch["logp_old_T"][rows]).clamp(-10, 10)
        d = batch["logp_ref_T"][rows] - logp_T[rows]
        token = clipped(log_ratio.exp(), batch["advantage_T"][rows], 0.2, 0.2)
        answers = len(set(batch["rollout_T"][rows].tolist()))
        return token.mean() + 0.02 * (d.exp() - d - 1).sum() / answers

    assert_same_push(algorithm, batch, loss_of)


def test_composes():
    algorithm = spo_chain(p0=0.8, interval=3, num_continuations=4)
    check(algorithm)
    assert [use.label for use in algorithm.probes] == [
        "cut_at_unlikely_tokens", "estimate_values_by_continuing",
    ]  # fmt: skip
    assert algorithm.probes[0] == algorithm.advantage[0]
    assert algorithm.probes[1].part.num_continuations == 4
