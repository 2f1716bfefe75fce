import math

import pytest
import torch
from builders import (
    NAN,
    assert_equal_pushes,
    assert_same_push,
    clipped,
    ragged_batch,
    rows_learning,
    stages,
)

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.parts.loss.bound.shield_unlikely_tokens import ShieldUnlikelyTokens
from strop.recipes.grpo import grpo
from strop.recipes.lp_reg import lp_reg
from strop.support.errors import UserError

KL = "min_p_kl_0.02_T"
# Token 3 of (.70, .20, .05, .04, .008, .002) beside nine likelier ones, and its proxy.
OLD = torch.tensor([[0.04, *[0.5] * 9]]).double().log()
PROXY = torch.tensor([[0.04 / 0.99, *[0.5 / 0.99] * 9]]).double().log()
GIVEN = {
    "logp_old": OLD, "logp_proxy": PROXY, "mask": torch.ones(1, 10, dtype=torch.bool),
    "advantages": -torch.ones(1).double(),
}  # fmt: skip
SUM = {"aggregation": "token-sum", "rho_pct": 0.1}


def slopes(logp, **params):
    """dL/dlogp of the first token, the divergence's alone."""
    given = {**GIVEN, "logp": logp}
    each = [
        functional.token_weights("lp_reg", **given, params={**SUM, **params, "beta": beta})[0, 0]
        for beta in (1.0, 0.0)
    ]
    return float(each[1] - each[0])


def test_worked_example_through_the_padded_call():
    assert slopes(OLD) == pytest.approx(-0.0101, abs=5e-6)
    moved = OLD.clone()
    moved[0, 0] = math.log(0.01)
    assert slopes(moved) == pytest.approx(-3.04, abs=5e-3)
    values = []
    for beta in (1.0, 0.0):
        params = {**SUM, "beta": beta}
        values.append(functional.policy_loss("lp_reg", **GIVEN, logp=moved, params=params)[0])
    assert float(values[0] - values[1]) == pytest.approx(1.644, abs=5e-4)
    assert slopes(moved, variant="code") == 0.0  # one candidate is none there
    assert slopes(moved, variant="code", rho_pct=0.2) == pytest.approx(-3.04, abs=5e-3)


def with_proxy(batch):
    """The batch with a proxy that has cut every fourth token, and whole divergences."""
    rng = torch.Generator().manual_seed(5)
    mask_T = batch["mask_T"]
    gain_T = torch.rand(batch.size("T"), generator=rng, dtype=torch.float64)
    cut_T = torch.arange(batch.size("T")) % 4 == 0
    proxy_T = torch.where(cut_T, -1e4, batch["logp_old_T"] + 0.5 * gain_T)
    columns = {"logp_proxy_T": proxy_T, KL: gain_T}
    return batch.set(**{name: torch.where(mask_T, c_T, NAN) for name, c_T in columns.items()})


@pytest.mark.parametrize("divergence", ["k3", "full"])
@pytest.mark.parametrize("variant", ["paper", "code"])
def test_gradient_is_that_of_the_published_loss(variant, divergence):
    algorithm = lp_reg(variant=variant, rho_pct=0.4, divergence=divergence, clip_high=0.3)
    batch = with_proxy(stages(algorithm, ragged_batch(1, groups=(3, 2, 4, 3))))
    rows = rows_learning(batch)
    A, proxy = batch["advantage_T"][rows], batch["logp_proxy_T"][rows]
    seen = []

    def loss_of(logp_T, kl_T=None):
        logp = logp_T[rows]
        rho = (logp - batch["logp_old_T"][rows]).exp()
        d = (proxy - logp).clamp(-20, 20)
        D = d.exp() - d - 1 if kl_T is None else kl_T[rows]
        if variant == "paper":
            chosen = (logp.exp() < torch.quantile(logp.exp(), 0.4)) & (A < 0) & (proxy > -1e3)
            loss = -rho.clamp(0, 1.3) * A + torch.where(chosen, D, 0)
        else:
            negative = (A < 0).nonzero().squeeze(1)
            order = negative[logp[negative].argsort()][: int(0.4 * len(negative))]
            chosen = torch.zeros_like(A, dtype=torch.bool)
            chosen[order] = True
            chosen &= logp < proxy
            D = D if kl_T is not None else D.clamp(-10, 10)
            loss = torch.where(chosen, -A * rho + D, clipped(rho, A, 1.0, 0.3))
        seen.append(int(chosen.sum()))
        return loss.mean()

    names = ("logp_T", KL) if divergence == "full" else ("logp_T",)
    assert_same_push(algorithm, batch, loss_of, *names)
    assert min(seen) > 1


def test_is_its_parent_with_that_clip_without_weight_or_share():
    parent = grpo(aggregation="token-mean", clip_low=1.0, clip_high=9.0)
    batch = with_proxy(stages(parent, ragged_batch(1)))
    for variant in ("paper", "code"):
        for params in ({"beta": 0.0}, {"rho_pct": 0.0}):
            assert_equal_pushes(lp_reg(variant=variant, **params), parent, batch)


def test_the_ratio_is_held_within_ten_on_both_signs():
    far = OLD + math.log(20)
    for sign in (1, -1):
        given = {**GIVEN, "logp": far, "advantages": sign * torch.ones(1).double()}
        found = functional.token_weights("lp_reg", **given, params={**SUM, "beta": 0.0})
        assert (found == 0).all()


def test_composes_and_refuses():
    algorithm = lp_reg(divergence="full", kappa=0.05)
    check(algorithm)
    assert algorithm.probes[0].part.kappa == 0.05
    assert "min_p_kl_0.05_T" in algorithm.reads()
    assert reading.override(lp_reg(), "terms.policy.objective.divergence", "full").reads() >= {KL}
    moved = reading.override(lp_reg(), "probes.score_plausible_tokens.kappa", 0.2)
    check(moved)
    with pytest.raises(UserError, match=r"kappa is 0\.02 and .*kappa is 0\.2, where both"):
        check(reading.override(moved, "terms.policy.objective.divergence", "full"))
    params = {"divergence": "full"}
    with pytest.raises(UserError, match="needs min_p_kl"):
        functional.policy_loss("lp_reg", **GIVEN, logp=OLD, params=params)
    with pytest.raises(UserError, match="variant must be one of"):
        ShieldUnlikelyTokens(variant="released")
