"""Terms over whole next-token distributions in the real trainer, in float64: the same however rows
are split, and the same as plain autograd through the model and the published loss."""

import pytest
import torch
from models import Lab, exact_norms
from test_invariance import clipped, gradient, log_softmaxes, make, padded, same, taken

from strop.method import notation, reading
from strop.training.learner.policy import Policy
from strop.training.step import train_step

CASES = {
    "siren": "siren(top_p=0.7, quantile=0.5, coef=30.0, anchor=0.4)",
    "siren_code": "siren(top_p=0.7, quantile=0.5, coef=30.0, anchor=0.4, variant='code')",
    "lp_reg": "lp_reg(kappa=0.4, rho_pct=0.6, beta=2.0)",
    "lp_reg_full": "lp_reg(kappa=0.4, rho_pct=0.6, beta=2.0, divergence='full')",
    "lp_reg_code": "lp_reg(kappa=0.4, rho_pct=0.6, beta=2.0, variant='code')",
}


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
    """World, algorithm and a batch with ratios off 1 and one rollout without gradient."""
    algorithm = notation.recipe(CASES[request.param])
    for path, value in (("rollout.max_tokens", 6), ("sampling.num_prompts", 3),
                        ("sampling.num_rollouts", 4)):  # fmt: skip
        algorithm = reading.override(algorithm, path, value)
    algorithm = algorithm.at_step(1, 1)
    world = make(own_lab, algorithm)
    world.policy.update = lambda lr: {"grad_norm": 0.0, "learning_rate": lr}
    try:
        batch = train_step(world, algorithm, {}, 1).batch
    finally:
        world.services.close()
    taken(world.policy)
    rng = torch.Generator().manual_seed(1)
    logp_T = world.policy.columns(batch, ("logp_T",), 1.0)["logp_T"]
    noise_T = torch.randn(logp_T.shape, generator=rng, dtype=torch.float64)
    off_T = batch["rollout_T"] != 2
    batch = batch.set(
        logp_old_T=torch.where(batch["mask_T"], logp_T + 0.2 * noise_T, 0),
        gradient_T=batch["gradient_T"] & off_T, denominator_T=batch["denominator_T"] & off_T,
    )  # fmt: skip
    return request.param, world, algorithm, batch


def siren_term(logq, keep, below):
    """(mean over answers of the mean nucleus entropy above the median - .4)^2, times 30."""
    p = logq.exp().sort(-1, descending=True).values
    until = p.detach().cumsum(-1)
    inside = until <= 0.7 if below else until - p.detach() < 0.7
    mass = (p * inside).sum(-1, keepdim=True)
    q = p * inside / torch.where(mass > 0, mass, 1)
    entropy = -torch.where(q > 0, q * torch.where(q > 0, q, 1).log(), 0).sum(-1)
    means = []
    for row, own in zip(entropy, keep, strict=True):
        if own.any():
            chosen = row[own] > torch.quantile(row[own].detach(), 0.5)
            means.append(row[own][chosen].mean() if chosen.any() else row.sum() * 0)
    assert len(means) > 5
    return 30 * (torch.stack(means).mean() - 0.4) ** 2


def proxy_of(logq, ids):
    """log proxy(o_t) and KL(proxy || pi)."""
    p = logq.exp().detach()
    kept = p > 0.4 * p.max(-1, keepdim=True).values
    q = p * kept / (p * kept).sum(-1, keepdim=True)
    picked = q.gather(-1, ids[..., None]).squeeze(-1)
    logp = torch.where(picked > 0, picked.clamp(min=1e-30).log(), -1e4)
    kl = torch.where(kept, q * (torch.where(kept, q, 1).log() - logq), 0).sum(-1)
    return logp, kl


def lp_reg_loss(case, logp, ratio, advantage, keep, proxy):
    logp_proxy, kl = proxy
    d = (logp_proxy - logp).clamp(-20, 20)
    away = kl if case == "lp_reg_full" else d.exp() - d - 1
    blamed = keep & (advantage < 0)
    if case == "lp_reg_code":
        number = int(0.6 * int(blamed.sum()))
        level = logp[blamed].detach().sort().values[number - 1]
        chosen = blamed & (logp <= level) & (logp < logp_proxy)
        loss = -clipped(ratio, advantage, 1.0, 9.0)
        loss = torch.where(chosen, -ratio * advantage + 2 * away.clamp(-10, 10), loss)
    else:
        chosen = blamed & (logp.exp() < torch.quantile(logp[keep].exp().detach(), 0.6))
        chosen &= logp_proxy > -1e3
        loss = -ratio.clamp(0, 10) * advantage + 2 * torch.where(chosen, away, 0)
    assert int(chosen.sum()) > 1
    return (loss * keep).sum() / keep.sum()


def reference_loss(case, world, batch):
    ids, mask, pad = padded(world, batch)
    logq = log_softmaxes(world.policy.model, ids)
    logp = logq.gather(-1, ids[..., None]).squeeze(-1)
    keep = mask & pad(batch["denominator_T"])
    advantage = batch["advantage_B"].double()[:, None].expand_as(logp)
    ratio = torch.where(keep, logp - pad(batch["logp_old_T"]), 0).exp()
    if case.startswith("siren"):
        policy = (-clipped(ratio, advantage, 0.28, 0.28) * keep).sum(1)
        policy = policy[keep.any(1)].mean() / float(batch["max_length"])
        return policy + siren_term(logq, keep, below=case == "siren_code")
    proxy = proxy_of(logq, ids)
    assert torch.allclose(proxy[0][mask], pad(batch["logp_proxy_T"])[mask], rtol=1e-9)
    return lp_reg_loss(case, logp, ratio, advantage, keep, proxy)


def test_plain_autograd_gives_the_same_gradient_at_any_split(stage):
    case, world, algorithm, batch = stage
    reference_loss(case, world, batch).backward()
    plain = taken(world.policy)
    for token_budget in (23, 10**6):
        found = gradient(world, algorithm, batch, token_budget)
        same(found, plain)
    assert len(Policy(world.policy.model, token_budget=23).micro_batches(batch)) > 2
