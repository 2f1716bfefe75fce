import pytest
import torch
from builders import ragged_batch, run, tokens_of

from strop.parts.advantage.credit.discount_from_end import DiscountFromEnd
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.support.errors import UserError


def test_matches_slow_loop_over_turns():
    batch = ragged_batch(2, num_turns=(2, 3))
    expected = torch.zeros(batch.size("T"), dtype=torch.float64)
    for i in range(batch.size("B")):
        running = float(batch["advantage_B"][i])
        for t in reversed(tokens_of(batch, i)):  # environment tokens between turns do not count
            expected[t] = running
            running *= 0.8
    assert len(expected.unique()) > 10
    found = run(DiscountFromEnd(0.8), batch).value
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_equals_spread_evenly_when_gamma_is_one_and_only_the_last_token_when_zero():
    batch = ragged_batch(3)
    assert run(DiscountFromEnd(1.0), batch).value.equal(run(SpreadEvenly(), batch).value)
    found = run(DiscountFromEnd(0.0), batch).value
    last = [tokens_of(batch, i)[-1] for i in range(batch.size("B"))]
    assert found[last].equal(batch["advantage_B"])
    assert float(found.abs().sum()) == pytest.approx(float(batch["advantage_B"].abs().sum()))
    with pytest.raises(UserError, match="gamma"):
        DiscountFromEnd(1.5)
