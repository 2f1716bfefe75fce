"""Repair a short program, one of whose operators is wrong, with or without a trace of its run.

A line is `x = x op c`, op one of + - *, everything modulo 10. An action names a line and the
operator that belongs there. It is tested on inputs that are shown with their expected results, and
on others that are held back, so that a repair which only fits the shown tests is not right.

In the plain style an action says `2 +`. In the compact style `+3-2*5:4,1:0,7=` is a program and its
tests, with the trace `+3-2*5:4,755,1:0,315,7=`, and an action is two characters, `2+`.

With several attempts each repair is made in the best program so far, which at first is the given
one. A program becomes the best when it passes more tests than any before it. An attempt earns the
increase of the share of tests that the best passes, so that an episode earns the last share less
the first, and cycles earn nothing. Two attempts in a row without an increase end the episode.
Every attempt has a context of its own: the best program, and the last two repairs that failed.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.environments.base import Environment, Observation, check_number, check_style
from strop.support.errors import UserError

MODULUS = 10
OPERATORS = "+-*"
STREAK = 2  # attempts in a row without a better program, after which an episode ends
REMEMBERED = 2  # failed repairs that are shown
COMPACT = re.compile(r"(\d)([-+*])")
PLAIN = re.compile(r"(\d)[^\d+*-]*([-+*])")

Line = tuple[str, int]  # an operator and a constant
Repair = tuple[int, str]  # a line, from 1, and its operator


@dataclass(frozen=True)
class Program:
    """Lines that change x one after another."""

    lines: tuple[Line, ...]

    def trace(self, x: int) -> list[int]:
        """The value of x after each line."""
        values = []
        for operator, constant in self.lines:
            x = {"+": x + constant, "-": x - constant, "*": x * constant}[operator] % MODULUS
            values.append(x)
        return values

    def repaired(self, repair: Repair) -> "Program":
        """The program with another operator in a line."""
        at, operator = repair
        lines = list(self.lines)
        lines[at - 1] = operator, lines[at - 1][1]
        return Program(tuple(lines))

    def repairs(self) -> list[Repair]:
        """All repairs of one operator."""
        return [(at, operator) for at, (here, _) in enumerate(self.lines, 1)
                for operator in OPERATORS if operator != here]  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A program, the repair that makes it right, and tests: inputs with expected results."""

    program: Program
    answer: Repair
    tests: tuple[tuple[int, int], ...]

    def passed(self, program: Program, most: int = MODULUS) -> int:
        """How many of the first `most` tests a program passes."""
        return sum(program.trace(x)[-1] == wanted for x, wanted in self.tests[:most])

    def passing(self, most: int = MODULUS) -> list[Repair]:
        """The repairs with which the program passes the first `most` tests."""
        wanted = min(most, len(self.tests))
        return [each for each in self.program.repairs()
                if self.passed(self.program.repaired(each), most) == wanted]  # fmt: skip


@dataclass
class Best:
    """How many of `tests` the best program so far passes, and how many attempts ago it came."""

    tests: int
    passed: int
    streak: int = 0

    def take(self, passed: int) -> float:
        """Record the tests that an attempt passes; returns its reward, 0 unless it is the best."""
        worth = max(passed - self.passed, 0) / self.tests
        self.streak = 0 if worth else self.streak + 1
        self.passed = max(passed, self.passed)
        return worth

    @property
    def is_over(self) -> bool:
        """Whether all tests pass, or the last attempts were no better."""
        return self.passed == self.tests or self.streak == STREAK


def task_of(seed: int, lines: int, shown: int, held_back: int) -> Task:
    """The task of a seed; the program fails at least one of the tests that are shown."""
    draw = random.Random(seed)
    while True:
        right = Program(tuple((draw.choice(OPERATORS), draw.randint(1, 9)) for _ in range(lines)))
        at = draw.randint(1, lines)
        operator = right.lines[at - 1][0]
        program = right.repaired((at, draw.choice(OPERATORS.replace(operator, ""))))
        inputs = draw.sample(range(MODULUS), shown + held_back)
        task = Task(program, (at, operator), tuple((x, right.trace(x)[-1]) for x in inputs))
        if task.passed(program, shown) < shown:
            return task


