"""Agents that work one after another on a task: one critic estimates what each of them added."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.baseline.centre_turns import CentreTurns
from strop.parts.advantage.credit.estimate_generalised_advantage import EstimateGeneralisedAdvantage
from strop.parts.advantage.credit.estimate_turn_advantage import EstimateTurnAdvantage
from strop.parts.advantage.credit.place_turn_rewards import PlaceTurnRewards
from strop.parts.advantage.credit.share_reward_among_turns import ShareRewardAmongTurns
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.weight.whiten_over_batch_tokens import WhitenOverBatchTokens
from strop.parts.loss.average.average_per_turn import AveragePerTurn
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.loss.value.regress_value import RegressValue
from strop.parts.plan.update_while_near import UpdateWhileNear
from strop.parts.probe.read_turn_value import ReadTurnValue
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.parts.selection.take_roles_in_turn import TakeRolesInTurn
from strop.recipes._base import average, check_choice, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae

WHOLE = Use(RatioPerSequence(product=True, unit="turn"))
ONCE = Use(AveragePerTurn(per_rollout=False))  # every turn of the update weighs the same
STEP = (("group_K", "rollout_K"), ("values_K", "advantage_K"))  # groups play no part
RETURNS = (("advantage_K", "return_K"), ("advantage_T", "return_T"))


@door(
    # of a turn: 1 where its episode goes on after it
    tensors={"step_masks": ("done", lambda mask: mask == 0)},
    instead={
        "next_value": "what follows the last turn is worth 0; add gamma times it to that turn's "
        "turn_rewards"
    },
)
@inherits(gae, without=("whiten_eps", "aggregation", "beta"), num_prompts=32, num_rollouts=1)
def marft(
    *,
    # Unit of values, ratios and advantages: "turn" or "token".
    level: str = "turn",
    # Reward of a turn: "own", the environment's for that turn, or "team", what all earned.
    credit: str = "own",
    # Factor on the team's reward for each turn that follows; 0: only the last turn earns it.
    share: float = 0.0,
    gamma: float = 0.99,
    lam: float = 0.95,
    # Whether advantages are normalised over the step's turns, or tokens.
    normalize: bool = True,
    eps: float = 1e-8,
    # Largest useful change of a value; error beyond which its loss is linear; 0: any, none.
    clip_value: float = 0.2,
    huber_delta: float = 10.0,
    # Weight of the entropy, per nat of a turn's mean token.
    entropy_coef: float = 0.01,
    num_epochs: int = 5,
    num_minibatches: int = 1,
    max_kl: float = 1e-3,
    warmup_steps: int = 0,
    # Steps of training on one agent's turns (of two: take_roles_in_turn.roles); 0: all together.
    interval: int = 0,
    **parent: Any,
) -> Algorithm:
    """MARFT: Multi-Agent Reinforcement Fine-Tuning.

    arXiv 2504.16129. Code: jwliao-ai/MARFT. Parent: gae. Status: partial.

    Family: turns.
    In short: sequential agents with one critic.
    Choose it when: agents work one after another on a task that is rewarded as a whole, and a
    critic should estimate what each of them contributed.
    Equation: over turns in the order of play (agents of a step, then the next step): delta = r +
    gamma V_next - V, A = delta + gamma lam A_next, G = A + V; A <- (A - mean) / (std + eps); loss =
    -mean over turns of [min(w A, clip(w) A) + entropy_coef H], w = exp(sum_t (logp - logp_old));
    critic: mean max(h(V - G), h(clip(V) - G)), h(e) = e^2 / 2, a line beyond huber_delta. Turn k of
    a team's N has r = R share^(N - k). level="token": the same over tokens, r at a turn's last one.
    Differs from the parent: turns, unless level="token"; entropy; max_kl ends the policy's updates.
    Differs from the paper: 1. agents have an adapter each where `roles.play={0: one, 1: other}`
    (and model.lora_rank) gives them one, by the `role` of an observation, else one model plays all;
    2. the critic is a head on the acting agent's hidden states, one an adapter (there one for all);
    3. one normalisation a step (there one a mini-batch, without exact zeros); 4. the kl is taken
    after an update, on its rollouts (there before it); 5. an agent's own reward function is the
    environment's reward of its turn. A team is one player: a game's seats have own credit.
    Try: critic.lr (5e-4), lam, max_kl (0.01), interval (50), credit="team".
    """
    check_choice("marft", ("own", "team"), credit=credit)
    algorithm, made = gae(**parent), _turns if level == "turn" else _tokens
    paid = (Use(ShareRewardAmongTurns(share)),) if credit == "team" else ()
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        probes=(Use(ReadTurnValue("first")),) if level == "turn" else (),
        advantage=(*paid, *made(gamma, lam, eps, normalize)),
        selection=(Use(TakeRolesInTurn(interval)),) if interval else (),
        terms=_terms(algorithm, level, entropy_coef, RegressValue(clip_value, huber_delta)),
        plan=Use(UpdateWhileNear(num_epochs, num_minibatches, max_kl, warmup_steps, level)),
    )


def _terms(
    algorithm: Algorithm, level: str, entropy_coef: float, value: RegressValue
) -> tuple[Term, ...]:
    """The policy's terms, the entropy's, and the critic's where its values are read."""
    check_choice("marft", ("turn", "token"), level=level)
    ratio, each, on = Use(RatioPerToken()), average("token-mean"), None
    if level == "turn":
        ratio, each = WHOLE, ONCE
        on = Use(KeepMarkedTokens(), (("learning_T", "at_T"),))
    terms = with_policy(algorithm, ratio=ratio, average=each).terms
    bonus = (Term("entropy", Use(RewardEntropy()), each, coef=entropy_coef),)
    critic = Term("value", Use(value), average("token-mean"), on=on, learner="critic")
    policy = tuple(term for term in terms if term.learner == "policy")
    return (*policy, *(bonus if entropy_coef else ()), critic)


def _turns(gamma: float, lam: float, eps: float, normalize: bool) -> tuple[Use, ...]:
    """Credit of turns, shared by all their tokens."""
    credit = Use(EstimateTurnAdvantage(gamma, lam, bootstrap_truncated=False))
    scale = (Use(CentreTurns("batch", scale="biased", eps=eps), STEP),) if normalize else ()
    return (credit, *scale, Use(SpreadTurns(), RETURNS, "returns"), Use(SpreadTurns()))


def _tokens(gamma: float, lam: float, eps: float, normalize: bool) -> tuple[Use, ...]:
    """Credit of tokens, with a turn's reward at its last one."""
    scale = (Use(WhitenOverBatchTokens(eps)),) if normalize else ()
    return (Use(PlaceTurnRewards()), Use(EstimateGeneralisedAdvantage(gamma, lam)), *scale)
