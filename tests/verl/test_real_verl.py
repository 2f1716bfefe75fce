"""Advantages and losses of recipes as verl requests them, compared with verl's own."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("default")  # verl and its imports warn

from verl import DataProto  # noqa: E402
from verl.trainer.config import AlgoConfig  # noqa: E402
from verl.trainer.ppo import core_algos  # noqa: E402
from verl.workers.config.actor import ActorConfig, PolicyLossConfig  # noqa: E402

from strop import functional as F  # noqa: E402
from strop.catalogue import catalogue  # noqa: E402
from strop.integrations import verl as ours  # noqa: E402
from strop.integrations.hosting import VERL_ESTIMATOR, VERL_LOSS, why_no_half  # noqa: E402
from strop.support.errors import UserError  # noqa: E402

WIDTH = 7
UPDATE = {"dp_size": 4, "batch_num_tokens": 300, "global_batch_size": 64}


def rollouts(seed: int = 0, num: int = 24) -> tuple[Tensor, Tensor, Any]:
    """Rewards on the last token of each answer, masks and prompts of groups of unequal size."""
    rng = torch.Generator().manual_seed(seed)
    length_B = torch.randint(1, WIDTH + 1, (num,), generator=rng)
    mask_BL = (torch.arange(WIDTH)[None] < length_B[:, None]).float()
    rewards_BL = torch.zeros(num, WIDTH)
    rewards_BL[torch.arange(num), length_B - 1] = torch.rand(num, generator=rng)
    index = np.array([f"prompt-{(i * i) % 5}" for i in range(num)], dtype=object)
    return rewards_BL, mask_BL, index


def logps(mask_BL: Tensor, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Old and new log-probabilities, and advantages of tokens."""
    rng = torch.Generator().manual_seed(seed)
    old = -0.1 - 2 * torch.rand(mask_BL.shape, generator=rng)
    new = old + 0.5 * torch.randn(mask_BL.shape, generator=rng)
    advantages = torch.randn(mask_BL.shape[0], 1, generator=rng).expand_as(mask_BL) * mask_BL
    return old, new.requires_grad_(), advantages


def actor(loss_mode: str = "vanilla", **options: Any) -> ActorConfig:
    policy = {name: options.pop(name) for name in ("dro_beta",) if name in options}
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode, **policy), **options,
    )  # fmt: skip


def names(host: Any) -> set[str]:
    return {e.name for e in catalogue.recipes() if not why_no_half(e.load()(), host)}


def test_registries_have_every_eligible_recipe() -> None:
    defaults = {f"strop/{entry.name}" for entry in catalogue.recipes()}
    known = defaults & core_algos.ADV_ESTIMATOR_REGISTRY.keys()
    assert known == {f"strop/{name}" for name in names(VERL_ESTIMATOR)}
    known = defaults & core_algos.POLICY_LOSS_REGISTRY.keys()
    assert known == {f"strop/{name}" for name in names(VERL_LOSS)}
    assert core_algos.get_adv_estimator_fn("strop/mc_grpo")
    assert core_algos.get_policy_loss_fn("strop/clip_cov")


def test_registers_other_parameters_and_refuses() -> None:
    assert ours.register("mc_grpo(beta=0.0)", "mc_test") == (True, True)
    assert "strop/mc_test" in core_algos.POLICY_LOSS_REGISTRY
    with pytest.raises(UserError, match="neither advantages nor loss of gae: it reads value_T"):
        ours.register("gae")


