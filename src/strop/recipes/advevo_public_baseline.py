"""Attackers and defenders that learn together, each role with its own baseline."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_role_mean import SubtractRoleMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.reward.weigh_rewards_by_phase import WeighRewardsByPhase
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import check_choice
from strop.recipes._inherit import inherits
from strop.recipes.reinforce_plus_plus import reinforce_plus_plus

POOLS = {"step": "role_B", "prompt": "group_B", "episode": "episode_B"}


@inherits(reinforce_plus_plus, without=("gamma",))
def advevo_public_baseline(
    *,
    # The set over which a role's mean is taken: "step", "prompt" or "episode".
    pool: str = "step",
    # Whether advantages are whitened over the step's policy tokens, as in the parent.
    whiten: bool = False,
    # Weights of the rewards in the first half of the run, the game's own first; (): 1 each.
    first_half: tuple[float, ...] = (),
    # The same in the second half.
    second_half: tuple[float, ...] = (),
    **parent: Any,
) -> Algorithm:
    """AdvEvo-MARL: Shaping Internalized Safety through Adversarial Co-Evolution in Multi-Agent RL.

    arXiv 2510.01586. Code: none released. Parent: reinforce_plus_plus. Status: abstract.

    Family: turns.
    In short: attackers and defenders co-evolve.
    Choose it when: attackers and defenders, or other opposed roles, learn together and each player
    should be compared only with its own side.
    Equation: A_i = R_i - mean of R_j over those who had the role of i (all attackers, or all
    defenders); loss = -mean_i mean_t min(rho A_t, clip(rho) A_t).
    Differs from the parent: games of several players; the role's mean is subtracted; tokens are not
    whitened unless `whiten` is set.
    Differs from the paper: 1. the pool of the mean, and that nothing is whitened, are inferred; 2.
    each role has its own weights where the run sets them (`roles.play=each model.lora_rank=16`, on
    one base), else one policy plays both; 3. there attackers are first tuned on given attacks; here
    that is a phase of its own (`until(20, sft) @ warm | advevo_public_baseline`, on the
    environment's column `completion`), not by default; 4. the reward is the game's and that of
    --reward; there a defender's is a sum of safety, task and format, safety weighing more in the
    first half of the run: `first_half` and `second_half` are such weights (the paper's were not
    found).
    Try: pool ("episode" with several defenders), whiten, num_rollouts.
    """
    check_choice("advevo_public_baseline", POOLS, pool=pool)
    algorithm = reinforce_plus_plus(**parent)
    whitening = algorithm.advantage[-1:] if whiten else ()
    halves = (
        (Use(WeighRewardsByPhase(first_half, second_half)),) if first_half or second_half else ()
    )
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        reward=(*algorithm.reward, *halves),
        advantage=(
            Use(SubtractRoleMean(), (("pool_B", POOLS[pool]),)),
            Use(SpreadEvenly()),
            *whitening,
        ),
    )
