from pathlib import Path

import pytest
import torch
from models import Lab, without_times
from runs import Runner
from safetensors.torch import load_file

from strop import functional
from strop.recipes.ppo_ewma import ppo_ewma
from strop.support.errors import UserError


def worked(advantage, **params):
    given = {n: torch.tensor([[v]]).double()
             for n, v in (("logp", -1.0), ("logp_ref", -1.3), ("logp_beh", -1.5))}  # fmt: skip
    loss, _ = functional.policy_loss(
        "ppo_ewma", params=params, advantages=torch.tensor([advantage]).double(),
        mask=torch.ones(1, 1), **given,
    )  # fmt: skip
    return float(loss)


def test_worked_example_through_the_padded_call():
    # u = exp(.3) = 1.349859 is cut to 1.2 for A = 1; w = exp(.2) = 1.221403
    assert worked(1.0) == pytest.approx(-1.465683, abs=1e-6)
    assert worked(-1.0) == pytest.approx(1.648721, abs=1e-6)
    assert worked(1.0, most_weight=1.1) == pytest.approx(-1.2 * 1.1)


def test_recipe():
    with pytest.raises(UserError, match=r"decay must be between 0\.0 and"):
        ppo_ewma(decay=1.0)


def raw_of(lab: Lab, recipe: str, steps: int = 3) -> dict:
    raw = lab.raw(recipe, reward="even")
    raw["training"] |= {"steps": steps, "lr": 0.02, "save_every": 1, "keep_checkpoints": 5}
    return raw


def test_without_an_average_it_is_the_step_s_own_policy(tmp_path: Path) -> None:
    """decay 0: the reference is the policy before the step, so it is AReaL's objective."""
    lab = Lab.make(tmp_path)
    for name, recipe in (("ours", "ppo_ewma(decay=0)"), ("areal", "areal_decoupled_ppo")):
        Runner().whole(raw_of(lab, recipe), tmp_path / name)
    ours, areal = (without_times(tmp_path / name) for name in ("ours", "areal"))
    for mine, theirs in zip(ours, areal, strict=True):
        shared = {k: v for k, v in theirs.items() if k in mine and "kl_ref" not in k}
        assert {k: mine[k] for k in shared} == pytest.approx(shared, rel=1e-5, abs=1e-6)
    assert ours[-1]["grad_norm"] > 0


def test_the_reference_is_the_average_of_the_policies(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    Runner().whole(raw_of(lab, "ppo_ewma(decay=0.5)", 2), tmp_path / "run")
    # weights of the start and of the policies after steps 1 and 2: 1/4, 1/2, 1, over 7/4
    folders = [tmp_path / f"run/checkpoints/step-{n:06d}" for n in (1, 2)]
    start, first, second = (load_file(f / "model.safetensors") for f in (lab.model, *folders))
    reference = torch.load(folders[1] / "reference.pt")
    for name, value in reference.items():
        expected = (start[name] / 4 + first[name] / 2 + second[name]) / 1.75
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(first[name], second[name]) for name in reference)