@pytest.mark.parametrize(
    ("recipe", "theirs", "more"),
    [
        ("grpo", "grpo", {}),
        ("dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "rloo", {}),
        ("opo", "opo", {}),
        ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", {}),
    ],
)
def test_advantages_equal_verls(recipe: str, theirs: str, more: dict[str, Any]) -> None:
    rewards_BL, mask_BL, index = rollouts()
    given = {"token_level_rewards": rewards_BL, "response_mask": mask_BL, "index": index}
    config = AlgoConfig(adv_estimator=theirs)
    wanted, _ = core_algos.get_adv_estimator_fn(theirs)(**given, config=config, **more)
    found, returns = core_algos.get_adv_estimator_fn(f"strop/{recipe}")(**given, config=config)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.abs().max() > 0.1
    assert returns.shape == mask_BL.shape


def test_advantages_need_groups_and_leave_nothing_outside_the_mask() -> None:
    rewards_BL, mask_BL, index = rollouts()
    estimate = core_algos.get_adv_estimator_fn("strop/mc_grpo")
    with pytest.raises(UserError, match="index"):
        estimate(token_level_rewards=rewards_BL, response_mask=mask_BL)
    found, _ = estimate(token_level_rewards=rewards_BL, response_mask=mask_BL, index=index)
    assert not found[mask_BL == 0].any()
    group = np.unique(index, return_inverse=True)[1]
    wanted = F.advantages(
        "mc_grpo", rewards=rewards_BL.sum(1), groups=torch.tensor(group), mask=mask_BL
    )
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "mode", "options"),
    [
        ("grpo", "vanilla", {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_c": 1e9}),
        ("grpo(aggregation='token-mean')", "vanilla", {"clip_ratio_c": 1e9}),
        ("dr_grpo", "vanilla", {"loss_agg_mode": "seq-mean-token-sum-norm", "clip_ratio_c": 1e9}),
        (
            "gspo_token",
            "gspo",
            {
                "clip_ratio_low": 3e-4,
                "clip_ratio_high": 4e-4,
                "loss_agg_mode": "seq-mean-token-mean",
            },
        ),
        ("sapo_soft", "sapo", {}),
        ("gpg", "gpg", {}),
        ("dro(beta=0.05)", "dro", {"dro_beta": 0.05}),
        ("cispo(aggregation='token-mean')", "cispo", {"clip_ratio_low": 10.0}),
    ],
)
@pytest.mark.parametrize(
    "info", [{}, {"dp_size": 4, "batch_num_tokens": 300, "global_batch_size": 64}]
)
def test_losses_equal_verls(
    recipe: str, mode: str, options: dict[str, Any], info: dict[str, Any]
) -> None:
    _, mask_BL, _ = rollouts()
    old, new, advantages = logps(mask_BL)
    config = actor(mode, **options)
    config.global_batch_info.update(info)
    given = (old, new, advantages, mask_BL, config.loss_agg_mode, config)
    wanted, _ = core_algos.get_policy_loss_fn(mode)(*given)
    ours.register(recipe, f"test_{mode}_{recipe}")
    loss, told = core_algos.get_policy_loss_fn(f"strop/test_{mode}_{recipe}")(*given)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    (expected,), (found,) = torch.autograd.grad(wanted, new), torch.autograd.grad(loss, new)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    change = ((old - new).detach() * mask_BL).sum() / mask_BL.sum()
    assert told["actor/ppo_kl"] == pytest.approx(float(change), rel=1e-5)


@pytest.mark.parametrize("name", sorted(names(VERL_LOSS)))
def test_each_loss_is_the_padded_doors(name: str) -> None:
    """Alone and without numbers of a whole update; weights of the rollouts multiply it."""
    _, mask_BL, _ = rollouts()
    old, new, advantages = logps(mask_BL)
    loss_of = core_algos.get_policy_loss_fn(f"strop/{name}")
    loss, _ = loss_of(old, new, advantages, mask_BL, "token-mean", actor())
    given = {"logp_old": old, "mask": mask_BL, "advantages": advantages[:, 0]}
    known = F.inputs(name, "policy_loss")
    given = {key: value for key, value in given.items() if key in known}
    wanted, _ = F.policy_loss(name, logp=new, **given)
    if name not in ("clip_cov",):  # which draws tokens at random
        torch.testing.assert_close(loss, wanted.to(loss.dtype), rtol=1e-5, atol=1e-6)
    twice, _ = ours.PolicyLoss(catalogue.load("recipe", name)())(
        old, new, advantages, mask_BL, "token-mean", actor(), torch.full_like(mask_BL, 2.0)
    )
    torch.testing.assert_close(twice, 2 * loss, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", ["grpo", "cispo", "dr_grpo", "gspo"])
@pytest.mark.parametrize("processes", [1, 2])
def test_passes_and_processes_add_up_to_the_whole(recipe: str, processes: int) -> None:
    """The mean over processes of the sums of their passes is the loss over all rows at once."""
    _, mask_BL, _ = rollouts()
    old, new, advantages = logps(mask_BL)
    loss_of = core_algos.get_policy_loss_fn(f"strop/{recipe}")
    whole, _ = loss_of(old, new, advantages, mask_BL, "", actor())
    config = actor()
    config.global_batch_info.update(
        dp_size=processes, batch_num_tokens=int(mask_BL.sum()), global_batch_size=24
    )
    total = sum(
        loss_of(*(each[rows] for each in (old, new, advantages, mask_BL)), "", config)[0]
        for rows in torch.arange(24).split(5)
    )
    torch.testing.assert_close(total / processes, whole, rtol=1e-5, atol=1e-6)
    if processes > 1 and recipe != "gspo":
        config.global_batch_info.update(batch_num_tokens=None, global_batch_size=None)
        with pytest.raises(UserError, match="dp_size > 1"):
            loss_of(old, new, advantages, mask_BL, "", config)


def test_a_step_of_verls_trainer_and_actor() -> None:
    """verl's own functions find both by name: advantages of its trainer, loss of its actor."""
    from verl.trainer.ppo.ray_trainer import compute_advantage
    from verl.workers.utils import losses

    rewards_BL, mask_BL, index = rollouts()
    old, new, _ = logps(mask_BL)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards_BL, "response_mask": mask_BL},
        non_tensors={"uid": index},
    )
    algorithm = AlgoConfig(adv_estimator="strop/mc_grpo")
    data = compute_advantage(data, adv_estimator="strop/mc_grpo", config=algorithm)
    advantages = data.batch["advantages"]
    assert advantages.abs().max() > 0.1
    batch = Padded(response_mask=mask_BL, old_log_probs=old, advantages=advantages)
    batch |= {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "no_padding_2_padding", lambda column, _: column)
        config = actor("strop/clip_cov", use_kl_loss=False)
        loss, told = losses.ppo_loss(config, {"log_probs": new}, batch)
    loss.backward()
    assert new.grad is not None
    assert new.grad[mask_BL == 1].abs().max() > 0
    assert not new.grad[mask_BL == 0].any()
    assert told["actor/pg_loss"].values == [pytest.approx(float(loss.detach()))]
    assert "actor/clip_ratio/covariance_mean" in told


