"""Environments that wait: awaited ones, and blocking ones one after another and in two processes.

    python benchmarks/environment_latency.py --out FOLDER        about 4 minutes
        [--prompts 8] [--rollouts 4] [--turns 4] [--latency 0.001 0.02 0.2 0.001-2]

One step of `grpo` on `tiny` plays prompts * rollouts episodes of some turns, each of which waits in
`step` as for a server: for a number of seconds, or for LOW-HIGH, drawn evenly over the logarithm by
seed, turn and action. The episodes, tokens and rewards of all ways are the same. It prints the
seconds of the second step's rollouts, and how many times as long the blocking ways take as the
awaited one; the lower bound is the sum of the longest episode's waits.
"""

import argparse
import asyncio
import math
import random
import sys
import time
from pathlib import Path

import machine

import strop
from strop.environments import Environment, Observation
from strop.tracking.metrics_file import read_metrics


class Blocking(Environment):
    """`turns` turns with a digit each; `step` blocks the thread while it waits."""

    max_tokens = 1
    reward_range = (0.0, 1.0)

    def __init__(self, low: float, high: float, turns: int) -> None:
        self.low, self.high, self.turns = low, high, turns
        self.max_turns = turns

    def reset(self, seed: int) -> Observation:
        """Start an episode; nothing waits."""
        self.seed, self.turn = seed, 0
        return Observation("0-9:")

    def step(self, action: str) -> Observation:
        """Wait, then answer."""
        time.sleep(self.seconds(action))
        return self.answer(action)

    def seconds(self, action: str) -> float:
        """How long the turn waits."""
        draw = random.Random(f"{self.seed}/{self.turn}/{action}")
        return math.exp(draw.uniform(math.log(self.low), math.log(self.high)))

    def answer(self, action: str) -> Observation:
        """A reward for a high digit."""
        self.turn += 1
        reward = int(action) / 9 / self.turns if action.isdigit() else 0.0
        return Observation(":=", reward, self.turn == self.turns, valid=action.isdigit())


class Awaited(Blocking):
    """The same environment with an async step."""

    async def step(self, action: str) -> Observation:  # type: ignore[override]
        """Wait, while other episodes continue."""
        await asyncio.sleep(self.seconds(action))
        return self.answer(action)


WAYS = {"awaited": ("Awaited", 0), "one process": ("Blocking", 0), "two": ("Blocking", 2)}


def played(way: str, low: float, high: float, options: argparse.Namespace) -> tuple[float, str]:
    """Seconds of the second step's rollouts, and a summary of the episodes."""
    kind, workers = WAYS[way]
    folder = options.out / f"{way.replace(' ', '-')}-{low:g}-{high:g}"
    strop.train(
        "grpo", task=f"{Path(__file__).resolve()}:{kind}", out=folder, progress=False,
        data_task_config={"low": low, "high": high, "turns": options.turns},
        data_env_workers=workers, data_train_size=options.prompts * 4, threads=1,
        training_steps=2, evaluation_every=0, sampling_num_prompts=options.prompts,
        sampling_num_rollouts=options.rollouts,
    )  # fmt: skip
    last = read_metrics(folder)[-1]
    return last["timing_s/rollout"], f"{last['reward']:.6f} {last['episode/turns_mean']}"


def main() -> None:
    """Print a line for each latency."""
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--out", type=Path, required=True)
    ask.add_argument("--prompts", type=int, default=8)
    ask.add_argument("--rollouts", type=int, default=4)
    ask.add_argument("--turns", type=int, default=4)
    ask.add_argument("--latency", nargs="+", default=["0.001", "0.02", "0.2", "0.001-2"])
    options = ask.parse_args()
    print(machine.speed())
    heads = " ".join(f"{way:>12}" for way in WAYS)
    print(f"{'latency':>10} {heads}   one / two beside awaited")
    for latency in options.latency:
        low, _, high = latency.partition("-")
        found = [played(way, float(low), float(high or low), options) for way in WAYS]
        if len({what for _, what in found}) > 1:
            sys.exit(f"the ways differ in what they played: {found}")
        seconds = [each for each, _ in found]
        ratios = " / ".join(f"{each / seconds[0]:.1f}" for each in seconds[1:])
        print(f"{latency:>10} " + " ".join(f"{each:12.2f}" for each in seconds) + f"   {ratios}")


if __name__ == "__main__":
    main()
