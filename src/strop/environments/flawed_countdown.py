"""Worked Countdown answers with a planted wrong step, to train judges that find it.

A row's prompt is a puzzle, a worked answer to it and a line with `:`; its completion is the index
of the first wrong line, from 0, or -1. Half of the answers are sound. In the others one step's
value is replaced; the later lines, and the right answer at the end, stay unchanged: the answer is
right by a wrong step. Labels are exact, because `worked_countdown.first_false_step` checks every
line.
"""

import random
from typing import Any

from strop.environments import worked_countdown
from strop.environments.worked_countdown import ANSWER, MAX_VALUE, STEP, first_false_step
from strop.rewards.first_error import QUESTION

_SEED = 20261127


def rows(split: str, num: int, seed: int = 0) -> list[dict[str, Any]]:
    """The first `num` puzzles of a split, judged: `prompt`, `completion`, `first_error`,
    `num_steps` (lines), and `numbers` and `target` of the puzzle.

    Raises ValueError for an unknown split.
    """
    rng = random.Random(f"{_SEED}/{split}/{seed}")
    found = []
    for number, puzzle in enumerate(worked_countdown.puzzles(split)[:num]):
        worked = puzzle["completion"] if number % 2 else planted(puzzle["completion"], rng)
        place = first_false_step(worked, puzzle["numbers"], puzzle["target"])
        found.append({
            "prompt": QUESTION.format(prompt=puzzle["prompt"], completion=worked),
            "completion": str(place),
            "first_error": place,
            "num_steps": len(worked.split(STEP)),
            "numbers": puzzle["numbers"],
            "target": puzzle["target"],
        })  # fmt: skip
    return found


def planted(worked: str, rng: random.Random) -> str:
    """The answer with the value of one of its steps replaced."""
    lines = worked.split(STEP)
    place = rng.choice([n for n, line in enumerate(lines) if not line.startswith(ANSWER)])
    left, _, value = lines[place].rpartition("=")
    other = rng.choice([n for n in range(1, MAX_VALUE + 1) if n != int(value)])
    lines[place] = f"{left}={other}"
    return STEP.join(lines)