class Padded(dict[str, Any]):
    """Rows of a pass that are padded already, where verl's actor unpads and pads again."""

    def select(self, *names: str) -> "Padded":
        return Padded({name: self[name] for name in names})

    def to_padded_tensor(self) -> "Padded":
        return self


def test_the_pages_example() -> None:
    page = Path(__file__).parents[2] / "docs/COMING_FROM_TRL_AND_VERL.md"
    text = page.read_text(encoding="utf-8")
    example = re.search(r"<!-- file: my_verl.py -->\n```python\n(.*?)```", text, re.S)
    assert example is not None
    exec(compile(example.group(1), "my_verl.py", "exec"), {})
    assert "strop/wide_gspo" in core_algos.POLICY_LOSS_REGISTRY
    assert "strop/wide_gspo" in core_algos.ADV_ESTIMATOR_REGISTRY


def test_verl_finds_the_recipes_in_every_process() -> None:
    """Whoever imports verl has them: by the module's name here, by its entry point installed."""
    code = "import verl.trainer.ppo.core_algos as c; print(*c.ADV_ESTIMATOR_REGISTRY)"
    env = os.environ | {"VERL_USE_EXTERNAL_MODULES": "strop.integrations.verl"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert "strop/mc_grpo" in done.stdout.split()
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    points = tomllib.loads(text)["project"]["entry-points"]
    assert points["verl.plugins"] == {"strop": "strop.integrations.verl"}
