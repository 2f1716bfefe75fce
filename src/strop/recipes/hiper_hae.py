"""Separate credit for switching, for the subgoal and for the action, each on its own tokens."""

import dataclasses
from typing import Any

from strop.batch.columns import old_value
from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.credit.estimate_segment_advantage import EstimateSegmentAdvantage
from strop.parts.advantage.credit.estimate_turn_advantage import EstimateTurnAdvantage
from strop.parts.advantage.credit.shape_segment_rewards import ShapeSegmentRewards
from strop.parts.advantage.credit.spread_over_spans import SpreadOverSpans
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.loss.value.regress_value import RegressValue
from strop.parts.probe.mark_spans import MarkSpans
from strop.parts.probe.read_turn_value import ReadTurnValue
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.recipes._base import average
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae

# Level -> where its value is read, its value of a turn, what its return of a turn is called.
LEVELS = {
    "high": ("segment", "value_K", "segment_return_K"),
    "low": ("action", "value_low_K", "return_K"),
    "term": ("first", "value_term_K", "switch_return_K"),
}
HEADS = {"high": "value_T", "low": "value_low_T", "term": "value_term_T"}


@door(
    columns={
        "v_high": "value_K", "v_low": "value_low_K", "v_term": "value_term_K",
        "subgoal_token": "subgoal_K",
    }
)  # fmt: skip
@inherits(gae, without=("whiten_eps",), num_prompts=16, num_rollouts=8, beta=0.01)
def hiper_hae(
    *,
    # Discount of a turn.
    gamma: float = 1.0,
    # Lambda of GAE within a segment.
    lam: float = 1.0,
    # Lambda of GAE over segments.
    lam_seg: float = 0.95,
    # Whether the advantages of actions, subgoals and switches are each normalised over the batch.
    normalize: bool = True,
    # Whether the policy's advantages treat an episode that was cut off as continuing.
    bootstrap_truncated: bool = True,
    # Added to the reward of a turn that keeps its subgoal, and whether it is shared by the turns.
    c_keep: float = -0.3,
    keep_mode: str = "normalized",
    # Penalty on an action that was not understood.
    c_inv: float = 0.1,
    # Added where the subgoal changes though the turn says to keep it.
    c_cons: float = -0.3,
    # Text around the three blocks of a turn, and the words of a switch that keeps.
    switch_tags: tuple[str, ...] = ("<switch>", "</switch>"),
    subgoal_tags: tuple[str, ...] = ("<subgoal>", "</subgoal>"),
    action_tags: tuple[str, ...] = ("<action>", "</action>"),
    keep: tuple[str, ...] = ("KEEP",),
    clip_value: float = 0.5,
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """HiPER: Hierarchical Reinforcement Learning with Explicit Credit Assignment for LLM Agents.

    arXiv 2602.16165. Code: JonP07/HiPER-agent. Parent: gae. Status: exact.

    Family: critics.
    In short: heads for switch, subgoal, action.
    Choose it when: the agent states, in a fixed format, a subgoal and whether to keep it, and these
    choices last longer than single actions.
    Equation: a segment lasts from one switch to the next; action tokens get GAE over the turns of
    their segment, which ends in V_high of the next; subgoal tokens of its first turn GAE over
    segments; switch tokens the rewards left in the segment + V_high of the next - V_term.
    Differs from the parent: three value heads, read once a turn, in place of a value of each token.
    Differs from the paper: 1. as in its code, a switch is credited by a head of its own, not by
    V_high - V_low; 2. one growing context, and heads on the policy's hidden states instead of a
    separate model; 3. the critic is trained on what a cut-off episode earned: to that, its code
    adds the cut turn's own value, which is unanchored (corridor, limit 7, last 8 of 90 steps, seed
    1: values at -150, reward 0.00; so 0.50). WebShop has c_keep -3.5 and bootstrap_truncated off.
    Try: c_keep, lam_seg, keep_mode ("fixed"), strop.environments.action_block:ActionBlock.
    """
    spans = MarkSpans(switch_tags, subgoal_tags, action_tags, keep)
    shaped = Use(ShapeSegmentRewards(c_keep, keep_mode, c_inv, c_cons))
    credits = _credits(gamma, lam, lam_seg, bootstrap_truncated)
    algorithm = gae(aggregation=aggregation, **parent)
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        probes=(Use(spans), *(_read(level) for level in LEVELS)),
        advantage=(shaped, *credits, *map(_returns, LEVELS), Use(SpreadOverSpans(normalize))),
        selection=(Use(KeepMarkedTokens()),),
        terms=_terms(algorithm, clip_value, aggregation),
    )


def _terms(algorithm: Algorithm, clip_value: float, aggregation: str) -> tuple[Term, ...]:
    """The policy's terms of gae, and one for each of the three heads in place of its critic's."""
    policys = [term for term in algorithm.terms if term.learner == "policy"]
    return (*policys, *(_regress(level, clip_value, aggregation) for level in LEVELS))


def _credits(gamma: float, lam: float, lam_seg: float, bootstrap: bool) -> tuple[Use, ...]:
    """The advantages of turns within their segments, and of segments; returns for the critic.

    Where the policy treats a cut-off episode as continuing, these returns do not: each is what
    was earned.
    """
    if not bootstrap:
        return _credit(gamma, lam, lam_seg, bootstrap=False)
    return (
        *_credit(gamma, lam, lam_seg, bootstrap=True, unread="return"),
        *_credit(gamma, lam, lam_seg, bootstrap=False, unread="advantage"),
    )


def _credit(
    gamma: float, lam: float, lam_seg: float, bootstrap: bool, unread: str = ""
) -> tuple[Use, Use]:
    """Both levels. unread: what is written under names that nothing reads."""
    low = EstimateTurnAdvantage(gamma, lam, bootstrap)
    high = EstimateSegmentAdvantage(gamma, lam_seg, bootstrap)
    shaped = ("reward_K", "shaped_reward_K")
    away = [
        [(name, f"unread_{name}") for name in part.writes if unread and unread in name]
        for part in (low, high)
    ]
    return (
        Use(low, (shaped, ("value_K", "value_low_K"), ("entry_value_K", "value_K"), *away[0])),
        Use(high, (shaped, ("switch_value_K", "value_term_K"), *away[1])),
    )


def _read(level: str) -> Use:
    """The level's value of every turn, and the tokens that it is read at."""
    place, column, _ = LEVELS[level]
    names = (("value_T", HEADS[level]), ("value_K", column), ("at_T", f"at_{level}_T"))
    return Use(ReadTurnValue(place), names, f"read_{level}")


def _returns(level: str) -> Use:
    """The level's returns on tokens."""
    names = (("advantage_K", LEVELS[level][2]), ("advantage_T", f"return_{level}_T"))
    return Use(SpreadTurns(), names, f"returns_{level}")


def _regress(level: str, clip_value: float, aggregation: str) -> Term:
    """The term of the level's head."""
    head = HEADS[level]
    names = (("value_T", head), ("return_T", f"return_{level}_T"), ("value_old_T", old_value(head)))
    on = Use(KeepMarkedTokens(), (("learning_T", f"at_{level}_T"),))
    objective = Use(RegressValue(clip_value), names)
    return Term(f"value_{level}", objective, average(aggregation), on=on, learner="critic")
