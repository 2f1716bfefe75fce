"""Self-play in games: returns of turns, each player compared with itself."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.centre_turns import CentreTurns
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.place_turn_rewards import PlaceTurnRewards
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.credit.sum_later_rewards import SumLaterRewards
from strop.parts.advantage.weight.centre_distinct_values import CentreDistinctValues
from strop.parts.advantage.weight.limit_size import LimitSize
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import ESTIMATOR, check_choice, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

NORMS = {"mean": "none", "mean_std": "unbiased"}  # and "none"
ANY = ("group_K", "rollout_K")  # players are compared over the step: groups play no part
REWARD = (ANY, ("values_K", "reward_K"), ("advantage_K", "reward_K"))
WHITENS = {"paper": False, "code": True}


@door(
    instead={
        "values": "it has no critic (gae has): give turn_rewards, or token_rewards with turn_end; "
        "its mean over distinct values alone is variant='code', reward_norm='none', no whitening"
    }
)
@inherits(grpo, without=ESTIMATOR, beta=0.2, num_rollouts=1)
def mars(
    *,
    # "paper" (mean over a player's turns) or "code" (over the distinct values of its tokens).
    variant: str = "paper",
    # First normalisation of a player's turn rewards: "none" (the paper), "mean" (the code),
    # "mean_std" (also divided by the deviation), or "variant": that of the variant.
    reward_norm: str = "variant",
    # Whether rewards are first whitened over tokens: true, false, "paper" (no), "code" (yes) or
    # "variant"; true requires the variant "code".
    whiten_rewards: bool | str = "variant",
    # "mean" (less the player's), "mean_std" (also divided by its deviation) or "none".
    advantage_norm: str = "mean",
    # Whether advantages are whitened over tokens at the end; the same values.
    whiten_advantages: bool | str = "variant",
    # Discount of a turn; of a token in the variant "code".
    gamma: float = 1.0,
    # Largest size of an advantage; 0: any.
    advantage_clip: float = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    # Largest ratio on negative advantages, above 1; 0: none.
    dual_clip_c: float = 1.4,
    **parent: Any,
) -> Algorithm:
    """MARS: Reinforcing Multi-Agent Reasoning of LLMs through Self-Play in Strategic Games.

    arXiv 2510.15414 (later MARSHAL). Code: thu-nics/MARSHAL. Parent: grpo. Status: exact.

    Family: turns.
    In short: self-play with per-player means.
    Choose it when: one policy plays every seat of a game, and a seat that the rules favour should
    not count as the better player.
    Equation: A_{i,k} = Ret_{i,k} - mean of the Ret of the same player over the step,
    Ret_{i,k} = sum_{k' >= k} gamma^(k' - k) r_{i,k'}; loss as grpo's with the dual clip.
    Differs from the parent: turns have advantages of their own; a player of a game is compared with
    itself only; no deviation; a KL penalty of weight 0.2.
    Differs from the paper: 1. the variant "code" centres rewards, whitens them over tokens and the
    advantages again, and takes the mean over distinct values, without the 0 of padded rows; 2. one
    kind of game a run (there one mean a game); 3. sampled at temperature 1 (0.6, top_p 0.99, top_k
    100 there); 4. no running means, no asymmetric clip. The average is its code's, per answer.
    Try: variant ("code"), advantage_clip (4), rollout.temperature, num_prompts (192).
    """
    check_choice("mars", WHITENS, variant=variant)
    norm = {"paper": "none", "code": "mean"}[variant] if reward_norm == "variant" else reward_norm
    white = _switch("whiten_rewards", whiten_rewards, variant)
    whitens = _switch("whiten_advantages", whiten_advantages, variant)
    check_choice("mars", (*NORMS, "none", "variant"), reward_norm=reward_norm)
    check_choice("mars", (*NORMS, "none"), advantage_norm=advantage_norm)
    if white and variant == "paper":
        raise UserError('mars: whiten_rewards needs variant="code", whose rewards lie on tokens')
    first = [Use(CentreTurns("player", scale=NORMS[norm]), REWARD)] if norm != "none" else []
    credit = _of_tokens if variant == "code" else _of_turns
    last = [Use(WhitenOverBatchTokens())] if whitens else []
    limit = [Use(LimitSize(advantage_clip))] if advantage_clip else []
    algorithm = grpo(clip_low=clip_low, clip_high=clip_high, **parent)
    return dataclasses.replace(
        with_policy(algorithm, objective=Use(ClipBothSides(clip_low, clip_high, dual_clip_c))),
        rollout=Use(PlayTurns()),
        advantage=(*first, *credit(gamma, white, advantage_norm), *last, *limit),
    )


def _switch(name: str, value: bool | str, variant: str) -> bool:
    """Whether something is done; a variant's name stands for what that variant does."""
    value = variant if value == "variant" else value
    if isinstance(value, str) and value not in WHITENS:
        raise UserError(f"recipe mars: {name} is true, false, variant, paper or code: {value!r}")
    return WHITENS[value] if isinstance(value, str) else value


def _of_turns(gamma: float, white: bool, norm: str) -> list[Use]:
    """The paper's form: returns of turns, centred by player."""
    if norm == "none":
        renamed = (("return_K", "advantage_K"),)
        return [Use(DiscountTurnRewards(gamma), renamed), Use(SpreadTurns())]
    centre = CentreTurns("player", scale=NORMS[norm])
    return [Use(DiscountTurnRewards(gamma)), Use(centre, (ANY,)), Use(SpreadTurns())]


def _of_tokens(gamma: float, white: bool, norm: str) -> list[Use]:
    """The code's form: returns of tokens, centred by player on their distinct values."""
    later = [Use(PlaceTurnRewards()), Use(SumLaterRewards(gamma, white))]
    return later if norm == "none" else [*later, Use(CentreDistinctValues(NORMS[norm]))]
