"""Rewards tool use at first, and later imitates the policy's own successes."""

import dataclasses
from typing import Any

from strop.batch.columns import POLICY, REPLAY
from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.method.schedule import Cosine
from strop.parts.curation.keep_widest_groups import KeepWidestGroups
from strop.parts.curation.replay_successes import ReplaySuccesses
from strop.parts.loss.bound.drop_high_covariance_tokens import DropHighCovarianceTokens
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.parts.reward.reward_answered_turns import RewardAnsweredTurns
from strop.parts.selection.drop_truncated_rollouts import DropTruncatedRollouts
from strop.parts.selection.keep_origins import KeepOrigins
from strop.recipes._base import average, replaying, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.dr_grpo import dr_grpo


@inherits(dr_grpo, without=("num_minibatches",))
def spear(
    *,
    # Steps in which turns earn a bonus, which decays; 0: never.
    T_tool: int = 200,
    # Steps over which the weight of imitation grows, and that weight; coef 0: no imitation.
    T_sil: int = 200,
    coef: float = 1.0,
    size: int = 2048,
    # Groups whose median reward is the baseline of replayed rollouts.
    hist: int = 10240,
    # Steps after which a stored rollout is dropped.
    tol: int = 10,
    # Factor on stored advantages that are not recomputed; 0: recompute them.
    decay: float = 0.0,
    # Whether recomputed advantages are divided by the usual deviation.
    divide_by_std: bool = False,
    # Share of the groups that is trained on, those whose rewards differ most; 1: all.
    kept: float = 0.75,
    # Share of tokens, of covariance lb to ub, that are dropped; 0: one token of replayed rollouts.
    ratio: float = 0.02,
    lb: float = 1.0,
    ub: float = 40.0,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    aggregation: str = "seq-mean-token-sum-norm",
    length: int = 0,
    **parent: Any,
) -> Algorithm:
    """Learn the Ropes, Then Trust the Wins: Self-imitation with Progressive Exploration (SPEAR).

    arXiv 2509.22601. Code: TencentYoutuResearch/SPEAR. Parent: dr_grpo. Status: exact.

    Family: draws.
    In short: tool bonus, then self-imitation.
    Choose it when: success is rare and first needs tool use, so that it should be replayed.
    Equation: R_i + min(1, 0.1 turns_i) (cos(pi step / T_tool) + 1) / 2; when more than 1.5 size
    stored rollouts of A > 0 have R > P50, the median of group means: A' = R - P50 >= 0 for a power
    of two of them, loss = -w mean c min(rho A', clip(rho) A') in an update of its own, w = coef
    (1 - cos(pi step / T_sil)) / 2; c = 0 of a few tokens of high covariance of A' with logp.
    Differs from the parent: that bonus and that update; such tokens are dropped from fresh
    rollouts, too; clip_high 0.28; truncated rollouts and groups of small spread are not trained on.
    Differs once: `'spear(size=16, hist=16)' data.task=corridor 'data.task_config={size: 2, style:
    compact}'`: turns earn a bonus, successes are replayed (replay/drawn > 0).
    Differs from the paper: 1. ratio, lb and ub are shared by both (its scripts leave those of fresh
    rollouts at 0.0002, 1 and 5); 2. its filters of answers that repeat themselves, cannot be parsed
    or have no action are missing, and filtered rollouts count in no mean; 3. turns that the
    environment answered earn it, and rollouts without one are stored, too; 4. its scripts' horizons
    are 200 (T_tool), 100 to 300 (T_sil) and 5 (tol); their dual clip needs another loss.
    Try: size (rollouts of a step; no replay where fewer than 1.5 size are good in tol steps), hist
    (groups of some steps), T_sil, T_tool (0 for one turn), kept.
    """
    algorithm = dr_grpo(
        clip_low=clip_low, clip_high=clip_high, aggregation=aggregation, length=length, **parent
    )
    part = DropHighCovarianceTokens(clip_low, clip_high, ratio, lb, ub)
    algorithm = _exploring(algorithm, part if ratio else None, T_tool, kept)
    if not coef:
        return algorithm
    imitate = _imitate(part, average(aggregation, length), coef, T_sil)
    return _replaying(algorithm, ReplaySuccesses(size, hist, tol, divide_by_std, decay), imitate)


def _exploring(
    algorithm: Algorithm, part: DropHighCovarianceTokens | None, steps: int, kept: float
) -> Algorithm:
    """The algorithm with a bonus for turns in these steps, and filters of what is trained on."""
    paid = (Use(RewardAnsweredTurns(weight=Cosine(1.0, 0.0, steps))),) if steps else ()
    return dataclasses.replace(
        with_policy(algorithm, objective=Use(part)) if part is not None else algorithm,
        reward=(*algorithm.reward, *paid),
        curation=(Use(KeepWidestGroups(kept)),) if kept < 1 else (),
        selection=(Use(DropTruncatedRollouts()),),
    )


def _imitate(part: DropHighCovarianceTokens, average: Use, coef: float, steps: int) -> Term:
    """The term of replayed rollouts, with the probabilities at which they were sampled."""
    ratio = Use(RatioPerToken(), (("logp_old_T", "logp_sampler_T"),))
    on = Use(KeepOrigins((REPLAY,)))
    grown = Cosine(0.0, coef, steps) if steps else coef
    return Term("imitate", Use(part), average, ratio=ratio, on=on, coef=grown)


def _replaying(algorithm: Algorithm, replay: ReplaySuccesses, imitate: Term) -> Algorithm:
    """The algorithm with a replay buffer, whose rollouts have a term and an update of their own."""
    algorithm = with_policy(replaying(algorithm, replay), on=Use(KeepOrigins((POLICY,))))
    return dataclasses.replace(
        algorithm,
        terms=(*algorithm.terms, imitate),
        plan=Use(SplitIntoMinibatches(replayed_last=True)),
    )
