"""Registers strop's recipes in verl: advantage estimators and policy losses named `strop/RECIPE`.

    python -m verl.trainer.main_ppo algorithm.adv_estimator=strop/mc_grpo \\
        actor_rollout_ref.actor.policy_loss.loss_mode=strop/clip_cov ...

verl finds this module by its entry point and imports it in each of its processes. To register a
recipe with other parameters, write a module of your own and name it in VERL_USE_EXTERNAL_MODULES:

    from strop.integrations.verl import register
    register("gspo(clip_high=1e-3)", "wide_gspo")
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss

from strop.batch import segments
from strop.batch.batch import Batch, from_padded, to_padded
from strop.catalogue import catalogue
from strop.integrations.hosted import Rollouts, Scores
from strop.integrations.hosting import VERL_ESTIMATOR, VERL_LOSS, instead, why_no_half
from strop.method import notation
from strop.method.algorithm import Algorithm, Method
from strop.method.chains import Chains, generators, learnable
from strop.method.part import Term
from strop.method.services import Services
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.support.errors import UserError
from strop.training.learner import kernel
from strop.training.learner.kernel import Tally, View

PREFIX = "strop/"


@dataclass
class Estimator:
    """A recipe's rewards, advantages and selection as an estimator of verl, called once a step.

    Tokens that the recipe's selection leaves without gradient have advantage 0; verl's averages
    still count them.
    """

    algorithm: Algorithm
    calls: int = 0

    def __call__(
        self, token_level_rewards: Tensor, response_mask: Tensor, index: Any = None,
        config: Any = None, **others: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Advantages and returns [B, L]."""
        if index is None:
            raise UserError("a recipe's advantages need `index`, the prompt of each answer")
        self.calls += 1
        mask_BL, rewards_BL = response_mask.bool(), token_level_rewards
        group_B = torch.as_tensor(np.unique(np.asarray(index), return_inverse=True)[1])
        group_B = group_B.to(mask_BL.device)
        rollouts = Rollouts(
            torch.zeros_like(mask_BL, dtype=torch.int64), mask_BL, group_B, group_B,
            torch.zeros_like(mask_BL[:, 0]), rewards_BL.sum(1, keepdim=True), [1.0],
            mask_BL.shape[1], {"reward_T": rewards_BL},
        )  # fmt: skip
        whole = rollouts.batch(self.calls, self.calls, 0)
        known = {name: whole[name] for name in whole.columns if name in VERL_ESTIMATOR.columns}
        services = cast(Services, Scores(rollouts.graded(), (1.0,)))
        chains = Chains(generators(0, self.calls), services)
        batch = chains.write("reward", self.algorithm.reward, Batch(known))
        batch = chains.credit(self.algorithm.advantage, batch)
        batch = chains.select(self.algorithm.selection, learnable(batch))
        advantage_T = torch.where(batch["gradient_T"], batch["advantage_T"], 0)
        shape = (batch["rollout_T"], *mask_BL.shape)
        advantages = to_padded(advantage_T, *shape).to(rewards_BL.dtype)
        if "return_T" not in batch:
            return advantages, advantages
        return advantages, to_padded(batch["return_T"], *shape).to(rewards_BL.dtype)


