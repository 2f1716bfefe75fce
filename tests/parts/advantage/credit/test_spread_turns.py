import dataclasses

import pytest
import torch
from builders import run
from ragged import ragged_batch

from strop.method.check import check
from strop.method.part import Use
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.recipes.trloo import trloo
from strop.support.errors import UserError


def test_tokens_get_their_turns_and_their_rollouts_advantage():
    batch = ragged_batch(0)
    advantage_K = torch.arange(batch.size("K"), dtype=torch.float64)
    batch = batch.set(advantage_K=advantage_K, second_advantage_K=advantage_K.flip(0))
    found = run(SpreadTurns(2.0, second_weight=3.0, rollout_weight=0.5), batch).value
    for t in range(batch.size("T")):
        turn, rollout = int(batch["turn_T"][t]), int(batch["rollout_T"][t])
        wanted = (
            2 * turn + 3 * (batch.size("K") - 1 - turn) + 0.5 * float(batch["advantage_B"][rollout])
        )
        assert float(found[t]) == (wanted if batch["mask_T"][t] else 0)


def test_of_the_rollout_alone_is_spread_evenly():
    batch = ragged_batch(1)
    batch = batch.set(advantage_K=torch.randn(batch.size("K"), dtype=torch.float64))
    found = run(SpreadTurns(turn_weight=0.0, rollout_weight=1.0), batch).value
    torch.testing.assert_close(found, run(SpreadEvenly(), batch).value)


def test_a_second_advantage_that_nothing_writes_is_refused_before_the_run():
    *chain, _ = trloo().advantage
    algorithm = dataclasses.replace(
        trloo(), advantage=(*chain, Use(SpreadTurns(second_weight=1.0)))
    )
    with pytest.raises(UserError, match=r"second_advantage_K, which no .*; rename what one writes"):
        check(algorithm)
