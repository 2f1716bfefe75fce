"""Gradients of the real trainer, in float64: the same however rows are split, ordered or sampled,
and the same as plain autograd through the whole model and an independently written loss."""

import copy
import dataclasses

import pytest
import torch
from models import Lab, exact_norms
from runs import world_of

from strop.method import notation, reading
from strop.method.chains import generators
from strop.method.part import Term, Use
from strop.parts.loss.penalty.penalise_full_kl_to_reference import PenaliseFullKlToReference
from strop.recipes._base import average
from strop.training.learner import update
from strop.training.learner.kernel import Tally
from strop.training.learner.policy import Policy
from strop.training.step import train_step

CASES = {
    "grpo": "grpo(beta=0.3)",
    "gspo": "gspo(clip_low=0.1, clip_high=0.05)",
    # every candidate is dropped, so that the draw does not depend on the order of the rows
    "clip_cov": "clip_cov(clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=2.0)",
    "entrocraft": "entrocraft(h_low=8.0, h_high=9.0, beta=0.3)",
    "entropy": "adaptive_entropy_coef",
    "full_kl": "grpo(aggregation='token-mean')",
}


def algorithm_of(case):
    algorithm = notation.recipe(CASES[case])
    if case == "entropy":
        algorithm = algorithm.with_knobs({"terms.entropy.coef": 0.2})
    if case == "full_kl":
        term = Term("kl", Use(PenaliseFullKlToReference()), average("token-mean"), coef=0.3)
        algorithm = dataclasses.replace(algorithm, terms=(*algorithm.terms, term))
    for path, value in (("rollout.max_tokens", 6), ("sampling.num_prompts", 3),
                        ("sampling.num_rollouts", 4), ("plan.num_minibatches", 1)):  # fmt: skip
        algorithm = reading.override(algorithm, path, value)
    return algorithm.at_step(1, 1)


def make(lab, algorithm, num_slots=512):
    """A world on a float64 model whose steps leave the weights as they are."""
    raw = lab.raw(training={"num_slots": num_slots, "share_prefixes": "on"})
    raw["model"] = {"name": str(lab.model), "dtype": "float64"}
    raw["algorithm"] = {"rollout.max_tokens": 6}
    return world_of(raw, algorithm)[1]


def sampled(lab, case, num_slots=512):
    """World, algorithm, batch of one step, and the gradient of that step before it is applied."""
    algorithm = algorithm_of(case)
    world = make(lab, algorithm, num_slots)
    held = {}

    def keep(lr):
        held.update(taken(world.policy))
        return {"grad_norm": 0.0, "learning_rate": lr}

    world.policy.update = keep
    try:
        stepped = train_step(world, algorithm, {}, 1)
    finally:
        world.services.close()
    return world, algorithm, stepped.batch, held


def taken(policy):
    """The gradients of the weights, which are cleared."""
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    policy.model.zero_grad()
    return found


def gradient(world, algorithm, batch, token_budget=10**6):
    """Of one update over the batch."""
    world.policy.token_budget = token_budget
    learner = update.Learner(world.act(algorithm), 0.0, generators(0, 1))
    learner.apply(list(algorithm.terms), batch, 0, Tally())
    return taken(world.policy)


def same(one, other, tolerance=1e-9):
    assert one.keys() == other.keys()
    largest = max(float(value.abs().max()) for value in other.values())
    assert largest > 1e-4
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=0, atol=tolerance * largest), name


@pytest.fixture(scope="module", autouse=True)
def exact():
    with pytest.MonkeyPatch.context() as patch:
        exact_norms(patch)
        yield


@pytest.fixture(scope="module")
def own_lab(tmp_path_factory):
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)


@pytest.fixture(scope="module", params=CASES)
def stage(request, own_lab):
    """A batch with ratios off 1, a reference off the policy, and one rollout without gradient."""
    world, algorithm, batch, _ = sampled(own_lab, request.param)
    rng = torch.Generator().manual_seed(1)
    logp_T = world.policy.columns(batch, ("logp_T",), 1.0)["logp_T"]

    def near(width):
        noise_T = torch.randn(logp_T.shape, generator=rng, dtype=torch.float64)
        return torch.where(batch["mask_T"], logp_T + width * noise_T, 0)

    off_T = batch["rollout_T"] != 2
    batch = batch.set(
        logp_old_T=near(0.2), logp_ref_T=near(0.3),
        gradient_T=batch["gradient_T"] & off_T, denominator_T=batch["denominator_T"] & off_T,
    )  # fmt: skip
    if request.param == "full_kl":
        reference = copy.deepcopy(world.policy.model).requires_grad_(False).eval()
        for p in reference.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=rng, dtype=p.dtype))
        world.reference = Policy(reference)
    return request.param, world, algorithm, batch


def test_any_split_into_micro_batches(stage):
    _, world, algorithm, batch = stage
    whole = gradient(world, algorithm, batch)
    for token_budget in (1, 23, 40):
        assert len(Policy(world.policy.model, token_budget=token_budget).micro_batches(batch)) > 2
        same(gradient(world, algorithm, batch, token_budget), whole)


