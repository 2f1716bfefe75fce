import json
import math
from dataclasses import replace

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from fakes.engine import TableEngine, by_last_token
from fakes.services import over_table
from models import Lab
from runs import Runner

from strop import functional
from strop.method.check import check
from strop.method.part import Draw, Use
from strop.method.part import update as updated
from strop.parts.advantage.baseline.subtract_tracked_success import SubtractTrackedSuccess
from strop.parts.advantage.weight.add_capped_bonus import AddCappedBonus
from strop.parts.sampling.estimate_success_first import EstimateSuccessFirst
from strop.recipes._base import average
from strop.recipes.grpo import grpo
from strop.recipes.mssr import mssr
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics
from strop.training.record import checkpoint

PART = SubtractTrackedSuccess()


def step(state, outcomes, uids, first=None, part=PART, kl=0.0):
    """One step of one rollout of one token a prompt; (V taken away, state after it)."""
    num = len(outcomes)
    batch = flat_batch(
        [1] * num, range(num), advantage_B=outcomes, outcome_B=outcomes, uid_P=list(uids),
        logp_old_T=[-1.0] * num, logp_ref_T=[-1.0 + kl] * num,
    )  # fmt: skip
    if first is not None:
        batch = batch.set(first_success_B=torch.tensor(first))
    raw_B, tracked_B, whole_B, drift_B = run(part, batch, state=state).value
    torch.testing.assert_close(raw_B, batch["advantage_B"] - tracked_B)
    batch = batch.set(tracked_B=tracked_B, whole_B=whole_B, drift_B=drift_B)
    return tracked_B.tolist(), updated(Use(part), batch, state)


def test_worked_example_of_the_tracker():
    # v = 1: a = 8, b = 0; a failure with rho 0.9175: a = 7.34, b = 1, V = 0.8801
    value, state = step(PART.init(), [0.0], [7], [1.0])
    assert value == [1.0]
    assert (state["right"].item(), state["wrong"].item()) == pytest.approx((7.34, 1.0))
    value, after = step(state, [1.0, 1.0], [9, 7])
    assert value == pytest.approx([0.5, 7.34 / 8.34])
    rho = PART.rho([0.0])
    assert after["uid"].tolist() == [7, 9]
    assert after["right"].tolist() == pytest.approx([7.34 * rho + 1, 4 * rho + 1])
    assert after["wrong"].tolist() == pytest.approx([rho, 4 * rho])


def test_state_survives_a_checkpoint(tmp_path):
    _, state = step(PART.init(), [1.0, 0.0], [3, 1], kl=0.1)
    torch.save({"state": state}, tmp_path / "trainer.pt")
    again = checkpoint.read(tmp_path)["state"]
    assert step(again, [1.0], [1])[0] == step(state, [1.0], [1])[0]


def test_what_is_left_of_the_past():
    assert PART.rho([]) == pytest.approx(0.9175)
    assert PART.rho([0.0]) == pytest.approx(0.96)
    assert PART.rho([0.004, 0.006]) == pytest.approx(0.9175)
    assert PART.rho([0.5]) == pytest.approx(0.875)
    code = SubtractTrackedSuccess(source_form="code")
    assert code.rho([0.0]) == pytest.approx(0.875)
    assert code.rho([0.0099]) == pytest.approx(0.875 + 0.99 * 0.085)
    assert code.rho([0.011]) == pytest.approx(0.875)
    short = SubtractTrackedSuccess(window=2)
    state = short.init()
    for kl in (0.1, 0.2, 0.3):
        _, state = step(state, [1.0], [0], part=short, kl=kl)
    expected = [torch.tensor(kl).double().exp().item() - kl - 1 for kl in (0.2, 0.3)]
    assert state["kl"] == pytest.approx(expected, rel=1e-6)


def test_the_code_counts_the_steps_own_kl():
    # KL .004 of a target of .01: rho .875 + .4 * .085 = .909, and 8 * .909; before any KL .9175
    for form, kept in (("code", 7.272), ("paper", 7.34)):
        part = SubtractTrackedSuccess(source_form=form)
        state = part.update(
            torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([True]), torch.tensor([0]),
            torch.tensor([7]), torch.tensor([0.004]), torch.tensor([1]), part.init(),
        )  # fmt: skip
        assert state["right"].item() == pytest.approx(kept)
        assert state["kl"] == pytest.approx([0.004])


def test_a_long_rollout_weighs_no_more_in_the_kl():
    # .3 over three tokens and .05 over one: a token .1 and .05, not .35 / 4; one unscored
    state = PART.update(
        torch.ones(3), torch.ones(3), torch.tensor([True, True, False]), torch.arange(3),
        torch.arange(3), torch.tensor([0.3, 0.05, 0.0]), torch.tensor([3, 1, 9]), PART.init(),
    )  # fmt: skip
    assert state["kl"] == pytest.approx([0.075])


def test_a_small_kl_is_measured_in_single_precision():
    """Gaps of 1e-4 nats, as before much training: a sum below 0 would mean that none is known."""
    rng = torch.Generator().manual_seed(0)
    old_T = -2 * torch.rand(2000, generator=rng)
    ref_T = old_T + 1e-4 * torch.randn(2000, generator=rng)
    batch = flat_batch((1000, 1000), advantage_B=[1.0, 0.0], outcome_B=[1.0, 0.0])
    batch = batch.set(logp_old_T=old_T, logp_ref_T=ref_T)
    gap_T = (ref_T - old_T).double()
    expected = (gap_T.square() / 2 + gap_T**3 / 6).view(2, 1000).sum(1)
    assert run(PART, batch).value[3].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_without_a_reference_no_kl_is_known():
    batch = flat_batch((2,), advantage_B=[1.0], outcome_B=[1.0])
    raw_B, tracked_B, whole_B, drift_B = run(PART, batch, state=PART.init()).value
    assert drift_B.item() < 0
    batch = batch.set(tracked_B=tracked_B, whole_B=whole_B, drift_B=drift_B)
    after = updated(Use(PART), batch, PART.init())
    assert (raw_B.item(), after["kl"], after["uid"].tolist()) == (0.5, [], [0])


