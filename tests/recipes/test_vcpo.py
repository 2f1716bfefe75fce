import math
from functools import partial

import pytest
import torch
from builders import (
    assert_same_push,
    flat_batch,
    members_of,
    pushed,
    ragged_batch,
    rows_learning,
    run,
    stages,
    tokens_of,
)
from fakes.services import FakeScoring, FakeServices
from models import Lab
from runs import Runner

from strop import functional
from strop.method import part as parts
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_least_variance_mean import SubtractLeastVarianceMean
from strop.parts.probe.measure_rollout_gradients import MeasureRolloutGradients
from strop.parts.rate.shrink_step_by_sample_size import ShrinkStepBySampleSize
from strop.recipes.grpo import grpo
from strop.recipes.rollout_correction import rollout_correction_reinforce
from strop.recipes.vcpo import vcpo
from strop.training.learner.adapters import Lora
from strop.training.learner.models import load
from strop.training.learner.policy import Policy
from strop.training.services import scoring
from strop.training.services.scoring import gradient_norms

# w = 1, .5, 2, .5 and |g|^2 = 1, 4, 1, 2: W = 1, 1, 4, .5, b = 1.5 / 6.5, sigma = .5
WORKED = {
    "rewards": torch.tensor([1.0, 0, 0, 1]).double(),
    "groups": torch.zeros(4, dtype=torch.int64),
    "sequence_is_weight": torch.tensor([1.0, 0.5, 2, 0.5]).double(),
    "grad_norm": torch.tensor([1.0, 2, 1, math.sqrt(2)]).double(),
}


def test_worked_example_through_the_padded_call():
    found = functional.advantages("vcpo", **WORKED)
    expected = [1.538462, -0.461538, -0.461538, 1.538462]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    plain = functional.advantages("vcpo", params={"normalize_std": False}, **WORKED)
    assert (WORKED["rewards"] - plain).tolist() == pytest.approx([0.230769] * 4, abs=1e-6)
    # the released code: W has min(w, 8)^2 once more: 1, .25, 16, .125
    code = functional.advantages("vcpo", params={"normalize_std": False, "variant": "code"},
                                 **WORKED)  # fmt: skip
    assert float(1 - code[0]) == pytest.approx(1.125 / 17.375)


@pytest.mark.parametrize(
    ("base", "rule", "scale"),
    [(1.0, "sqrt", 0.852803), (0.55, "sqrt", 1.0), (1.0, "linear", 0.727273)],
)
def test_the_step_of_the_worked_example(base, rule, scale):
    batch = flat_batch((1,) * 5, sequence_is_weight_B=[1.0, 0.5, 2.0, 0.5, 90.0])
    batch = batch.set(scored_B=torch.tensor([True] * 4 + [False]))
    found = run(ShrinkStepBySampleSize(base, rule), batch)
    assert found.value == pytest.approx(scale, abs=1e-6)
    assert found.metrics["ess/ratio"] == pytest.approx(16 / 5.5 / 4)
    nobody = batch.set(scored_B=torch.zeros(5, dtype=torch.bool))
    assert run(ShrinkStepBySampleSize(), nobody).value == 1.0
    small = batch.set(sequence_is_weight_B=batch["sequence_is_weight_B"] * 1e-9)
    assert run(ShrinkStepBySampleSize(base, rule), small).value == pytest.approx(scale, abs=1e-6)


def weighed(batch, seed=0):
    rng = torch.Generator().manual_seed(seed)
    num = batch.size("B")
    return batch.set(
        sequence_is_weight_B=torch.rand(num, generator=rng).double() + 0.2,
        grad_norm_B=torch.rand(num, generator=rng).double() + 0.1,
    )


@pytest.mark.parametrize("winsor", [0.0, 0.05, 0.25])
def test_mean_matches_a_slow_loop(winsor):
    batch = weighed(ragged_batch(1, groups=(4, 1, 5, 3), unscored=(6,)))
    batch = batch.set(advantage_B=batch["reward_B"])
    found = run(SubtractLeastVarianceMean(winsor=winsor), batch).value
    w, n = batch["sequence_is_weight_B"], batch["grad_norm_B"]
    for group in range(batch.size("P")):
        members = sorted(members_of(batch, group), key=lambda i: float(batch["reward_B"][i]))
        weights = [float((w[i] * n[i]) ** 2) for i in members]
        rewards = [float(batch["reward_B"][i]) for i in members]
        bounds = []
        for share in (winsor, 1 - winsor):
            until, at = 0.0, len(members) - 1
            for j, weight in enumerate(weights):
                until += weight
                if until >= share * sum(weights) * (1 - 1e-12):
                    at = j
                    break
            bounds.append(rewards[at])
        held = [min(max(r, bounds[0]), bounds[1]) for r in rewards]
        mean = sum(r * x for r, x in zip(held, weights, strict=True)) / (sum(weights) + 1e-8)
        for i, reward in zip(members, rewards, strict=True):
            expected = 0.0 if len(members) == 1 else reward - mean
            assert float(found[i]) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert float(found[6]) == 0


