import dataclasses

import pytest
import torch
from builders import NAN, flat_batch, ragged_batch, run, tokens_of

from strop.method.check import check
from strop.method.part import Use
from strop.parts.advantage.credit.credit_value_steps import CreditValueSteps
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.recipes.spo_chain import spo_chain
from strop.support.errors import UserError


def test_worked_example():
    values = [NAN, 0.5, NAN, NAN, NAN, 0.75, NAN, NAN]
    batch = flat_batch((8,), reward_B=[1.0], prefix_value_T=values)
    assert run(CreditValueSteps(), batch).value.tolist() == [0] + [0.25] * 7
    everywhere = batch.set(prefix_value_T=torch.tensor([0.1, 0.5, 0.2, 0.3, 0.9, 0.75, 0, 0]))
    cut_T = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0], dtype=torch.bool)
    assert run(CreditValueSteps(), everywhere.set(cut_T=cut_T)).value.tolist() == [0] + [0.25] * 7


def ragged(seed):
    batch = ragged_batch(seed, lengths=(2, 7))
    rng = torch.Generator().manual_seed(seed)
    known_T = torch.rand(batch.size("T"), generator=rng) < 0.4
    value_T = torch.rand(batch.size("T"), generator=rng, dtype=torch.float64)
    std_T = torch.rand(batch.size("T"), generator=rng, dtype=torch.float64)
    return batch.set(prefix_value_T=torch.where(known_T, value_T, NAN), value_std_T=std_T)


@pytest.mark.parametrize("normalize", [False, True])
def test_matches_slow_loop(normalize):
    batch = ragged(1)
    expected = torch.zeros(batch.size("T"), dtype=torch.float64)
    for i in range(batch.size("B")):
        if not batch["scored_B"][i]:
            continue
        end, tokens = float(batch["reward_B"][i]), tokens_of(batch, i)
        after, pending = end, []
        for t in reversed(tokens):
            pending.append(t)
            value = float(batch["prefix_value_T"][t])
            if value == value:
                scale = float(batch["value_std_T"][t]) + 0.1 if normalize else 1.0
                expected[pending] = (after - value) / scale
                after, pending = value, []
    assert len(expected.unique()) > 15
    found = run(CreditValueSteps(normalize, eps=0.1), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_value_at_the_first_token_alone_is_a_baseline():
    batch = ragged_batch(3, num_turns=(1, 1))
    first = [tokens_of(batch, i)[0] for i in range(batch.size("B"))]
    value_T = torch.full((batch.size("T"),), NAN, dtype=torch.float64)
    value_T[first] = torch.linspace(0, 1, len(first), dtype=torch.float64)
    found = run(CreditValueSteps(), batch.set(prefix_value_T=value_T)).value
    advantage_B = torch.where(batch["scored_B"], batch["reward_B"] - value_T[first], 0)
    expected = run(SpreadEvenly(), batch.set(advantage_B=advantage_B)).value
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_edges():
    batch = flat_batch((2, 3), reward_B=[1.0, 0.0], prefix_value_T=[NAN] * 5)
    assert not run(CreditValueSteps(), batch).value.any()
    one = batch.set(prefix_value_T=torch.tensor([NAN, NAN, 0.25, NAN, NAN]))
    assert run(CreditValueSteps(), one).value.tolist() == [0, 0, -0.25, -0.25, -0.25]


def test_a_spread_that_nothing_writes_is_refused_before_the_run():
    *chain, _ = spo_chain().advantage
    algorithm = dataclasses.replace(spo_chain(), advantage=(*chain, Use(CreditValueSteps(True))))
    with pytest.raises(UserError, match=r"value_std_T, which no .*; back_up_tree_values would"):
        check(algorithm)


def test_how_many_steps_there_are_and_how_far_they_go_is_logged():
    nan = float("nan")
    values = [0.5, nan, 0.25, nan, nan]
    batch = flat_batch((4, 1), prefix_value_T=values, reward_B=[1.0, 0.0])
    told = run(CreditValueSteps(), batch).metrics  # -1/4 and 3/4
    assert told == {"steps/per_rollout": 1.0, "steps/change_abs_mean": 0.5}
    none = run(CreditValueSteps(), batch.set(prefix_value_T=batch["prefix_value_T"] * nan)).metrics
    assert none == {"steps/per_rollout": 0.0, "steps/change_abs_mean": 0.0}
