"""Worked examples of five systems that strop trains nothing by, as functions. docs/LABS.md judges
each of them, and says what to use.

    strop labs worked_examples

symphony (arXiv 2512.10477), policy_guided_diffusion (2404.06356) and coplanner (2310.07220) follow
their released code. Of offline_experience_replay (2305.13804) and dqn_stat_arb (2311.10718) only
the abstracts could be read: what stands here is the one step of each that those describe, and its
numbers are ours.

Takes: a moment.
"""

import argparse
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# ---- symphony: a deterministic actor and critic for robots


def rectified(gap: Floats, difference: Floats) -> tuple[float, float]:
    """The losses of actor and critic: -mean(|x| tanh(x/2)), which flattens where x is small, and
    mean(y tanh(y/2)).

    gap: x = (q' - m) / |m|, where q' is the value of the next state and m its running mean.
    difference: y, of the temporal difference.
    """
    actor, critic = np.abs(gap) * np.tanh(gap / 2), difference * np.tanh(difference / 2)
    return -float(actor.mean()), float(critic.mean())


def fading_replay(n: int) -> Floats:
    """Probabilities of n stored transitions, the oldest first: tanh((pi i / n)^e), normalised."""
    weights = np.tanh((math.pi * np.arange(n) / n) ** math.e)
    return weights / weights.sum()


def swaddling(s: float, b: float) -> float:
    """The barrier that keeps actions of strength s with noise of share b small."""

    def rising(z: float) -> float:
        return math.log((1 + z) / (1 - z))

    return rising(s ** (1 / b)) + b * s * math.log(s) + rising(b * b)


# ---- policy_guided_diffusion: trajectories drawn towards what a policy would do


def guidance(i: int, n: int, delay: int = 0, cosine: float = 0.3) -> float:
    """How strongly step i of n is guided; nothing before `delay` and in the last step."""
    if not delay <= i < n - 1:
        return 0.0
    return (1 - i / n) + cosine * math.sin(math.pi * (i + 1) / n)


def guided(action: Floats, score: Floats, i: int, n: int, coefficient: float) -> Floats:
    """The action channels after guidance along the policy's normalised score; no others move."""
    return action + coefficient * guidance(i, n) * score / (np.linalg.norm(score) + 1e-8)


# ---- coplanner: cautious in the model, curious in the world


def planned(
    rewards: Floats, uncertainty: Floats, in_model: bool, gamma: float = 0.97,
    cautious: float = 2.0, curious: float = 1.0,
) -> tuple[int, Floats]:  # fmt: skip
    """The candidate to take, and the score of each: its rewards over imagined steps, less the
    model's uncertainty where the action makes data in the model, plus it in the world.

    rewards, uncertainty: [candidates, steps], discounted alike.
    """
    discount = gamma ** np.arange(rewards.shape[1])
    weight = -cautious if in_model else curious
    scores = (discount * (rewards + weight * uncertainty)).sum(1)
    return int(scores.argmax()), scores


# ---- offline_experience_replay: what is kept of a task that is over


def kept(stored: Floats, visited: Floats, size: int) -> list[int]:
    """The rows of a data set to keep: of those nearest to what the learnt policy visits, the
    nearest first. Euclidean: the paper's distance could not be read.

    stored: [rows, columns]; visited: [steps, columns], from rolling the policy out in a model.
    """
    distance = np.linalg.norm(stored[:, None] - visited[None], axis=-1).min(1)
    return [int(row) for row in np.argsort(distance, kind="stable")[:size]]


# ---- dqn_stat_arb: judged on what comes later


def walk_forward(n: int, fitted: int, judged: int) -> list[tuple[range, range]]:
    """Rows to fit on and, right behind them, rows to judge on; each window begins where the rows
    that the last one judged end. No row is judged before it, or a later one, was fitted on.
    """
    starts = range(0, n - fitted - judged + 1, judged)
    return [(range(at, at + fitted), range(at + fitted, at + fitted + judged)) for at in starts]


def after_costs(spread: Floats, position: Floats, cost: float) -> Floats:
    """What each step earns: the position held into it times the spread's change, less what trading
    into that position cost."""
    traded = np.abs(np.diff(position, prepend=0.0))
    return position * np.diff(spread) - cost * traded


def main(words: Sequence[str] | None = None) -> None:
    """Print each example."""
    argparse.ArgumentParser(description="Worked examples of five systems.").parse_args(words)
    np.set_printoptions(precision=4, suppress=True)
    x = np.array([-2.0, 0.5])
    print(f"symphony: losses {rectified(x, x)}, replay {fading_replay(5)}, "
          f"barrier {swaddling(0.9, 0.5):.3f}")  # fmt: skip
    steps = [guidance(i, 256) for i in (0, 128, 254, 255)]
    print("policy_guided_diffusion: steps 0, 128, 254 and 255 of 256 weigh", np.array(steps))
    rewards, unsure = np.array([[1, 1], [1.2, 0.6]]), np.array([[0.1, 0.1], [0.5, 0.4]])
    for place, in_model in (("in the model", True), ("in the world", False)):
        taken, scores = planned(rewards, unsure, in_model)
        print(f"coplanner {place}: scores {scores}, takes candidate {taken}")
    stored = np.array([[0, 0], [1, 0], [5, 5], [2, 2]], dtype=float)
    near = kept(stored, np.array([[1.0, 0.1], [2.0, 2.5]]), 2)
    print(f"offline_experience_replay: keeps rows {near} of 4")
    print(f"dqn_stat_arb: fits on and judges {walk_forward(10, 4, 3)}")


if __name__ == "__main__":
    main()
