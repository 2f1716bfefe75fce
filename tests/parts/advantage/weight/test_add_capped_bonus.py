import math

import pytest
import torch
from builders import flat_batch, ragged_batch, run

from strop.method.part import Use
from strop.method.part import call as called
from strop.parts.advantage.weight.add_capped_bonus import AddCappedBonus
from strop.support.errors import UserError

# bonuses 0.4 * 0.5 and 0.4 * 3, the second held at half the advantage's size
BATCH = flat_batch((2, 2), advantage_T=[1.0, 1, -1, -1], entropy_old_T=[0.5, 3, 0.5, 3])


def test_worked_example():
    assert run(AddCappedBonus(), BATCH).value.tolist() == pytest.approx([1.2, 1.5, -0.8, -0.5])
    wide = AddCappedBonus(scale=1.0, cap=0.5)
    assert run(wide, BATCH).value.tolist() == pytest.approx([1.5, 3.0, -0.5, 1.0])


def test_of_log_probabilities_it_is_their_share_of_the_entropy():
    part = Use(AddCappedBonus(of_logp=True), columns=(("bonus_T", "logp_old_T"),))
    batch = BATCH.set(logp_old_T=torch.tensor([-1.0, -2, -1, -2]).double())
    one, two = 0.4 * math.exp(-1), 0.4 * 2 * math.exp(-2)
    assert called(part, batch).value.tolist() == pytest.approx([1 + one, 1 + two, one - 1, two - 1])


def test_matches_slow_loop():
    batch = ragged_batch(3)
    found = run(AddCappedBonus(0.7, 3.0), batch).value
    for t in range(batch.size("T")):
        a, h = float(batch["advantage_T"][t]), float(batch["entropy_old_T"][t])
        expected = a + min(0.7 * h, abs(a) / 3) if batch["mask_T"][t] else 0.0
        assert found[t].item() == pytest.approx(expected, rel=1e-9)


def test_edges():
    flat = BATCH.set(advantage_T=torch.zeros(4).double())
    assert run(AddCappedBonus(), flat).value.tolist() == [0.0] * 4
    for part in (AddCappedBonus(scale=0.0), AddCappedBonus(cap=math.inf)):
        assert run(part, BATCH).value.equal(BATCH["advantage_T"])
    below = BATCH.set(entropy_old_T=torch.full((4,), -1.0).double())
    assert run(AddCappedBonus(), below).value.equal(BATCH["advantage_T"])
    with pytest.raises(UserError, match="cap"):
        AddCappedBonus(cap=0.0)


def test_the_bonus_and_how_often_it_is_cut_are_logged():
    batch = flat_batch((2,), advantage_T=[1.0, -0.1], entropy_old_T=[1.0, 1.0])  # 0.4; 0.4, or 0.05
    told = run(AddCappedBonus(), batch).metrics
    assert told == {"bonus/mean": pytest.approx(0.225), "bonus/frac_capped": 0.5}