def test_a_reward_at_which_the_share_is_just_met_is_the_bound():
    # a quarter of four equal weights is met at 0, three quarters at 2: held 0, 1, 2, 2
    ones = [1.0] * 4
    batch = flat_batch((1,) * 4, advantage_B=[0.0, 1.0, 2.0, 3.0], sequence_is_weight_B=ones,
                       grad_norm_B=ones)  # fmt: skip
    found = run(SubtractLeastVarianceMean(winsor=0.25), batch).value
    assert found.tolist() == pytest.approx([-1.25, -0.25, 0.75, 1.75])


def test_the_bounds_of_a_group_do_not_depend_on_the_weights_of_others():
    # rewards 1, 1, 0, 1 of equal weight: no bound but 0 and 1, mean .75, beside a group of e^18
    batch = flat_batch((1,) * 8, (0,) * 4 + (1,) * 4, advantage_B=[1.0, 1.0, 0.0, 1.0] * 2,
                       sequence_is_weight_B=[math.exp(18)] * 4 + [1.0] * 4,
                       grad_norm_B=[1.0] * 8)  # fmt: skip
    found = run(SubtractLeastVarianceMean(winsor=0.05), batch).value
    assert found.tolist() == pytest.approx([0.25, 0.25, -0.75, 0.25] * 2)


def test_equal_rewards_teach_exactly_nothing():
    batch = weighed(flat_batch((1,) * 4, (0, 0, 1, 1), reward_B=[0.3, 0.3, 0.7, 0.7]))
    batch = batch.set(advantage_B=batch["reward_B"])
    assert run(SubtractLeastVarianceMean(), batch).value.tolist() == [0.0] * 4
    assert stages(vcpo(), batch)["advantage_B"].tolist() == [0.0] * 4


def test_on_fresh_answers_with_equal_norms_it_is_grpo_without_a_clip():
    batch = ragged_batch(2, groups=(4, 3, 5))
    one_B = torch.ones(batch.size("B"), dtype=torch.float64)
    batch = batch.set(logp_old_T=batch["logp_T"], logp_behavior_T=batch["logp_T"],
                      sequence_is_weight_B=one_B, grad_norm_B=one_B)  # fmt: skip
    plain = grpo(std="biased", eps=0.0, aggregation="token-mean")
    ours, theirs = stages(vcpo(eps=0.0), batch), stages(plain, batch)
    torch.testing.assert_close(ours["advantage_T"], theirs["advantage_T"])
    torch.testing.assert_close(
        pushed(vcpo(), ours)[1]["logp_T"], pushed(plain, theirs)[1]["logp_T"]
    )


