"""A turn-level critic, trained off-policy from a replay buffer, teaches a token-level policy."""

from collections.abc import Iterator
from typing import Any

from strop.batch.columns import POLICY, REPLAY
from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.credit.bootstrap_next_value import BootstrapNextValue
from strop.parts.advantage.credit.compare_action_with_state import CompareActionWithState
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.weight.subtract_token_value import SubtractTokenValue
from strop.parts.curation.replay_rollouts import ReplayRollouts
from strop.parts.curation.resample_actions import ResampleActions
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.value.regress_value import RegressValue
from strop.parts.plan.update_critic_first import UpdateCriticFirst
from strop.parts.probe.read_turn_value import ReadTurnValue
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.parts.selection.keep_origins import KeepOrigins
from strop.recipes._base import around, average
from strop.recipes._door import door

OF_POLICY = Use(KeepOrigins((POLICY,)))
# Values of a state and of an action in it, of either critic.
PAIRS = (("value", "value_after"), ("value_second", "value_after_second"))


@door(
    columns={
        "v1": "value_K", "v2": "value_second_K",
        "q1": "value_after_K", "q2": "value_after_second_K",
        "target_q1_at_policy_action": "value_after_slow_K",
        "target_q2_at_policy_action": "value_after_second_slow_K",
        "target_v1_next": "next_value_slow_K", "target_v2_next": "next_value_second_slow_K",
    }
)  # fmt: skip
def archer(
    *,
    # Discount of a turn.
    gamma: float = 0.95,
    # Turns that the replay buffer holds.
    capacity: int = 100_000,
    # Episodes sampled from the replay buffer in a step.
    num_drawn: int = 128,
    # Updates of the critic in a step.
    critic_epochs: int = 50,
    # Updates of the policy in a step.
    actor_epochs: int = 3,
    # Whether a token-level value is subtracted from its turn's advantage.
    token_baseline: bool = False,
    # Steps at the start in which only the critic is trained.
    warmup_steps: int = 20,
    num_prompts: int = 128,
    num_rollouts: int = 1,
) -> Algorithm:
    """ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL.

    arXiv 2402.19446. Code: YifeiZhou02/ArCHer. Parent: none. Status: partial.

    Family: critics.
    In short: off-policy critic of turns.
    Choose it when: episodes are long and expensive: a turn-level critic learns from all earlier
    ones, while the policy needs one fresh action a turn.
    Equation: Q_j(o, a) -> r + gamma (1 - done) V_j'(o'), V_j(o) -> Q_j'(o, a~), a~ of the current
    policy, ' a slow copy, j = 1, 2; A = min_j Q_j(o, a~) - min_j V_j(o); loss = -mean over o of
    sum_t A logp(a~_t), o and (o, a, r, o') from the replay buffer; with token_baseline A - v_t, v_t
    -> A.
    Differs from the parent: -
    Differs from the paper: 1. heads and their slow copies read the policy's hidden states, instead
    of an encoder of their own; 2. a step samples episodes once, splits them over the updates of
    critic and policy and learns from one a~ of each turn, sampled before the first of them (there
    each update samples new states and a~); 3. an episode that was cut off ends there; 4. v is a
    head of the critic and is trained in its updates (there of the policy, in the policy's).
    Try: critic.target_tau (0.1), critic.lr, critic_epochs, warmup_steps, token_baseline.
    """
    base: dict[str, Any] = around(num_prompts, num_rollouts)
    return Algorithm(
        **base | {
            "rollout": Use(PlayTurns()),
            "plan": Use(UpdateCriticFirst(critic_epochs, warmup_steps, actor_epochs)),
        },
        curation=(
            Use(ReplayRollouts(capacity=capacity, num_drawn=num_drawn)),
            Use(ResampleActions()),
        ),
        probes=tuple(_reads()),
        advantage=(
            *_targets(gamma), Use(CompareActionWithState()), Use(SpreadTurns()),
            *(_token_baseline() if token_baseline else ()),
        ),
        selection=(OF_POLICY,),
        terms=tuple(_terms(token_baseline)),
    )  # fmt: skip


def _reads() -> Iterator[Use]:
    """Values of turns by both critics, before and after the action, current and slow copies."""
    for before, after in PAIRS:
        places = (
            (before, "first", before, (POLICY,)),
            (after, "last", after, (REPLAY,)),
            (f"{after}_slow", "last", f"{after}_slow", ()),
            (f"{before}_slow", "next", f"next_{before}_slow", ()),
        )
        for head, place, name, origins in places:
            columns = (("value_T", f"{head}_T"), ("value_K", f"{name}_K"), ("at_T", f"at_{name}_T"))
            yield Use(ReadTurnValue(place, origins), columns, f"read_{name}")


def _targets(gamma: float) -> Iterator[Use]:
    """Regression targets of the values of states and of actions, on tokens."""
    for before, after in PAIRS:
        names = (("next_value_K", f"next_{before}_slow_K"), ("return_K", f"return_{after}_K"))
        yield Use(BootstrapNextValue(gamma), names, f"expect_{after}")
        for name, found in ((before, f"{after}_slow_K"), (after, f"return_{after}_K")):
            columns = (("advantage_K", found), ("advantage_T", f"return_{name}_T"))
            yield Use(SpreadTurns(), columns, f"return_{name}")


def _terms(token_baseline: bool) -> Iterator[Term]:
    """The policy's term, and one of each head of the critic."""
    yield Term("policy", Use(FollowAdvantage()), average("seq-mean-token-sum"))
    for names in zip(*PAIRS, strict=True):
        yield from (_regress(name) for name in names)
    if token_baseline:
        yield _regress("value_token", OF_POLICY)


def _token_baseline() -> Iterator[Use]:
    """The advantage as the regression target of a token's value, then what is left beyond it."""
    yield Use(SpreadTurns(), (("advantage_T", "return_value_token_T"),), "return_value_token")
    yield Use(SubtractTokenValue(), (("value_T", "value_token_T"),))


def _regress(name: str, on: Use | None = None) -> Term:
    """The term of one head: a squared error at its own tokens."""
    head = f"{name}_T"
    columns = (("value_T", head), ("return_T", f"return_{name}_T"))
    on = on or Use(KeepMarkedTokens(), (("learning_T", f"at_{name}_T"),))
    return Term(name, Use(RegressValue(0.0), columns), average("token-mean"), on=on, coef=2.0,
                learner="critic")  # fmt: skip
