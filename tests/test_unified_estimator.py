"""docs/UNIFIED_ESTIMATOR.md: each row of its table equals the recipes' token weights."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from strop import functional

PAGE = Path(__file__).resolve().parents[1] / "docs" / "UNIFIED_ESTIMATOR.md"
TOKEN_SUM = {"aggregation": "token-sum"}
# (p, p_old, A) of the page's worked example and the weights of the methods on it.
CASES = [(0.2, 0.25, 1.0), (0.5, 0.25, 1.0), (0.5, 0.25, -1.0)]
WIDE = {"clip_low": 0.2, "clip_high": 0.2}
EXPECTED = {
    "reinforce": [1.0, 1.0, -1.0],
    "ppo_clip": [0.8, 0.0, -2.0],
    "grpo": [0.8, 0.0, -2.0],
    "cispo": [0.8, 1.2, -1.2],
}


def weight(name: str, p: float, p_old: float, advantage: float, **params: object) -> float:
    one = {"logp": torch.tensor([[p]]), "logp_old": torch.tensor([[p_old]])}
    given = {key: value.double().log() for key, value in one.items()}
    if name in ("gpg", "sft"):
        del given["logp_old"]
    if name == "sft":
        given["demo_mask"] = torch.ones(1, 1, dtype=torch.bool)
    allowed = functional.inputs(name, "policy_loss", params)
    given = {key: value for key, value in given.items() if key in allowed}
    found = functional.token_weights(
        name, **given, mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.tensor([advantage]).double(), params=params,
    )  # fmt: skip
    return float(found)


@pytest.mark.parametrize(("name", "params"), [
    ("gpg", TOKEN_SUM), ("ppo_clip", {**TOKEN_SUM, **WIDE, "dual_clip_c": 0.0}),
    ("grpo", {**TOKEN_SUM, **WIDE}), ("cispo", {**TOKEN_SUM, "clip_low": 1.0, "clip_high": 0.2}),
])  # fmt: skip
def test_worked_example(name, params):
    found = [weight(name, *case, **params) for case in CASES]
    assert found == pytest.approx(EXPECTED["reinforce" if name == "gpg" else name])


def surrogate(weight_BT: Tensor, logp: Tensor, mask: Tensor, share_BT: Tensor) -> Tensor:
    """-sum share * sg(w) * logp, the one form behind every row."""
    return -torch.where(mask, share_BT * weight_BT.detach() * logp, 0).sum()


def rows(seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(6)[None] < torch.tensor([[6], [3], [5], [1]])
    logp = -2 * torch.rand(4, 6, generator=rng, dtype=torch.float64) - 0.05
    other = logp + 0.4 * torch.randn(4, 6, generator=rng, dtype=torch.float64)
    advantages = torch.randn(4, generator=rng, dtype=torch.float64)
    return {"logp": logp, "logp_old": other, "mask": mask, "advantages": advantages}


def table(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights [B, T] of the table: stability mask * exp(logp - logp_den) * A."""
    mask, advantage = given["mask"], given["advantages"][:, None].expand(given["mask"].shape)
    rho = (given["logp"] - given["logp_old"]).exp()
    length = mask.sum(1, keepdim=True)
    off = torch.where(mask, given["logp"] - given["logp_old"], 0)
    s = (off.sum(1, keepdim=True) / length).exp().expand(mask.shape)

    def stable(ratio: Tensor, low: float, high: float) -> Tensor:
        left = ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))
        return (~left).double()

    return {
        "gpg": advantage,
        "grpo": stable(rho, 0.2, 0.2) * rho * advantage,
        "dapo": stable(rho, 0.2, 0.28) * rho * advantage,
        "cispo": rho.clamp(0, 1.28) * advantage,
        "gspo": stable(s, 3e-4, 4e-4) * s * advantage,
    }


PARAMS = {
    "gpg": {"aggregation": "seq-mean-token-mean"}, "grpo": {},
    "dapo": {"aggregation": "seq-mean-token-mean"}, "gspo": {},
    "cispo": {"aggregation": "seq-mean-token-mean", "clip_low": 1.0, "clip_high": 0.28},
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_autograd_of_the_loss_is_that_of_the_table(name, seed):
    given = rows(seed)
    share_BT = (1 / given["mask"].sum(1, keepdim=True) / 4).expand(given["mask"].shape)
    leaf = given["logp"].clone().requires_grad_()
    surrogate(table(given)[name], leaf, given["mask"], share_BT.double()).backward()
    allowed = functional.inputs(name, "policy_loss", PARAMS[name])
    taken = {key: value for key, value in given.items() if key in allowed}
    found = functional.token_weights(name, **taken, params=PARAMS[name])
    torch.testing.assert_close(found, -leaf.grad)


def test_all_are_reinforce_on_the_first_update():
    given = rows(3)
    given["logp_old"] = given["logp"]
    plain = None
    for name, params in PARAMS.items():
        allowed = functional.inputs(name, "policy_loss", params)
        taken = {key: value for key, value in given.items() if key in allowed}
        found = functional.token_weights(name, **taken, params=params)
        plain = found if plain is None else plain
        torch.testing.assert_close(found, plain)


def test_the_page_has_the_rows_and_the_numbers():
    text = PAGE.read_text(encoding="utf-8")
    for name in ("REINFORCE", "PPO", "GRPO", "CISPO", "GSPO", "SFT", "ROVER", "DPO", "SimPO"):
        assert re.search(rf"^\| {name}\b", text, re.M), name
    for p, p_old, A in CASES:
        line = next(x for x in text.splitlines() if x.startswith(f"| {p:g} | {p_old:g} | {A:+g} |"))
        numbers = [float(cell) for cell in line.strip("| ").split("|")[3:]]
        rho = p / p_old
        clip = 0.0 if (A > 0 and rho > 1.2) or (A < 0 and rho < 0.8) else 1.0
        luffy, plus = p * 0.1 / (p + 0.1) ** 2, p / (0.75 * p_old + 0.25) * math.sqrt(1 - p)
        expected = [A, clip * rho * A, min(rho, 1.2) * A, p * A, luffy * A, plus * A]
        assert numbers == pytest.approx(expected, abs=5e-5)