@dataclass
class PolicyLoss:
    """A recipe's loss terms as a policy loss of verl, called for each forward pass of an update.

    The recipe's own averages are used, over the whole update, by the numbers that verl provides
    (`batch_num_tokens`, `global_batch_size`, `dp_size`); `loss_agg_mode` and `clip_ratio` are not
    read. `loss_scale_factor` is the length for averages by a constant length.
    """

    algorithm: Algorithm
    calls: int = 0

    def __call__(
        self, old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor,
        loss_agg_mode: str = "", config: Any = None, rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:  # fmt: skip
        """The loss [] of this pass, and metrics."""
        self.calls += 1
        info = dict(config.global_batch_info) if config is not None else {}
        length = info.get("loss_scale_factor") or response_mask.shape[1]
        mask_BL = response_mask.bool()
        columns = {
            "advantage_T": advantages, "logp_old_T": old_log_prob, "logp_T": log_prob,
            "gradient_T": mask_BL, "denominator_T": mask_BL,
            "max_length": torch.tensor(length, device=mask_BL.device),
        }  # fmt: skip
        if rollout_is_weights is not None:
            columns["weight_T"] = rollout_is_weights.detach()
        batch = from_padded(columns, mask_BL)
        batch = _with_advantage_B(batch, self.algorithm)
        rng, tally = generators(0, self.calls)("terms", 0), Tally()
        prepared = kernel.prepare(self.algorithm.terms, batch, rng, tally)
        for term in self.algorithm.terms:
            share_T = prepared[f"{term.name}:share_T"] * _of_update(term, batch, info)
            share_T = share_T * batch["weight_T"] if "weight_T" in batch else share_T
            prepared = prepared.set(**{f"{term.name}:share_T": share_T})
        view = View(prepared)
        rng = generators(0, self.calls)("objective", 0)
        losses = [kernel.term_loss(each, view, tally, rng=rng) for each in self.algorithm.terms]
        change_T = torch.where(mask_BL, (old_log_prob - log_prob).detach(), 0)
        metrics = {f"actor/{name}": value for name, value in tally.means().items()}
        metrics["actor/ppo_kl"] = float(change_T.sum() / mask_BL.sum().clamp(min=1))
        return torch.stack(losses).sum(), metrics


def _of_update(term: Term, batch: Batch, info: Mapping[str, Any]) -> float:
    """The factor that turns the shares of this pass into those of the whole update.

    verl averages gradients over `dp_size` processes, so each process multiplies its own by that.
    """
    processes = info.get("dp_size") or 1
    part = term.average.part
    if isinstance(part, AverageOverTokens):
        name, here = "batch_num_tokens", int(batch["denominator_T"].sum())
    elif getattr(part, "num_rollouts", 0) or not getattr(part, "per_rollout", True):
        return float(processes)  # this average does not count anything
    else:
        name, here = "global_batch_size", int((batch["length_B"] > 0).sum())
    total = info.get(name)
    if total is None:
        if processes > 1:
            raise UserError(f"{name} must be in config.global_batch_info when dp_size > 1")
        return 1.0
    return here / float(total) * processes


def _with_advantage_B(batch: Batch, algorithm: Algorithm) -> Batch:
    """The batch with one advantage for each rollout, if a term reads it. Raises UserError when a
    rollout has several. Tokens that a selection left out have 0.
    """
    if "advantage_B" not in algorithm.reads(("terms",)):
        return batch
    arguments = (batch["rollout_T"], batch.size("B"), batch["mask_T"] & (batch["advantage_T"] != 0))
    high_B = segments.extreme(batch["advantage_T"], *arguments, largest=True)
    low_B = segments.extreme(batch["advantage_T"], *arguments, largest=False)
    some_B = segments.count(arguments[0], arguments[1], arguments[2]) > 0
    if bool((some_B & (high_B != low_B)).any()):
        raise UserError("this loss reads one advantage an answer; the estimator gives several")
    return batch.set(advantage_B=torch.where(some_B, high_B, 0))


def reasons_of(method: Method) -> list[str]:
    """Why verl cannot use the method's advantages, and its loss; empty where it can."""
    return [why_no_half(method, host) for host in (VERL_ESTIMATOR, VERL_LOSS)]


def register(recipe: str, name: str = "") -> tuple[bool, bool]:
    """Register a recipe in verl as `strop/NAME`; returns whether as an estimator, and as a loss.

    name: by default the recipe's text. Raises UserError when verl can use neither.
    """
    method = notation.recipe(recipe)
    reasons = reasons_of(method)
    if all(reasons):
        raise UserError(
            f"verl can use neither advantages nor loss of {recipe}: it {reasons[0]}, and it "
            f"{reasons[1]}; {instead(recipe, lambda other: not all(reasons_of(other)))}"
        )
    assert isinstance(method, Algorithm)
    called = PREFIX + (name or recipe)
    if not reasons[0]:
        register_adv_est(called)(Estimator(method))
    if not reasons[1]:
        register_policy_loss(called)(PolicyLoss(method))
    return not reasons[0], not reasons[1]


def register_all() -> None:
    """Register every recipe, with its defaults, of which verl can use at least one half."""
    made = catalogue.of_each(catalogue.recipes(), lambda e: notation.build_recipe(e.name, {}))
    for entry, method in made.items():
        if not all(reasons_of(method)):
            register(entry.name)


register_all()