def test_gradient_is_that_of_the_published_loss():
    algorithm = vcpo(cap=1.2)
    batch = stages(algorithm, weighed(ragged_batch(1, groups=(4, 4))))
    batch = batch.set(logp_old_T=batch["logp_T"])  # one update
    rows = rows_learning(batch)
    gap_T = batch["logp_T"] - batch["logp_behavior_T"]
    rollouts = [int(batch["rollout_T"][t]) for t in rows]
    weights = [gap_T[tokens_of(batch, i)].sum().exp() for i in rollouts]
    assert float(max(weights)) > 1.2 > float(min(weights))
    weight_N = torch.stack(weights).clamp(max=1.2)

    def loss_of(logp_T):
        return -(weight_N * batch["advantage_T"][rows] * logp_T[rows]).mean()

    assert_same_push(algorithm, batch, loss_of)
    score = rollout_correction_reinforce(unit="sequence", high=1.2)
    torch.testing.assert_close(
        pushed(algorithm, batch)[1]["logp_T"], pushed(score, batch)[1]["logp_T"]
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.make(tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize("most_bytes", [0, 500_000, 2**29])
def test_norms_are_those_of_the_gradient_of_the_summed_log_probability(
    lab, most_bytes, monkeypatch
):
    """Of the scored rollouts of groups with unlike rewards; others get 0.

    One by one, a few at a time, and all at once.
    """
    monkeypatch.setattr(scoring, "MOST_BYTES", most_bytes)
    model = load(str(lab.model), dtype="float64").model
    policy = Policy(model)
    batch = ragged_batch(4, groups=(3, 1, 4), unscored=(5,), num_turns=(1, 1))
    batch = batch.set(id_T=batch["id_T"] % 20, reward_B=batch["reward_B"].nan_to_num())
    batch = batch.set(reward_B=torch.where(batch["group_B"] == 0, 0.5, batch["reward_B"]))
    logp_T = policy.columns(batch, ("logp_T",), 1.3)["logp_T"].double()
    void_T = batch["logp_behavior_T"].clone()
    void_T[tokens_of(batch, int((batch["group_B"] == 2).nonzero()[0]))[0]] = math.nan  # adds 0
    batch = batch.set(logp_old_T=logp_T, logp_behavior_T=void_T)
    services = FakeServices(
        scoring=FakeScoring(norms=partial(gradient_norms, policy, temperature=1.3))
    )
    use = Use(MeasureRolloutGradients())
    found = parts.write(batch, use, parts.call(use, batch, services=services))
    learnt = (batch["group_B"] == 2) & batch["scored_B"]
    assert ((found["grad_norm_B"] > 0) == learnt).all()
    for i in learnt.nonzero().squeeze(1).tolist():
        ids = batch["id_T"][batch["rollout_T"] == i]
        own = batch["mask_T"][batch["rollout_T"] == i]
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1] / 1.3
        logp = logits.log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
        grads = torch.autograd.grad(logp[own[1:]].sum(), list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        assert float(found["grad_norm_B"][i]) == pytest.approx(norm, rel=1e-6)
        gap = logp_T - batch["logp_behavior_T"]
        weight = float(gap[tokens_of(batch, i)].nansum().exp())
        assert float(found["sequence_is_weight_B"][i]) == pytest.approx(weight, rel=1e-6)
    assert all(p.grad is None for p in model.parameters())


def test_a_stale_run_takes_smaller_steps(lab, tmp_path):
    runner = Runner()
    raw = lab.raw("vcpo", reward="even", engine={"staleness": 2},
                  training={"steps": 5, "lr": 3e-2, "save_every": 0})  # fmt: skip
    run_ = runner.start(raw, tmp_path / "run")
    lines = runner.go(run_).seen
    assert lines[0]["ess/lr_scale"] == pytest.approx(1.0, abs=1e-4)
    assert lines[0]["learning_rate"] == pytest.approx(3e-2, rel=1e-3)
    assert lines[-1]["ess/lr_scale"] < 0.99
    assert lines[-1]["learning_rate"] == pytest.approx(3e-2 * lines[-1]["ess/lr_scale"])
    assert lines[-1]["correction/ess"] == pytest.approx(lines[-1]["ess/ratio"], abs=1e-3)


def test_norms_with_adapters_and_of_a_model_that_cannot_be_mapped_over(lab, monkeypatch):
    """Adapters alone count, and a model that cannot be mapped over goes one by one."""
    model = load(str(lab.model), dtype="float64", lora=Lora(2), seed=1).model
    policy = Policy(model)
    batch = ragged_batch(5, groups=(4,), unscored=())
    batch = batch.set(id_T=batch["id_T"] % 20)
    together = gradient_norms(policy, batch, 1.0)
    monkeypatch.setattr(scoring, "MOST_BYTES", 0)
    torch.testing.assert_close(together, gradient_norms(policy, batch, 1.0))
    monkeypatch.setattr(scoring, "MOST_BYTES", 2**29)

    def refuses(*arguments):
        raise RuntimeError("no batching rule")

    monkeypatch.setattr(scoring, "vmap", refuses)
    torch.testing.assert_close(together, gradient_norms(policy, batch, 1.0))
    assert (together > 0).all()

    def is_full(*arguments):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(scoring, "vmap", is_full)
    with pytest.raises(RuntimeError, match="out of memory"):
        gradient_norms(policy, batch, 1.0)
    monkeypatch.undo()
    masked = batch.set(mask_T=torch.zeros_like(batch["mask_T"]))
    assert gradient_norms(policy, masked, 1.0).tolist() == [0.0] * 4


def test_how_far_the_baseline_lies_from_the_mean_is_logged():
    # weights 1 and 4: 1/5 beside 1/2
    batch = flat_batch((1, 1), advantage_B=[1.0, 0.0], sequence_is_weight_B=[1.0, 1.0],
                       grad_norm_B=[1.0, 2.0])  # fmt: skip
    told = run(SubtractLeastVarianceMean(), batch).metrics
    assert told == {"advantage/baseline_shift": pytest.approx(0.3)}