def test_worked_example_of_the_advantage():
    # scores 1, 0, 1, 0 over V .5, .5, .9, .1: raw .5, -.5, .1, -.1, deviation .36056
    batch = flat_batch(
        (1,) * 4, range(4), reward_B=[1.0, 0, 1, 0], first_success_B=[0.5, 0.5, 0.9, 0.1],
        entropy_old_T=[0.0] * 4,
    )  # fmt: skip
    found = stages(mssr(), batch)["advantage_T"]
    assert found.tolist() == pytest.approx([1.3868, -1.3868, 0.2774, -0.2774], abs=6e-5)
    alone = stages(mssr(), batch.take(torch.tensor([2])))["advantage_T"]
    assert alone.item() == pytest.approx(0.1)


def test_worked_example_through_the_padded_call():
    found = functional.advantages(
        "mssr", rewards=torch.tensor([1.0, 0, 1, 0]).double(), groups=torch.arange(4),
        mask=torch.ones(4, 1).bool(), entropy=torch.zeros(4, 1).double(),
        first_success=torch.tensor([0.5, 0.5, 0.9, 0.1]).double(),
    )  # fmt: skip
    expected = [1.3868, -1.3868, 0.2774, -0.2774]
    assert found.flatten().tolist() == pytest.approx(expected, abs=6e-5)


def test_the_codes_bonus_is_of_log_probabilities():
    expected = Use(AddCappedBonus(of_logp=True), columns=(("bonus_T", "logp_old_T"),))
    found = mssr(variant="code").advantage[-1]
    assert (found.part, found.columns) == (expected.part, expected.columns)


def test_reductions():
    """alpha 0 is the recipe without the bonus; several rollouts and the bonus stay apart."""
    assert mssr(alpha=0.0).advantage == mssr().advantage[:-1]
    batch = ragged_batch(1).set(first_success_B=torch.full((10,), 0.3).double())
    flat = stages(mssr(kappa=1e9), batch)["advantage_T"]
    plain = stages(mssr(alpha=0.0), batch)["advantage_T"]
    torch.testing.assert_close(flat, plain, atol=1e-7, rtol=1e-7)
    # the same bonus behind grpo's advantages is entropy shaping without a tracker
    shaped = replace(grpo(), advantage=(*grpo().advantage, Use(AddCappedBonus())))
    theirs, base = stages(shaped, batch)["advantage_T"], stages(grpo(), batch)["advantage_T"]
    assert (theirs >= base).all()
    assert (theirs.sign() == base.sign()).all()


def test_success_before_training():
    # from 1 the answer is 0 (end) or 1 0: right if it holds a 1; prompt 6 always fails
    engine = TableEngine(by_last_token({1: (0.5, 0.5, 0), 2: (1, 0, 0)}))
    services = over_table(engine, {5: (1,), 6: (2,)}, lambda ids: float(1 in ids), answer_tokens=9)
    part, rng = EstimateSuccessFirst(400), torch.Generator().manual_seed(0)
    draws = (Draw(6, 2), Draw(5, 1))
    found = run(part, None, draws=draws, pool=(5, 6), services=services, rng=rng, state=part.init())
    told = [draw.columns["first_success_B"] for draw in found.value]
    assert told[0] == 0.0
    assert told[1] == pytest.approx(0.5, abs=0.1)
    assert len(services.sampling.asked) == 800
    again = run(part, None, draws=draws, pool=(5, 6), services=services, rng=rng, state=found.state)
    assert again.value == found.value
    assert len(services.sampling.asked) == 800


def test_prompts_begin_with_what_the_first_policy_could(tmp_path):
    lab = Lab.make(tmp_path)
    rows = [{"prompt": f"{n}+1:", "answer": str(n)} for n in range(6)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw("mssr(n_0=2)", reward="even")
    raw["algorithm"] = {"rollout.max_tokens": 6, "sampling.num_prompts": 4}
    Runner().whole(raw, tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    assert lines[0]["services/tokens_sampled"] > 0
    assert "services/tokens_sampled" not in lines[1]
    state = checkpoint.read(checkpoint.newest(tmp_path / "run" / "checkpoints"))["state"]
    success = state["sampling.estimate_success_first"]["success"]
    assert len(success) == 4  # six rows, two for validation
    assert set(success.values()) <= {0.0, 0.5, 1.0}
    assert state["advantage.subtract_tracked_success"]["uid"].shape == (4,)


def test_composes():
    check(mssr(variant="code", n_0=0))
    with pytest.raises(UserError, match="two shares below 1, rising"):
        SubtractTrackedSuccess(forget=(0.96, 0.875))


def test_its_average_is_the_released_codes():
    assert mssr().terms[0].average == average("token-mean")


def test_the_tracked_success_that_is_subtracted_is_logged():
    batch = flat_batch((1,) * 3, advantage_B=[1.0, 0.0, 1.0],
                       first_success_B=[0.2, 0.9, math.nan])  # fmt: skip
    told = run(SubtractTrackedSuccess(), batch).metrics  # an unknown one is 1/2
    assert told == {"tracked/baseline": pytest.approx(1.6 / 3)}
