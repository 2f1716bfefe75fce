import math

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, pushed, ragged_batch, run, stages
from fakes.engine import TableEngine, by_last_token
from fakes.services import over_table, rolled_out
from models import Lab
from runs import Runner

from strop.method.check import check
from strop.method.part import Draw
from strop.parts.loss.penalty.cover_reference import CoverReference
from strop.parts.rollout.sample_and_replay import SampleAndReplay
from strop.parts.sampling.rehearse_mastered_prompts import RehearseMasteredPrompts
from strop.recipes.dph_rl import dph_rl
from strop.recipes.grpo import grpo
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics
from strop.training.record import checkpoint

U = [0.25, 0.5, 1.0, 2.0]
VALUES = {
    "forward": [0.6363, 0.1931, 0.0, 0.3069],
    "js": [0.2409, 0.0849, 0.0, 0.1699],
    "alpha": [0.4383, 0.1603, 0.0, 0.3681],
}
EXPECTED = {"forward": 0.0920, "js": 0.0438, "alpha": 0.0862}


def cost(divergence, log_u):
    batch = flat_batch((len(log_u),), logp_T=[x - 3 for x in log_u], logp_ref_T=[-3.0] * len(log_u))
    return -run(CoverReference(divergence), batch).value


@pytest.mark.parametrize("divergence", VALUES)
def test_worked_example(divergence):
    found = cost(divergence, [math.log(u) for u in U])
    assert found.tolist() == pytest.approx(VALUES[divergence], abs=6e-5)
    policy, reference = (0.7, 0.2, 0.1), (0.5, 0.3, 0.2)
    ratios = [math.log(p / q) for p, q in zip(policy, reference, strict=True)]
    mean = sum(q * f for q, f in zip(reference, cost(divergence, ratios).tolist(), strict=True))
    assert mean == pytest.approx(EXPECTED[divergence], abs=6e-5)


def test_means_are_the_divergences():
    policy, reference = (0.7, 0.2, 0.1), (0.5, 0.3, 0.2)

    def kl(one, other):
        return sum(a * math.log(a / b) for a, b in zip(one, other, strict=True))

    middle = [(a + b) / 2 for a, b in zip(policy, reference, strict=True)]
    assert kl(reference, policy) == pytest.approx(EXPECTED["forward"], abs=6e-5)
    twice = kl(policy, middle) + kl(reference, middle)
    assert twice == pytest.approx(EXPECTED["js"], abs=6e-5)


def test_bounds_and_void():
    for divergence in VALUES:
        assert (cost(divergence, [-30.0, 30.0]).abs() <= 10).all()
    batch = flat_batch((2,), logp_T=[-1.0, -2.0], logp_ref_T=[math.nan, -1.0])
    leaf = batch["logp_T"].clone().requires_grad_()
    value = run(CoverReference(), batch.set(logp_T=leaf)).value
    assert value[0] == 0
    value.sum().backward()
    assert leaf.grad[0] == 0
    assert leaf.grad[1] == pytest.approx(1 - math.exp(-1))
    with pytest.raises(UserError, match="between 0 and 1"):
        CoverReference("alpha", 1.0)


@pytest.mark.parametrize("divergence", VALUES)
def test_gradient_is_that_of_the_published_loss(divergence):
    algorithm = dph_rl(divergence=divergence, eta=0.3)
    batch = ragged_batch(3)
    replay_T = batch["mask_T"] & (batch["rollout_T"] % 3 == 1)
    batch = batch.set(
        origin_T=torch.where(replay_T, 4, batch["origin_T"]),
        logp_stored_T=torch.where(replay_T, batch["logp_ref_T"], math.nan),
    )
    batch = stages(algorithm, batch)
    own = (batch["gradient_T"] & ~replay_T).nonzero().squeeze(1)
    stored = (batch["gradient_T"] & replay_T).nonzero().squeeze(1)

    def loss_of(logp_T):
        ratio = (logp_T[own] - batch["logp_old_T"][own]).exp()
        explore = clipped(ratio, batch["advantage_T"][own], 0.2, 0.28).mean()
        u = (logp_T[stored] - batch["logp_stored_T"][stored]).exp()
        if divergence == "forward":
            f = u - u.log() - 1
        elif divergence == "js":
            f = u * u.log() - (u + 1) * ((u + 1) / 2).log()
        else:
            f = (u**0.8 - 0.8 * u - 0.2) / (0.2 * -0.8)
        return explore + 0.3 * f.mean()

    assert_same_push(algorithm, batch, loss_of)


