"""Likelihood of the turns that two critics find better than foretold, off the policy."""

from collections.abc import Iterator
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.credit.choose_surprising_turns import ChooseSurprisingTurns
from strop.parts.curation.replay_rollouts import ReplayRollouts
from strop.parts.loss.average.average_over_turns import AverageOverTurns
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.parts.loss.value.classify_success import ClassifySuccess
from strop.parts.plan.update_critic_first import UpdateCriticFirst
from strop.parts.probe.read_turn_value import ReadTurnValue
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.recipes._base import around, average

# Heads of the critic, where each is read, and the column of turns that it fills.
READS = (
    ("value", "first", "value_K"),
    ("value", "next", "next_value_K"),
    ("value_task", "begin", "value_task_K"),
)


def digirl(
    *,
    # Discount of success by turn.
    lam: float = 0.5,
    # Share of the episodes that are learnt from.
    p: float = 0.1,
    # Turns that fit into the store.
    buffer: int = 2000,
    # Updates of the critics and of the policy in a step, each over all that is stored.
    critic_epochs: int = 5,
    actor_epochs: int = 20,
    # Steps at the beginning in which the critics alone learn.
    warmup_steps: int = 0,
    # Which turns of these are learnt: "paper" or "code".
    source_form: str = "paper",
    num_prompts: int = 128,
    num_rollouts: int = 1,
) -> Algorithm:
    """DigiRL: Training In-The-Wild Device-Control Agents with Autonomous RL.

    arXiv 2406.11896. Code: DigiRL-agent/digirl. Parent: none. Status: partial.

    Family: critics.
    In short: imitates surprising turns.
    Choose it when: episodes are dear, every one of them should count again, and likelihood of what
    went well is safer than a policy gradient.
    Equation: critics V(s_h), U(c): cross-entropy on outcome > 0; A_h = lam^(H-h) r + (1 - lam^(H-h)
    r) (V_{h+1} + r_h - V_h); loss = -mean log pi(a_h | s_h) over turns with A_h > 1/H of the
    episodes whose r - U is in the largest share p.
    Differs from the parent: -
    Differs from the paper: 1. critics are heads on the policy's hidden states, in place of two
    encoders of their own of which the lower counts; 2. no episodes are held back to choose the
    critics' epoch; 3. no offline phase (its own start: `sft` on demonstrations); 4. an update is of
    all that is stored, its code's of 128 turns drawn from it, the policy's from the share p alone,
    with a mean that counts turns not chosen; 5. the value after an episode is 0, its code's the
    critic's of the last screen: here the last turn of a failure is never chosen. Its gradient clip
    is 0.01 (training.max_grad_norm).
    Try: critic.lr, p (0.3 with few episodes), source_form="code", actor_epochs.
    """
    base: dict[str, Any] = around(num_prompts, num_rollouts)
    plan = UpdateCriticFirst(critic_epochs, warmup_steps, actor_epochs, whole=True)
    return Algorithm(
        **base | {"rollout": Use(PlayTurns()), "plan": Use(plan)},
        curation=(Use(ReplayRollouts(capacity=buffer)),),
        probes=tuple(_reads()),
        advantage=(Use(ChooseSurprisingTurns(lam, p, source_form)),),
        terms=(
            Term("policy", Use(FollowLogLikelihood()), Use(AverageOverTurns()),
                 on=Use(KeepMarkedTokens())),
            _classify("value"),
            _classify("value_task"),
        ),
    )  # fmt: skip


def _reads() -> Iterator[Use]:
    """Values of states, of the states after them, and of tasks."""
    for head, place, name in READS:
        columns = (("value_T", f"{head}_T"), ("value_K", name), ("at_T", f"at_{name[:-2]}_T"))
        yield Use(ReadTurnValue(place), columns, f"read_{name[:-2]}")


def _classify(head: str) -> Term:
    """The term of one critic, at its own tokens."""
    on = Use(KeepMarkedTokens(), (("learning_T", f"at_{head}_T"),))
    classify = Use(ClassifySuccess(), (("value_T", f"{head}_T"),))
    return Term(head, classify, average("token-mean"), on=on, learner="critic")
