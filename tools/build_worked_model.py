"""Build the model `tiny-worked`, which ships in `strop.assets`, from nothing.

    python tools/build_worked_model.py [--out DIR] [--steps N]

A character-level Qwen3 model is trained on worked answers to Countdown puzzles whose numbers occur
in no split of the task `worked_countdown`. Answers are search traces: tries that lead nowhere and
are given up early or at their end, then one that reaches the target. For the last steps they are of
MIXED QUALITY ON PURPOSE: false steps that are noticed and corrected, answers that do not reach the
target, last steps that claim to. Without that phase the model would leave a few minutes of
reinforcement learning little to find; with it, the model has all skills that it needs, but does not
prefer to use them.

One thread and one seed: the same machine and library versions give the same bytes. Another
processor may round differently, so there the weights differ slightly.
"""

import random
from collections.abc import Iterator

import build_tiny_model
from build_tiny_model import encode
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from strop.environments.worked_countdown import (
    AGAIN,
    ANSWER,
    MAX_TOKENS,
    MAX_VALUE,
    STEP,
    Expressions,
    Step,
    moves,
    prompt_text,
    supervised_puzzles,
    ways,
)

SEED = 0
NUM_STEPS = 2200
BATCH_SIZE = 64
LEARNING_RATE = 3e-3  # warmed up, then linear to 0
MAX_POSITIONS = 192
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # 1.07 million weights
SORTED_BATCHES = 16  # batches drawn at a time and sorted by length, so that little is padding
SHARE_FOUR = 0.6  # share of the puzzles with four numbers

SHARE_DEAD_END = (0.35, 0.5)  # chance of a try that leads nowhere, and of another one behind it
SHARE_MIXED = 0.15  # share of the steps with answers of mixed quality, at the end; in those:
SHARE_SLIP = 0.12  # share of the tries that lead nowhere that end in a false step
SHARE_EARLY = (0.3, 0.3)  # share given up after one step, and with two numbers at hand
MOST_BEFORE_ANSWER = 90  # characters behind which no try begins that leads nowhere
SHARE_RIGHT = 0.7  # share of the last tries that reach the target
SHARE_CLAIMED = 0.25  # share of the others whose last step claims to reach it
SLIPS = (-10, -2, -1, 1, 2, 10)  # how far a false step is off


def take_steps(numbers: tuple[int, ...], rng: random.Random, target: int = 0) -> list[Step]:
    """Steps down to one number, drawn evenly; with a target only those that can still reach it."""
    steps: list[Step] = []
    at_hand = numbers
    while len(at_hand) > 1:
        ahead = [s for s in moves(at_hand) if not target or target in ways(s.after)]
        if not ahead:
            break
        steps.append(rng.choice(ahead))
        at_hand = steps[-1].after
    return steps


def miss(numbers: tuple[int, ...], target: int, rng: random.Random) -> list[Step]:
    """Steps down to one number that is not the target."""
    while True:
        steps = take_steps(numbers, rng)
        if len(steps) == len(numbers) - 1 and steps[-1].value != target:
            return steps


def dead_end(numbers: tuple[int, ...], target: int, mixed: bool, rng: random.Random) -> list[str]:
    """Lines of a try that is given up: after a false step, early, or at its end."""
    steps = miss(numbers, target, rng)
    if mixed and rng.random() < SHARE_SLIP:
        steps = steps[: rng.randint(1, len(steps))]
        false = steps[-1].value + rng.choice(SLIPS)
        steps[-1] = steps[-1]._replace(value=false if 0 < false <= MAX_VALUE else 1)
    else:
        early = rng.choices(
            (1, max(1, len(steps) - 1), len(steps)), (*SHARE_EARLY, 1 - sum(SHARE_EARLY))
        )
        steps = steps[: early[0]]
    return [*(step.text for step in steps), AGAIN]


def last_try(numbers: tuple[int, ...], target: int, mixed: bool, rng: random.Random) -> list[str]:
    """Lines of the try behind which the answer is given, right or wrong."""
    wrong = mixed and rng.random() >= SHARE_RIGHT
    steps = miss(numbers, target, rng) if wrong else take_steps(numbers, rng, target)
    expressions = Expressions(numbers)
    for step in steps:
        expressions.take(step)
    if wrong and rng.random() < SHARE_CLAIMED:
        steps[-1] = steps[-1]._replace(value=target)
    return [*(step.text for step in steps), ANSWER + expressions.text]


def draw_answer(numbers: tuple[int, ...], target: int, mixed: bool, rng: random.Random) -> str:
    """A worked answer: right, or of mixed quality."""
    lines: list[str] = []
    while rng.random() < SHARE_DEAD_END[mixed] and len(STEP.join(lines)) < MOST_BEFORE_ANSWER:
        lines += dead_end(numbers, target, mixed, rng)
    return STEP.join(lines + last_try(numbers, target, mixed, rng))


def draw_sorted(
    tokenizer: PreTrainedTokenizerFast, mixed: bool, rng: random.Random, batch_size: int
) -> list[tuple[Tensor, Tensor]]:
    """Ids and labels of SORTED_BATCHES steps, sorted by length."""
    by_size = {n: [p for p in supervised_puzzles() if len(p[0]) == n] for n in (3, 4)}
    rows = []
    for _ in range(batch_size * SORTED_BATCHES):
        numbers, target = rng.choice(by_size[4 if rng.random() < SHARE_FOUR else 3])
        rows.append((prompt_text(numbers, target), draw_answer(numbers, target, mixed, rng)))
    rows.sort(key=lambda row: len(row[0]) + len(row[1]))
    batches = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    rng.shuffle(batches)
    return [encode(batch, tokenizer) for batch in batches]


def is_mixed(step: int, num_steps: int) -> bool:
    """Whether a step has answers of mixed quality."""
    return step >= num_steps * (1 - SHARE_MIXED)


def draw_batches(
    tokenizer: PreTrainedTokenizerFast, num_steps: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and labels of all steps, drawn some steps at a time and sorted by length."""
    rng = random.Random(SEED)
    for first in range(0, num_steps, SORTED_BATCHES):
        yield from draw_sorted(tokenizer, is_mixed(first, num_steps), rng, BATCH_SIZE)


def build(num_steps: int) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Trained model and tokenizer, the same on every call."""
    return build_tiny_model.build(num_steps, MAX_POSITIONS, SIZES, draw_batches, LEARNING_RATE)


if __name__ == "__main__":
    build_tiny_model.main("tiny-worked", build, NUM_STEPS, MAX_TOKENS)