class TraceRepair(Environment):
    """Options: trace (x after each line is shown with every test), lines (2 to 9), tests (that are
    shown), held_back (further ones), attempts, style.

    One attempt is worth 1 when its program passes all tests. Measures: solved and passed, of the
    best program, the latter as a share of all tests.
    """

    reward_range = (0.0, 1.0)

    def __init__(
        self, trace: bool = True, lines: int = 3, tests: int = 2, held_back: int = 3,
        attempts: int = 1, style: str = "plain",
    ) -> None:  # fmt: skip
        check_style(style)
        check_number("trace_repair: lines", lines, 2, 9)
        check_number("trace_repair: tests", tests, 1, MODULUS)
        check_number("trace_repair: held_back", held_back, 0, MODULUS - tests)
        check_number("trace_repair: attempts", attempts, 1)
        if not isinstance(trace, bool):
            raise UserError(f"trace_repair: trace must be true or false, it is {trace!r}")
        self.has_trace, self.is_compact = trace, style == "compact"
        self.sizes = (lines, tests, held_back)
        self.shown = tests
        self.max_turns, self.rewrites = attempts, attempts > 1
        self.max_tokens = 2 if self.is_compact else 64

    def reset(self, seed: int) -> Observation:
        """Draw a program and break it."""
        self.task = task_of(seed, *self.sizes)
        self.program = self.task.program
        self.best = Best(len(self.task.tests), self.task.passed(self.program))
        self.failed: list[Repair] = []
        return self._observe()

    def step(self, action: str) -> Observation:
        """Test a repair of the best program."""
        repair = self._read(action)
        program = self.program if repair is None else self.program.repaired(repair)
        worth = self.best.take(self.task.passed(program))
        if worth:
            self.program = program
        elif repair is not None:
            self.failed = [*self.failed, repair][-REMEMBERED:]
        solved = self.best.passed == self.best.tests
        measures = {"solved": float(solved), "passed": self.best.passed / self.best.tests}
        if self.max_turns == 1:
            return Observation("", float(solved), done=True, valid=repair is not None,
                               measures=measures)  # fmt: skip
        return self._observe(worth, self.best.is_over, repair is not None, measures)

    def columns(self) -> Mapping[str, Any]:
        """The repair, as an action says it; others may pass the tests too."""
        return {"answer": self._repair_text(self.task.answer)}

    def _repair_text(self, repair: Repair) -> str:
        return ("" if self.is_compact else " ").join(map(str, repair))

    def _read(self, action: str) -> Repair | None:
        """The repair that an action names; None where it names none, or several."""
        if self.is_compact:
            named = {found.groups()} if (found := COMPACT.match(action)) else set()
        else:
            named = set(PLAIN.findall(action))
        at, operator = named.pop() if len(named) == 1 else ("0", "")
        return (int(at), operator) if 1 <= int(at) <= self.sizes[0] else None

    def _observe(
        self, reward: float = 0.0, done: bool = False, valid: bool = True,
        measures: Mapping[str, float] | None = None,
    ) -> Observation:  # fmt: skip
        text = "" if done else self._compact() if self.is_compact else self._plain()
        return Observation(text, reward, done, state=text, valid=valid, measures=measures or {})

    def _tests(self) -> Sequence[tuple[int, int, list[int]]]:
        """The input, the expected result and the trace of each test that is shown."""
        return [(x, wanted, self.program.trace(x)) for x, wanted in self.task.tests[: self.shown]]

    def _compact(self) -> str:
        text = "".join(f"{operator}{constant}" for operator, constant in self.program.lines)
        for x, wanted, values in self._tests():
            trace = "".join(map(str, values)) + "," if self.has_trace else ""
            text += f":{x},{trace}{wanted}"
        return text + "".join(f"({self._repair_text(each)})" for each in self.failed) + "="

    def _plain(self) -> str:
        lines = [f"{at}: x = x {operator} {constant}"
                 for at, (operator, constant) in enumerate(self.program.lines, 1)]  # fmt: skip
        for x, wanted, values in self._tests():
            trace = f" (after its lines x is {', '.join(map(str, values))})"
            lines.append(f"x = {x} should end as {wanted}{trace * self.has_trace}.")
        if self.failed:
            lines.append(f"These did not help: {', '.join(map(self._repair_text, self.failed))}.")
        return (
            "Every line of this program changes x, modulo 10. An operator is wrong; it should be "
            "another one of + - *. Answer with its line and the right operator, such as: 2 +\n"
            + "\n".join(lines)
            + "\n"
        )