def test_worked_example_through_the_whole_loss():
    """A row that is replayed beside one that explores, whose advantage is 0."""
    for divergence, values in VALUES.items():
        batch = flat_batch(
            (4, 2), logp_T=[math.log(u) - 4 for u in U] + [-1.0] * 2, logp_old_T=[-1.0] * 6,
            advantage_T=[1.0] * 4 + [0.0] * 2, origin_T=[4] * 4 + [0] * 2,
            logp_stored_T=[-4.0] * 4 + [math.nan] * 2,
        )  # fmt: skip
        loss, _, metrics = pushed(dph_rl(divergence=divergence, eta=0.5), batch)
        assert loss == pytest.approx(0.5 * sum(values) / 4, abs=6e-5)
        assert metrics["rehearsal/divergence"] == pytest.approx(sum(values) / 4, abs=6e-5)


def test_is_grpo_without_the_divergence():
    assert dph_rl(eta=0.0) == grpo(clip_high=0.28, aggregation="token-mean")
    check(dph_rl(divergence="alpha", alpha=0.5))
    assert "logp_ref_T" not in dph_rl().reads()  # no reference model is kept


# From 1 the answer is 0; from 2 it is 1 0 or 0, half each.
TABLE = {1: (1.0, 0, 0), 2: (0.5, 0.5, 0)}


def store(prompts, outcome, **fields):
    """The part, its services and its first answer for draws of all prompts."""
    engine = TableEngine(by_last_token(TABLE))
    services = over_table(engine, prompts, outcome, answer_tokens=9)
    services.scoring.columns = lambda batch, names: {
        "logp_T": torch.where(batch["mask_T"], -batch["id_T"].float() - 0.25, 0.0)
    }
    part, rng = RehearseMasteredPrompts(**fields), torch.Generator().manual_seed(0)
    draws = tuple(Draw(uid, 4, probability=0.5) for uid in prompts)

    def call(state, **more):
        return run(part, None, draws=draws, pool=tuple(prompts), services=services, rng=rng,
                   state=state, **more)  # fmt: skip

    return part, services, call


def test_the_store_is_made_once_and_handed_on():
    # prompts 1 and 5 always give the right answer 0; prompt 2 gives it half of the time
    part, services, call = store({7: (1,), 8: (2,), 9: (1,)}, lambda ids: float(list(ids) == [0]))
    first = call(part.init())
    assert len(services.sampling.asked) == 3 * 8 + 2
    assert first.metrics == {"rehearsal/mastered": pytest.approx(2 / 3), "rehearsal/stored": 2.0}
    assert [draw.uid for draw in first.value[:3]] == [8, 8, 8]
    assert [draw.probability for draw in first.value[:3]] == [None] * 3  # the sampler's is another
    assert sorted(draw.uid for draw in first.value[3:]) == [7, 9]
    for draw in first.value[3:]:
        assert draw.num_rollouts == 1
        assert draw.columns == {"ids": (0,), "logp": (-0.25,)}
    second = call(first.state)
    assert len(services.sampling.asked) == 3 * 8 + 2
    assert sorted(draw.uid for draw in second.value[3:]) == [7, 9]
    assert len(call(first.state, num_wanted=3).value) == 3  # a refill rehearses nothing
    fewer = store({7: (1,), 8: (2,), 9: (1,)}, lambda ids: float(list(ids) == [0]), num_stored=1)
    state, seen = fewer[0].init(), []
    for _ in range(4):
        found = fewer[2](state)
        state = found.state
        seen += [draw.uid for draw in found.value[3:]]
    assert sorted(seen) == [7, 7, 9, 9]
    assert set(seen[:2]) == {7, 9}


def test_only_right_answers_of_mastered_prompts_are_stored():
    # of each prompt two answers, right half of the time: one masters it, the other is stored
    prompts = dict.fromkeys(range(20), (2,))
    _, _, call = store(prompts, lambda ids: float(list(ids) == [0]), num_trials=1)
    found = call(RehearseMasteredPrompts().init())
    stored = [draw.columns["ids"] for draw in found.value[20:]]
    assert set(stored) == {(0,)}
    assert 0 < len(stored) < 20 * found.metrics["rehearsal/mastered"] < 20
    assert found.metrics["rehearsal/stored"] == len(stored)


