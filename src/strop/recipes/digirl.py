"""Off-policy imitation of the turns that two critics rate better than expected."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from strop.method.algorithm import Algorithm, Phase, Phases, read_until
from strop.method.part import Term, Use
from strop.parts.advantage.credit.choose_surprising_turns import ChooseSurprisingTurns
from strop.parts.curation.hold_out_rollouts import HoldOutRollouts
from strop.parts.curation.replay_rollouts import ReplayRollouts
from strop.parts.loss.average.average_per_turn import AveragePerTurn
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.parts.loss.value.classify_success import ClassifySuccess
from strop.parts.plan.update_critic_first import UpdateCriticFirst
from strop.parts.probe.read_turn_value import ReadTurnValue
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens
from strop.recipes._base import around, average
from strop.recipes._inherit import inherits

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
    # Share of the episodes that the policy is trained on.
    p: float = 0.1,
    # Turns that the replay buffer holds.
    buffer: int = 2000,
    # Updates of the critics and of the policy in a step, each over the whole buffer.
    critic_epochs: int = 5,
    actor_epochs: int = 20,
    # Steps at the start in which only the critics are trained.
    warmup_steps: int = 0,
    # Which turns of these episodes are trained on: "paper" or "code".
    source_form: str = "paper",
    # Share of each step's episodes, the last ones, that nothing is trained on.
    held_out: float = 0.2,
    num_prompts: int = 128,
    num_rollouts: int = 1,
) -> Algorithm:
    """DigiRL: Training In-The-Wild Device-Control Agents with Autonomous RL.

    arXiv 2406.11896. Code: DigiRL-agent/digirl. Parent: none. Status: partial.

    Family: critics.
    In short: imitates above-expectation turns.
    Choose it when: episodes are expensive, every one of them should be reused, and imitating what
    went well is safer than a policy gradient.
    Equation: critics V(s_h), U(c): cross-entropy on outcome > 0; A_h = lam^(H-h) r + (1 - lam^(H-h)
    r) (V_{h+1} + r_h - V_h); loss = -mean log pi(a_h | s_h) over turns with A_h > 1/H of the
    episodes whose r - U is in the largest share p.
    Differs from the parent: -
    Differs from the paper: 1. critics are heads on the policy's hidden states, instead of two
    encoders of their own of which the lower value counts; 2. an update is over the whole buffer; in
    its code it is over 128 turns sampled from it, for the policy from the share p alone, with a
    mean that counts turns not chosen; 3. the value after an episode is 0, in its code the critic's
    value of the last screen: here the last turn of a failure is never chosen. Its gradient clip is
    0.01 (training.max_grad_norm). Its offline phase is `digirl_offline`.
    Try: critic.lr, p (0.3 with few episodes), source_form="code", actor_epochs.
    """
    base: dict[str, Any] = around(num_prompts, num_rollouts)
    plan = UpdateCriticFirst(critic_epochs, warmup_steps, actor_epochs, whole=True)
    return Algorithm(
        **base | {"rollout": Use(PlayTurns()), "plan": Use(plan)},
        curation=(
            *((_hold_out(held_out),) if held_out else ()),
            Use(ReplayRollouts(capacity=buffer)),
        ),
        probes=tuple(_reads()),
        advantage=(Use(ChooseSurprisingTurns(lam, p, source_form)),),
        terms=(
            Term("policy", Use(FollowLogLikelihood()),
                 Use(AveragePerTurn(per_rollout=False, added=True)), on=Use(KeepMarkedTokens())),
            _classify("value"),
            _classify("value_task"),
        ),
    )  # fmt: skip


@inherits(digirl, without=("buffer", "warmup_steps"))
def digirl_offline(
    *,
    # When the critics' phase ends: a step, a share of the run, or a condition.
    until: float | str = 0.5,
    critic_epochs: int = 5,
    actor_epochs: int = 20,
    held_out: float = 0.2,
    **parent: Any,
) -> Phases:
    """DigiRL: Training In-The-Wild Device-Control Agents with Autonomous RL (offline phase).

    arXiv 2406.11896. Code: DigiRL-agent/digirl. Parent: digirl. Status: partial.

    Family: critics.
    In short: digirl on stored episodes.
    Choose it when: episodes are already recorded (data.task=traces:FILE), and digirl should start
    from a policy trained on the good ones.
    Equation: V(s_h) and U(c) as in digirl, 20 rounds; then loss = -mean log pi(a_h | s_h) over
    turns with A_h > 1/H of the episodes whose outcome is in the largest share p, 20 rounds.
    Differs from the parent: first only the critics are trained, then only the policy; nothing is
    stored, episodes are chosen by their outcome, and the same prompts, every fifth, are held out.
    training.steps=40 gives each its 20 rounds. digirl continues from a checkpoint of this recipe
    with model.name and critic.start.
    Differs from the paper: 1. as digirl; 2. both critics, which share no weights, are trained in
    the same rounds; 3. every fifth prompt is held out, there the file's last fifth of episodes.
    Try: p, critic.lr, sampling.num_prompts (as many as there are), until.
    """
    whole = digirl(held_out=0.0, **parent)
    (choose,) = whole.advantage
    common = dataclasses.replace(
        whole,
        curation=(_hold_out(held_out, by_prompt=True),) if held_out else (),
        advantage=(Use(dataclasses.replace(choose.part, by_outcome=True)),),
    )
    critics, policy = (
        dataclasses.replace(common, plan=Use(plan))
        for plan in (
            UpdateCriticFirst(critic_epochs, 0, 0, whole=True),
            UpdateCriticFirst(0, 0, actor_epochs, whole=True),
        )
    )
    return Phases((Phase(critics, read_until(until), "critics"), Phase(policy, None, "policy")))


def _hold_out(share: float, by_prompt: bool = False) -> Use:
    """Episodes that the critics evaluate, but are not trained on."""
    return Use(HoldOutRollouts(share, by_prompt))


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