def test_any_order_of_the_rollouts(stage):
    _, world, algorithm, batch = stage
    order = torch.randperm(batch.size("B"), generator=torch.Generator().manual_seed(3))
    whole = gradient(world, algorithm, batch)
    same(gradient(world, algorithm, batch.take(order)), whole)
    same(gradient(world, algorithm, batch.take(order), token_budget=40), whole)


def test_any_number_of_sequences_at_once(own_lab):
    world, _, batch, many = sampled(own_lab, "grpo")
    _, _, other, one = sampled(own_lab, "grpo", num_slots=1)
    assert torch.equal(batch["id_T"], other["id_T"])
    assert world.engine.slots is not None
    same(one, many)


@pytest.mark.parametrize("case", [case for case in CASES if case != "full_kl"])
def test_a_lone_update_takes_its_own_log_probabilities_as_the_old_ones(case, own_lab):
    world, algorithm, batch, short = sampled(own_lab, case)
    assert "logp_old_T" not in batch
    logp_T = world.policy.columns(batch, ("logp_T",), 1.0)["logp_T"]
    refreshed = gradient(world, algorithm, batch.set(logp_old_T=logp_T))
    same(short, refreshed, tolerance=1e-12)


# -- plain autograd: the padded model call, full softmax, losses as in the papers -----------------


def padded(world, batch):
    """ids [B, L], mask of answer tokens [B, L], and a function that pads a token column."""
    rollouts = [(batch["rollout_T"] == b).nonzero().squeeze(1) for b in range(batch.size("B"))]
    width = max(len(rows) for rows in rollouts)

    def pad(column_T):
        out = torch.zeros(len(rollouts), width, dtype=column_T.dtype)
        for b, rows in enumerate(rollouts):
            out[b, : len(rows)] = column_T[rows]
        return out

    return pad(batch["id_T"]), pad(batch["mask_T"]), pad


def log_softmaxes(model, ids):
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    shifted = torch.cat([torch.zeros_like(logits[:, :1]), logits[:, :-1]], 1)
    return shifted.log_softmax(-1)


def advantages(batch):
    """(R - mean) / (unbiased std + 1e-6), group by group; the batch has it in float32."""
    reward, out = batch["reward_B"].double(), torch.zeros(batch.size("B"), dtype=torch.float64)
    for group in range(batch.size("P")):
        rows = (batch["group_B"] == group).nonzero().squeeze(1)
        out[rows] = (reward[rows] - reward[rows].mean()) / (reward[rows].std() + 1e-6)
    rounded = batch["advantage_B"].double()
    assert torch.allclose(out, rounded, rtol=1e-5, atol=1e-6)
    return rounded


def clipped(ratio, advantage, low=0.2, high=0.2):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def reference_loss(case, world, batch):
    ids, mask, pad = padded(world, batch)
    logq = log_softmaxes(world.policy.model, ids)
    logp = logq.gather(-1, ids[..., None]).squeeze(-1)
    keep = mask & pad(batch["denominator_T"])
    advantage = advantages(batch)[:, None].expand_as(logp)
    log_ratio = torch.where(keep, logp - pad(batch["logp_old_T"]), 0)
    ratio = log_ratio.exp()
    length = keep.sum(1)
    learns = length > 0

    def sequence_mean(values):
        return ((values * keep).sum(1) / length.clamp(min=1))[learns].mean()

    def token_mean(values):
        return (values * keep).sum() / keep.sum()

    away = torch.where(keep, pad(batch["logp_ref_T"]) - logp, 0)
    k3 = away.exp() - away - 1
    if case == "grpo":
        return -sequence_mean(clipped(ratio, advantage)) + 0.3 * sequence_mean(k3)
    if case == "gspo":
        whole = (log_ratio.sum(1) / length.clamp(min=1)).exp()
        return -clipped(whole, advantages(batch), 0.1, 0.05)[learns].mean()
    if case == "clip_cov":
        centred = [values.detach() - values[keep].detach().mean() for values in (advantage, logp)]
        covariance = centred[0] * centred[1]
        held = ratio.clamp(0.8, 1.2) * advantage < ratio * advantage
        dropped = (covariance > 0.05) & (covariance < 2.0) & ~held & keep
        assert dropped.sum() > 3
        return -token_mean(torch.where(dropped, 0, clipped(ratio, advantage)))
    if case == "entropy":
        entropy = -(logq.exp() * logq).sum(-1)
        return -token_mean(clipped(ratio, advantage)) - 0.2 * token_mean(entropy)
    if case == "full_kl":
        with torch.no_grad():
            logq_ref = log_softmaxes(world.reference.model, ids)
        kl = (logq.exp() * (logq - logq_ref)).sum(-1)
        return -token_mean(clipped(ratio, advantage)) + 0.3 * token_mean(kl)
    assert case == "entrocraft"
    assert bool((advantages(batch)[learns] <= 0).all())  # entropy lies below its band
    losses = []
    for group in range(batch.size("P")):
        rows = learns & (batch["group_B"] == group)
        if rows.any():
            sums = ((-clipped(ratio, advantage) + 0.3 * k3) * keep).sum(1)
            losses.append(sums[rows].mean())
    return torch.stack(losses).mean()


def test_plain_autograd_gives_the_same_gradient(stage):
    case, world, algorithm, batch = stage
    reference_loss(case, world, batch).backward()
    plain = taken(world.policy)
    same(gradient(world, algorithm, batch, token_budget=40), plain)
