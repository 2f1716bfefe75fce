"""Checks TRL's options against a recipe: which mean the same, which are refused, what follows."""

import dataclasses
import re
import warnings
from typing import Any

from trl import GRPOConfig

from strop.catalogue import peers
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method, Phases, wanted_columns
from strop.parts.rollout.base import SamplingFields
from strop.support.errors import UserError

# Options of TRL's own advantages and loss, which a recipe replaces.
REPLACED = re.findall(
    r"\w+",
    "beta epsilon epsilon_high delta loss_type scale_rewards multi_objective_aggregation "
    "importance_sampling_level top_entropy_quantile entropy_coef use_adaptive_entropy "
    "off_policy_mask_threshold sapo_temperature_neg sapo_temperature_pos vespo_k_pos "
    "vespo_lambda_pos vespo_k_neg vespo_lambda_neg use_bias_correction_kl",
)
# Parameters of recipes that TRL's options set instead.
TRLS = {"num_prompts": "generation_batch_size", "num_rollouts": "num_generations"}
SAMPLED = {
    "max_tokens": "max_completion_length", "temperature": "temperature", "top_p": "top_p",
    "top_k": "top_k", "min_p": "min_p",
}  # fmt: skip
DRAWN = frozenset({"logp_behavior_T", "logp_sampler_T", "entropy_behavior_T"})
ONCE = frozenset({"contains_behavior_ratio", "corrects_behavior_ratio"})


def check(text: str, method: Method, args: GRPOConfig) -> None:
    """Raise UserError where an option of TRL and the recipe contradict each other."""
    defaults = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
    for name in REPLACED:
        if getattr(args, name) != defaults[name]:
            given = getattr(args, name)
            recipe = peers.of_loss_type(given) if name == "loss_type" else ""
            what = f": loss_type={given} is here {recipe}" if recipe else peers.ours(name)
            raise UserError(
                f"{name}={given} is an option of TRL's own loss, which the recipe replaces: leave "
                f"it out and write what you mean into the recipe{what}"
            )
    for ours, theirs in TRLS.items():
        if re.search(rf"\b{ours}\s*=", text):
            raise UserError(f"{ours} is set in the recipe; TRL samples, so give it {theirs}")
    if args.steps_per_generation % args.gradient_accumulation_steps:
        raise UserError(
            f"steps_per_generation={args.steps_per_generation} is not a multiple of "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}: an update would have "
            "rollouts of several generations, and its averages could not be taken over all of them"
        )
    for algorithm in method.algorithms:
        _check_sampling(algorithm, args)
        _check_plan(text, algorithm, args)
        if args.use_vllm and args.vllm_importance_sampling_correction and ONCE & algorithm.facts():
            raise UserError(
                "the recipe weighs by the engine's probabilities itself: set "
                "vllm_importance_sampling_correction=False, else the weight is applied twice"
            )


def _check_sampling(algorithm: Algorithm, args: GRPOConfig) -> None:
    usual = {field.name: field.default for field in dataclasses.fields(SamplingFields)}
    for ours, theirs in SAMPLED.items():
        wanted, given = getattr(algorithm.rollout.part, ours), getattr(args, theirs) or 0
        if wanted not in (usual[ours], given):
            raise UserError(f"the recipe samples with {ours}={wanted}: give TRL {theirs}={wanted}")


def _check_plan(text: str, algorithm: Algorithm, args: GRPOConfig) -> None:
    """Check how often a batch is trained on, which TRL decides: a number in the recipe's text must
    be the same; a default of the recipe is overridden, with a warning.
    """
    assert algorithm.plan is not None
    theirs = args.steps_per_generation // args.gradient_accumulation_steps
    plan = algorithm.plan.part
    for ours, given, name in (
        ("num_epochs", args.num_iterations, "num_iterations"),
        ("num_minibatches", theirs, "steps_per_generation / gradient_accumulation_steps"),
    ):
        own = getattr(plan, ours)
        clash = f"the recipe's {ours} is {own} and TRL's {name} is {given}"
        if own != given and re.search(rf"\b{ours}\s*=", text):
            raise UserError(f"{clash}: make them equal")
        if own not in (1, given):
            warnings.warn(f"{clash}, which counts", stacklevel=2)


def updates(args: GRPOConfig) -> int:
    """The number of optimiser steps on each batch of rollouts."""
    passes: int = args.steps_per_generation * args.num_iterations
    return passes // args.gradient_accumulation_steps


def reference_weight(method: Method) -> float:
    """The value of TRL's `beta` with which it keeps a reference if the recipe reads one."""
    return float("logp_ref_T" in method.reads())


def draws_whole(args: GRPOConfig) -> bool:
    """Whether answers are sampled from the policy's whole distribution."""
    cut = (args.top_k, args.min_p, args.generation_kwargs)
    return args.top_p == 1 and args.repetition_penalty == 1 and not any(cut)


def wanted(algorithm: Algorithm, method: Method) -> set[str]:
    """The token columns that are needed before the first update."""
    found = set(wanted_columns(algorithm)) - {"logp_ref_T"}
    for _, use in algorithm.uses():
        if use is not algorithm.rollout:
            later = {
                name for hook in ("observe", "update") for name in parts.update_reads(use, hook)
            }
            found |= DRAWN & ({read.column for read in parts.reads(use)} | later)
    watched: Any = algorithm.control or isinstance(method, Phases)
    return found | ({"entropy_behavior_T"} if watched else set())
