import math

import pytest
import torch
from builders import (
    NAN,
    assert_same_push,
    flat_batch,
    pushed,
    ragged_batch,
    rows_learning,
    run,
    stages,
    tokens_of,
)

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.parts.loss.bound.gate_by_sequence_weight import GateBySequenceWeight
from strop.recipes.gpg import gpg
from strop.recipes.vespo import vespo
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("w", "good", "bad"),
    [(0.5, 1.120422, 0.339785), (1.0, 1.0, 1.0), (1.5, 0.502043, 1.241593),
     (2.0, 0.199148, 1.082682)],
)  # fmt: skip
def test_worked_example_through_the_padded_call(w, good, bad):
    """The gate of the product: half of log w comes from each of two tokens."""
    given = {
        "logp": torch.full((1, 2), -1.0 + math.log(w) / 2).double(),
        "logp_old": torch.full((1, 2), -1.0).double(),
        "mask": torch.ones(1, 2),
    }
    for advantage, phi in ((1.0, good), (-1.0, bad)):
        given["advantages"] = torch.tensor([advantage]).double()
        weights = functional.token_weights("vespo", **given)[0]
        assert weights.tolist() == pytest.approx([advantage * phi / 2] * 2, abs=1e-6)
        loss, metrics = functional.policy_loss("vespo", **given)
        assert float(loss) == pytest.approx(-advantage * phi * float(given["logp"][0, 0]), abs=1e-6)
        assert metrics["vespo/weight_mean"] == pytest.approx(phi, abs=1e-6)


@pytest.mark.parametrize("engine_cap", [0.0, 1.1])
def test_gradient_is_that_of_the_published_loss(engine_cap):
    algorithm = vespo(engine_cap=engine_cap)
    check(algorithm)
    given = ragged_batch(1)
    gap_T = given["logp_old_T"] - given["logp_behavior_T"]
    void_T = torch.arange(given.size("T")) % 4 == 0
    given = given.set(logp_behavior_T=torch.where(void_T, NAN, given["logp_behavior_T"]))
    batch = stages(algorithm, given)
    rows = rows_learning(batch)

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for t in rows:
            mates = tokens_of(batch, int(batch["rollout_T"][t]))
            lw = (logp_T - batch["logp_old_T"])[mates].sum()
            if engine_cap:
                known = [s for s in mates if not void_T[s]]
                lw = lw + gap_T[known].exp().clamp(max=engine_cap).log().sum()
            lw = lw.clamp(math.log(1e-8), 20)
            k, rate = (2, 3) if batch["advantage_T"][t] >= 0 else (3, 2)
            phi = (rate + k * lw - rate * lw.exp()).exp().detach()
            total = total - phi * batch["advantage_T"][t] * logp_T[t]
        return total / len(rows)

    assert_same_push(algorithm, batch, loss_of)


def test_on_fresh_answers_it_is_the_policy_gradient():
    batch = stages(vespo(), ragged_batch(2))
    batch = batch.set(logp_old_T=batch["logp_T"])
    torch.testing.assert_close(
        pushed(vespo(), batch)[1]["logp_T"], pushed(gpg(), batch)[1]["logp_T"]
    )


def test_far_answers_count_nothing():
    for gap in (100.0, -100.0):
        batch = flat_batch((2,), logp_T=[-1.0] * 2, logp_old_T=[-1.0 - gap] * 2,
                           advantage_T=[1.0] * 2)  # fmt: skip
        found = pushed(vespo(), batch)[1]["logp_T"]
        assert torch.isfinite(found).all()
        assert float(found.abs().max()) < 1e-12


def test_engine_weights_are_inside_the_gate_alone():
    both = reading.replace_stage(vespo(engine_cap=3.0), "correction", "weigh_by_engine_ratio")
    with pytest.raises(UserError, match="applied twice"):
        check(both)
    check(reading.replace_stage(vespo(), "correction", "weigh_by_engine_ratio"))
    with pytest.raises(UserError, match="2 numbers"):
        reading.chain("gate_by_sequence_weight(good=[1.0])")


def test_a_cap_below_one_is_refused():
    moved = ragged_batch(1)
    moved = moved.set(log_ratio_T=moved["advantage_T"])
    for cap in (0.0, 1.0, 2.0):
        run(GateBySequenceWeight(engine_cap=cap), moved)
    with pytest.raises(
        UserError, match=r"engine_cap must be at least 1, or 0 for none, it is 0\.5"
    ):
        run(GateBySequenceWeight(engine_cap=0.5), moved)
