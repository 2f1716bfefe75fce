"""Trains on turns of high entropy, and completes groups of rare success from a pool."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.normalise_over_group_turns import NormaliseOverGroupTurns
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.curation.complete_from_pool import CompleteFromPool
from strop.parts.loss.average.average_per_turn import AveragePerTurn
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.correction.weigh_by_engine_ratio import WeighByEngineRatio
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.parts.sampling.limit_turns_by_successes import LimitTurnsBySuccesses
from strop.parts.sampling.spare_solved_prompts import SpareSolvedPrompts
from strop.parts.sampling.track_success import TrackSuccess
from strop.parts.selection.keep_high_entropy_turns import KeepHighEntropyTurns
from strop.recipes._base import ESTIMATOR, with_policy, with_term
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, "aggregation"), beta=0.1)
def dart(
    *,
    # Fewest rollouts of a prompt; num_rollouts is the most.
    N_min: int = 2,
    # Success rate from which a prompt gets fewer rollouts; 0: none does.
    threshold: float = 0.6,
    # Limit on an episode's turns: those of the prompt's longest success, T_min to T_max; 0: none.
    T_min: int = 10,
    T_max: int = 50,
    # Share of a prompt's turns, those of least entropy, that are not trained on.
    quantile: float = 0.2,
    # Largest importance weight of a token, old policy over sampling policy; 0: no weight.
    C: float = 1.0,
    # Whether prompts are completed from a pool; without it every group is trained on as it is.
    pool: bool = True,
    # Steps for which rollouts may wait for the rest of their group.
    versions: int = 2,
    clip_low: float = 0.1,
    clip_high: float = 0.28,
    dual_clip_c: float = 10.0,
    eps: float = 1e-6,
    num_prompts: int = 32,
    num_rollouts: int = 8,
    **parent: Any,
) -> Algorithm:
    """DART: Efficient Multi-turn RL for GUI Agents via Decoupled Training and Data Curation.

    arXiv 2509.23866. Code: Computer-use-agents/dart-gui. Parent: grpo. Status: partial.

    Family: turns.
    In short: success pool, high-entropy turns.
    Choose it when: episodes are long and success is rare: a prompt's past successes should be
    reused, and routine turns should not dominate the update.
    Equation: A = (R - mean) / (std + eps) over all turns of the prompt; turns with H >= the
    quantile; loss = -mean over turns of mean_t w min(rho A, clip(rho) A) + beta KL, w =
    min(exp(logp_old - logp_behavior), C); N(s) = num_rollouts below threshold, else max(N_min,
    int(9 / s - 7)), and a prompt waits until it has num_rollouts; without a success its newest one
    takes the oldest's place; turns <= those of its longest success.
    Differs from the parent: how many rollouts, how long, which groups and turns are trained on,
    turns as samples, the weight w, clip 0.1 and 0.28 with a dual clip, beta 0.1.
    In full once: `data.train_size=16` (replay/drawn > 0).
    Differs from the paper: 1. prompts come back after an epoch, so one with N(s) < num_rollouts is
    never complete where epochs are longer than `versions` steps; 2. workers load new weights
    independently of each other only on Ray (`training.max_staleness`,
    `training.renew_between_tokens=false`); 3. inferred: tasks without a success have the usual
    limit of turns.
    Try: versions, quantile (0), ratio=ratio_per_sequence (the released script), N_min.
    """
    draw, turns = Use(DrawInShuffledOrder(num_prompts, num_rollouts)), Use(AveragePerTurn(False))
    weight = Use(WeighByEngineRatio("token", high=C)) if C else None
    clip = Use(ClipBothSides(clip_low, clip_high, dual_clip_c))
    algorithm = with_term(grpo(**parent), "kl", average=turns)
    algorithm = with_policy(algorithm, objective=clip, correction=weight, average=turns)
    return dataclasses.replace(
        algorithm,
        sampling=(draw, *_shared_out(N_min, threshold, T_min, T_max)),
        curation=(Use(CompleteFromPool(ready=0, versions=versions)),) if pool else (),
        advantage=(Use(NormaliseOverGroupTurns(eps)), Use(SpreadEvenly())),
        selection=(Use(KeepHighEntropyTurns(quantile)),) if quantile else (),
    )


def _shared_out(N_min: int, threshold: float, T_min: int, T_max: int) -> tuple[Use, ...]:
    """How many rollouts the prompts get, and of how many turns."""
    spare = (Use(SpareSolvedPrompts(N_min, threshold)), Use(TrackSuccess())) if threshold else ()
    return (*spare, *((Use(LimitTurnsBySuccesses(T_min, T_max)),) if T_max else ()))
