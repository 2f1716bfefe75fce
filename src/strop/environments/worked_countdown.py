"""Countdown puzzles that are worked out in steps; docs/LABORATORY.md has the form of an answer.

A fixed seed assigns puzzles to the splits: they are disjoint and the same on every machine.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from strop.environments import countdown

HIGHEST = 10  # given number
MAX_VALUE = 50  # of a step and a target
MOST_PUZZLES = {3: 1500, 4: 1500}  # by how many numbers a puzzle has
SPLITS = countdown.SPLITS
MAX_TOKENS = 160
STEP, AGAIN, ANSWER = "\n", ":", "="  # these end a step, restart, and begin the answer

_SEED = 20261122
_LINE = re.compile(r"(\d{1,4})([-+*/])(\d{1,4})=(\d{1,4})", re.ASCII)


class Step(NamedTuple):
    """`left symbol right = value`, and the numbers that are available after it."""

    left: int
    symbol: str
    right: int
    value: int
    after: tuple[int, ...]

    @property
    def text(self) -> str:
        """The line."""
        return f"{self.left}{self.symbol}{self.right}={self.value}"


def puzzles(split: str) -> list[dict[str, Any]]:
    """Rows of a split: `prompt`, `numbers` (rising), `target`, `num_numbers`, `num_solutions`
    (ways to the target, in steps), `completion` (one of them, worked out) and `answers` (the
    expressions of all ways, the completion's first).

    Raises ValueError for an unknown split.
    """
    return [_row(numbers, target) for numbers, target in countdown.of_split(split, _dealt()[1])]


def supervised_puzzles() -> tuple[tuple[tuple[int, ...], int], ...]:
    """(numbers, target) of the puzzles that `tiny-worked` was supervised on; no split has them."""
    return _dealt()[0]


def prompt_text(numbers: Sequence[int], target: int) -> str:
    """The puzzle as the model sees it: `2,3,5,7:24` and a line break."""
    return f"{','.join(map(str, numbers))}:{target}{STEP}"


def correct(
    prompts: Sequence[Any],
    completions: Sequence[str],
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    log_extra: Callable[[str, Sequence[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float]:
    """1.0 for each completion whose last line is its only answer, and right; else 0.0.

    The earlier lines are not rewarded. Logs `first_false_step` (see there), `num_tries` and their
    means, for parts that give credit by step, and for people.
    """
    rows = list(zip(completions, numbers, target, strict=True))
    false = [first_false_step(text, given, wanted) for text, given, wanted in rows]
    tries = [1 + text.split(STEP).count(AGAIN) for text in completions]
    if log_extra is not None:
        log_extra("first_false_step", false)
        log_extra("num_tries", tries)
    if log_metric is not None and rows:
        log_metric("worked/tries", sum(tries) / len(rows))
        log_metric("worked/frac_false_step", sum(place >= 0 for place in false) / len(rows))
    return [float(is_right(text, given, wanted)) for text, given, wanted in rows]


def is_right(completion: str, numbers: Sequence[int], target: int) -> bool:
    """Whether the last line is the only answer, uses each number once, and equals the target."""
    text = _answer(completion)
    if text is None or not countdown.is_well_formed(text, numbers):
        return False
    return countdown.evaluate(text) == target


def extract_answer(completion: str) -> str | None:
    """Canonical text of the expression in the last line, or None when it is not an answer."""
    text = _answer(completion)
    return None if text is None else countdown.extract_answer(text)


def first_false_step(completion: str, numbers: Sequence[int], target: int) -> int:
    """Index of the first line that is false, from 0; -1 where all are true.

    A step is false if its arithmetic is wrong, if it uses a number that is not available, or if it
    cannot be read; an answer if it is not right. Any line after an answer is false, and so is the
    last line of a completion without an answer. A restart is never false. So a wrong completion
    always has a false line, and a right one may have one that a restart repaired.
    """
    lines = completion.split(STEP)
    at_hand = sorted(numbers)
    for place, line in enumerate(lines):
        if line == AGAIN:
            at_hand = sorted(numbers)
        elif line.startswith(ANSWER):
            if not is_right(line, numbers, target):
                return place
            return -1 if place == len(lines) - 1 else place + 1
        elif (left := _left_over(line, at_hand)) is None:
            return place
        else:
            at_hand = left
    return len(lines) - 1


@cache
def moves(numbers: tuple[int, ...]) -> tuple[Step, ...]:
    """Every step from the available numbers (rising), the larger number on the left."""
    return tuple(step for pair in _pairs(numbers) for step in _steps(numbers, *pair))


@cache
def ways(numbers: tuple[int, ...]) -> Mapping[int, int]:
    """In how many ways steps lead from the available numbers (rising) to each last value."""
    if len(numbers) == 1:
        return {numbers[0]: 1}
    found: Counter[int] = Counter()
    for step in moves(numbers):
        found.update(ways(step.after))
    return dict(found)


class Expressions:
    """The available numbers with the expression of each, while steps are taken."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._held = [(number, str(number), "") for number in numbers]

    def take(self, step: Step) -> None:
        """Replace two numbers by one. Raises KeyError for a number that is not available."""
        (left, left_symbol), (right, right_symbol) = self._drop(step.left), self._drop(step.right)
        text = countdown.joined((left, left_symbol), step.symbol, (right, right_symbol))
        self._held.append((step.value, text, step.symbol))

    @property
    def text(self) -> str:
        """The expression of the newest number."""
        return self._held[-1][1]

    def _drop(self, number: int) -> tuple[str, str]:
        for place, (held, text, symbol) in enumerate(self._held):
            if held == number:
                del self._held[place]
                return text, symbol
        raise KeyError(number)


def worked_out(numbers: tuple[int, ...], steps: Sequence[Step]) -> str:
    """The lines of the steps and of their answer."""
    expressions = Expressions(numbers)
    for step in steps:
        expressions.take(step)
    return STEP.join([*(step.text for step in steps), ANSWER + expressions.text])


def _row(numbers: tuple[int, ...], target: int) -> dict[str, Any]:
    num_solutions, completion, answers = _solved(numbers, target)
    return {
        "prompt": prompt_text(numbers, target),
        "numbers": list(numbers),
        "target": target,
        "num_numbers": len(numbers),
        "num_solutions": num_solutions,
        "completion": completion,
        "answers": list(answers),
    }


@cache
def _solved(numbers: tuple[int, ...], target: int) -> tuple[int, str, tuple[str, ...]]:
    """The number of ways to a target, the first of them worked out, and their expressions."""
    worked = [worked_out(numbers, steps) for steps in _ways_to(numbers, target)]
    expressions = dict.fromkeys(text.rpartition(STEP + ANSWER)[2] for text in worked)
    return len(worked), worked[0], tuple(expressions)


def _ways_to(at_hand: tuple[int, ...], target: int) -> Iterator[list[Step]]:
    """The steps of every way to a reachable target."""
    if len(at_hand) == 1:
        yield []
        return
    for step in moves(at_hand):
        if target in ways(step.after):
            for rest in _ways_to(step.after, target):
                yield [step, *rest]


@cache
def _dealt() -> tuple[tuple[tuple[tuple[int, ...], int], ...], ...]:
    """(numbers, target) of the puzzles for supervision, and of all others, shuffled."""
    rng = random.Random(_SEED)
    supervised, others = [], []
    for size, most in MOST_PUZZLES.items():
        sets = list(combinations_with_replacement(range(1, HIGHEST + 1), size))
        rng.shuffle(sets)
        first, second = (
            [(numbers, target) for numbers in half for target in ways(numbers)]
            for half in (sets[::2], sets[1::2])
        )
        supervised += first
        rng.shuffle(second)
        others += second[:most]
    rng.shuffle(others)
    return tuple(supervised), tuple(others)


def _pairs(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    """Different pairs of the numbers (rising), the larger first."""
    places = range(len(numbers))
    return sorted({(numbers[j], numbers[i]) for i in places for j in places if i < j})


def _steps(numbers: tuple[int, ...], left: int, right: int) -> list[Step]:
    values = {"+": left + right, "-": left - right, "*": left * right}
    if left % right == 0:
        values["/"] = left // right
    rest = list(numbers)
    rest.remove(left)
    rest.remove(right)
    return [
        Step(left, symbol, right, value, tuple(sorted([*rest, value])))
        for symbol, value in values.items()
        if 0 < value <= MAX_VALUE
    ]


def _answer(completion: str) -> str | None:
    answers = [line for line in completion.split(STEP) if line.startswith(ANSWER)]
    return answers[0].removeprefix(ANSWER) if completion.split(STEP)[-1:] == answers else None


def _left_over(line: str, at_hand: list[int]) -> list[int] | None:
    """The numbers that are available after a step, rising; None when the step is false."""
    step = _read(line)
    if step is None:
        return None
    left, symbol, right, value = step
    rest = list(at_hand)
    for number in (left, right):
        if number not in rest:
            return None
        rest.remove(number)
    if countdown.evaluate(f"{left}{symbol}{right}") != value:
        return None
    return sorted([*rest, value])


def _read(line: str) -> tuple[int, str, int, int] | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    left, symbol, right, value = found.groups()
    return int(left), symbol, int(right), int(value)
