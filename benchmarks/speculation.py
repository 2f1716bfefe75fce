"""Tokens per second with and without drafts from the group's own answers.

    OMP_NUM_THREADS=1 python benchmarks/speculation.py [--models tiny,tiny-worked,MODEL]
        [--slots 512,64] [--drafts 4,8] [--repeats 5] [--trained 40]

The requests are a step's answers of `strop train`: 32 puzzles, 16 answers each, sampled at
temperature 1 with fixed seeds until they end, with the same number of slots (512) and with few.
MODEL is any folder, such as a checkpoint of a longer run. With --trained N, `tiny` and
`tiny-worked` are also measured after N steps of `grpo`, which are trained here first: later in
training a model is more confident.

Both ways take turns. The output has the median over the repeats of the ratio of two consecutive
runs, by processor time of this process; then how many of the answers are the same token by token,
how many tokens were drafted per generated token, and which share of the drafts was accepted.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from engine import puzzle
from processes import train

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.training.learner import models

PUZZLES, ANSWERS, LONGEST = 32, 16, 160


def trained(name: str, steps: int, folder: Path) -> str:
    """A checkpoint of a short run on the model's own puzzles."""
    options = [f"training.steps={steps}", "evaluation.every=0", "training.save_every=0"]
    train(folder, "grpo", "--model", name, *options)
    return str(folder / "checkpoints" / f"step-{steps:06d}")


def requests(found: Any) -> list[Request]:
    """The requests of a step, with those of one puzzle side by side."""
    drawn = random.Random(0)
    end = "\n" if found.model.config.max_position_embeddings > LONGEST else "="  # tiny's are short
    asked = [tuple(found.tokenizer.encode(puzzle(drawn, end))) for _ in range(PUZZLES)]
    return [
        Request(ids, LONGEST, seed=ANSWERS * group + n, stop_ids=found.stop_ids)
        for group, ids in enumerate(asked)
        for n in range(ANSWERS)
    ]


def timed(engine: LocalEngine, asked: list[Request]) -> tuple[float, list[list[int]]]:
    started = time.process_time()
    answers = [
        [id for event in each.events for id in event.ids]
        for each in asynchronous(engine).sample(asked)
    ]
    return time.process_time() - started, answers


def compare(name: str, found: Any, slots: int, most: int, repeats: int) -> None:
    asked = requests(found)
    plain = LocalEngine(found.model, num_slots=slots)
    drafting = LocalEngine(found.model, num_slots=slots, speculate=most)
    _, expected = timed(plain, asked)
    _, answers = timed(drafting, asked)
    drafted, accepted = drafting.drafts
    made = sum(map(len, answers))
    same = sum(a == b for a, b in zip(answers, expected, strict=True))
    ratios, rates = [], []
    for _ in range(repeats):
        without, with_drafts = timed(plain, asked)[0], timed(drafting, asked)[0]
        ratios.append(without / with_drafts)
        rates.append(made / without)
    print(
        f"{name}: {slots} slots, up to {most} drafts: ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}); {statistics.median(rates):.0f} tokens/s plain; "
        f"{same} of {len(asked)} answers the same, mean {made / len(asked):.0f} tokens; "
        f"{drafted / made:.2f} drafted a token, {accepted / max(drafted, 1):.0%} accepted",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="tiny,tiny-worked")
    parser.add_argument("--slots", default="512,64")
    parser.add_argument("--drafts", default="4")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trained", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cases = {name: name for name in options.models.split(",")}
        for name in [name for name in cases if name in ("tiny", "tiny-worked")]:
            if options.trained:
                own = trained(name, options.trained, Path(folder) / name)
                cases[f"{name} after {options.trained} steps"] = own
        for name, path in cases.items():
            found = models.load(path)
            for slots in map(int, options.slots.split(",")):
                for most in map(int, options.drafts.split(",")):
                    compare(name, found, slots, most, options.repeats)


if __name__ == "__main__":
    main()