def test_stored_answers_stand_beside_fresh_ones():
    engine = TableEngine(by_last_token(TABLE))
    services = over_table(engine, {7: (1,), 9: (2,)}, answer_tokens=9)
    draws = (Draw(9, 1, {"ids": (1, 0), "logp": (-0.25, -0.5)}), Draw(7, 2))
    batch = rolled_out(
        SampleAndReplay(), draws, engine, services, torch.Generator().manual_seed(0)
    ).batch
    assert batch["id_T"].tolist() == [2, 1, 0, 1, 0, 1, 0]
    assert batch["origin_T"].tolist() == [1, 4, 4, 1, 0, 1, 0]
    assert batch["version_T"][batch["mask_T"]].tolist() == [-1, -1, 0, 0]  # no weights of this run
    stored = batch["logp_stored_T"].tolist()
    assert stored[1:3] == [-0.25, -0.5]
    assert all(map(math.isnan, stored[:1] + stored[3:]))
    for name in ("logp_behavior_T", "logp_sampler_T", "entropy_behavior_T"):
        assert batch[name][batch["mask_T"]].isnan().tolist() == [True, True, False, False]


def test_nothing_and_everything_mastered():
    part, _, call = store({8: (2,)}, lambda ids: float(list(ids) == [0]), num_trials=40)
    found = call(part.init())
    assert [draw.uid for draw in found.value] == [8]
    assert found.metrics["rehearsal/mastered"] == 0.0
    part, _, call = store({7: (1,)}, lambda ids: 1.0)
    with pytest.raises(UserError, match="all 1 prompts are solved 8 times of 8"):
        call(part.init())


REWARD = """
def known(prompts, completions, **columns):
    return [1.0 if prompt[0] in "0123" else float(len(text) % 2)
            for prompt, text in zip(prompts, completions)]
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab.make(tmp_path_factory.mktemp("lab"))
    lab.rewards.write_text(REWARD, encoding="utf-8")
    return lab


def trained(lab, folder, steps=4, budget=4096, **more):
    training = {"steps": steps, "save_every": 2, "rollouts_every": 0, "token_budget": budget}
    raw = lab.raw("dph_rl(num_trials=4, num_stored=2, eta=0.2)", reward="known", training=training)
    raw["algorithm"]["sampling.num_prompts"] = 4
    Runner().whole(raw, folder)
    return [line for line in read_metrics(folder) if line["step"] > 0]


def test_trains_and_remembers(lab, tmp_path):
    lines = trained(lab, tmp_path / "run")
    assert lines[0]["rehearsal/stored"] >= 2
    assert abs(lines[0]["rehearsal/divergence"]) < 1e-6  # the stored numbers are the trainer's own
    assert lines[-1]["rehearsal/divergence"] > 1e-6
    assert lines[0]["num_rollouts"] == 4 * 4 + 2
    assert lines[0]["services/tokens_sampled"] > 0
    assert "services/tokens_sampled" not in lines[1]
    state = checkpoint.read(checkpoint.newest(tmp_path / "run" / "checkpoints"))["state"]
    kept = state["sampling.rehearse_mastered_prompts"]
    assert kept["uid"].shape[0] == lines[0]["rehearsal/stored"]
    assert kept["id"].shape == kept["logp"].shape == (int(kept["size"].sum()),)
    small = trained(lab, tmp_path / "small", budget=32)
    for one, other in zip(small, lines, strict=True):
        for name in ("loss", "loss/rehearsal", "grad_norm", "rehearsal/divergence"):
            assert one[name] == pytest.approx(other[name], rel=2e-3, abs=2e-5), name


def test_a_resumed_run_goes_on_with_the_same_store(lab, tmp_path):
    whole = trained(lab, tmp_path / "whole")
    trained(lab, tmp_path / "half", steps=2)
    runner = Runner()
    runner.go(runner.resume(tmp_path / "half", training={"steps": 4}))
    again = [line for line in read_metrics(tmp_path / "half") if line["step"] > 2]
    assert [line["step"] for line in again] == [3, 4]
    for one, other in zip(again, whole[2:], strict=True):
        for name in ("loss", "reward", "rehearsal/divergence", "rehearsal/stored", "num_tokens"):
            assert one[name] == other[name], name
