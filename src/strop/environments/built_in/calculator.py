"""A question of arithmetic and a calculator: call it, then answer.

An action that is an expression (`12*34=`, where the final sign is optional) calls the calculator
and gets its value; an action that is a number is the answer, which earns 1 when it is right, and
ends the episode. The calculator reads whole numbers, brackets and + - * /, and gives exact values.

In the plain style the last expression or number of an action counts. In the compact style
`1,2,3:7+4=` is the question, after examples of the digits, and `:11=` the calculator's value; an
action that is no whole expression counts as the number that it begins with.

For sums and differences the value is drawn first, uniformly, and then a question with that value:
no answer is right more often than another, so guessing without the question does not pay.
"""

import random
import re
from collections.abc import Mapping
from typing import Any

from strop.data.tool_calls import Call
from strop.environments.base import Environment, Observation, check_number, check_style
from strop.environments.countdown import evaluate
from strop.support.errors import UserError

PIECE = re.compile(r"[\d+*/() -]+")
DIGIT = re.compile(r"\d")
SIZES = {"plain": 999, "compact": 7}
OPERATIONS = {"plain": "*", "compact": "+"}


class Calculator(Environment):
    """Options: size (largest number of a question; 0: 999 in words, 7 compact), operations (of the
    questions, some of + - *; empty: * in words, + compact), max_turns, style.

    The two numbers differ, the larger comes first.
    """

    def __init__(
        self, size: int = 0, operations: str = "", max_turns: int = 4, style: str = "plain"
    ) -> None:
        check_style(style)
        check_number("calculator: size", size or 2, 2, 10**6)
        check_number("calculator: max_turns", max_turns, 1)
        operations = operations or OPERATIONS[style]
        if not set("+-*").issuperset(operations):
            raise UserError(f"calculator: operations must be some of + - *, it is {operations!r}")
        self.size, self.operations = size or SIZES[style], operations
        self.is_compact = style == "compact"
        self.max_turns = max_turns
        self.max_tokens = 2 * len(str(self.size)) + 1 if self.is_compact else 256
        most = self.size**2 if "*" in operations else 2 * self.size - 1
        self.most_digits = len(str(most if operations != "-" else self.size))
        self.reward_range = (0.0, 1.0)
        self.question = self.shown = ""

    def reset(self, seed: int) -> Observation:
        """Draw an operation and two numbers."""
        draw = random.Random(seed)
        operation = draw.choice(self.operations)
        self.question = operation.join(map(str, self._numbers(draw, operation)))
        self.shown = ""
        if self.is_compact:
            return self._observe(f"1,2,3:{self.question}=")
        return self._observe(
            f"What is {self.question}? Answer with the number alone. You have a calculator: write "
            "an expression and an equals sign, such as 12*34=, and you get its value.\n"
        )

    def step(self, action: str) -> Observation:
        """Calculate, or judge the answer."""
        expression, number = self._read(action)
        if expression:
            self.shown = str(evaluate(expression))
            return self._observe(f":{self.shown}=" if self.is_compact else f"{self.shown}\n")
        if number:
            right = evaluate(number) == evaluate(self.question)
            return self._observe("", reward=float(right), done=True)
        unclear = ":=" if self.is_compact else "Write an expression or a number.\n"
        return self._observe(unclear, valid=False)

    def columns(self) -> Mapping[str, Any]:
        """The right answer, and the call that gets it."""
        call = {"name": "calculator", "arguments": {"expression": self.question}}
        return {"answer": str(evaluate(self.question)), "reference_calls": [call]}

    def calls(self, action: str) -> list[Call]:
        """The call of the calculator, if the action is one."""
        expression, _ = self._read(action)
        return [Call("calculator", {"expression": expression})] if expression else []

    def _numbers(self, draw: random.Random, operation: str) -> tuple[int, int]:
        """Draw two numbers, the larger first; all values of a sum or difference are equally likely.

        Products are rarely equal, so their numbers are drawn directly.
        """
        if operation == "+":
            value = draw.randint(3, 2 * self.size - 1)
            larger = draw.randint(value // 2 + 1, min(value - 1, self.size))
            return larger, value - larger
        if operation == "-":
            value = draw.randint(1, self.size - 1)
            smaller = draw.randint(1, self.size - value)
            return smaller + value, smaller
        smaller, larger = sorted(draw.sample(range(1, self.size + 1), 2))
        return larger, smaller

    def _read(self, action: str) -> tuple[str, str]:
        """(expression, "") for a call, ("", number) for an answer, two empty texts for neither."""
        pieces = [action.partition("=")[0]] if self.is_compact else PIECE.findall(action)
        text = next((each.strip() for each in reversed(pieces) if DIGIT.search(each)), "")
        if not text.isdigit() and evaluate(text) is not None:
            return text, ""
        if self.is_compact:
            number = re.match(rf"\d{{1,{self.most_digits}}}", text)
        else:
            number = re.search(r"\d+(?!.*\d)", text)
        return "", number.group() if number else ""

    def _observe(
        self, text: str, reward: float = 0.0, done: bool = False, valid: bool = True
    ) -> Observation:
        return Observation(text, reward, done, state=f"{self.question},{self.shown}", valid=valid)
