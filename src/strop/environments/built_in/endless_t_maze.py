"""Corridors one after another: the newest sign says where to turn at the end of its corridor.

At the start of a corridor a sign says left or right, and it replaces the previous sign. Then come
cells without a sign, and at the end a turn: the correct turn leads to the next corridor and pays an
equal share of 1, so that an episode that passes all corridors earns 1; a wrong turn ends it.

In the plain style an action is one of the words left, right, forward. In the compact style `1=` and
`2=` are the signs for left and right, `-=` is a cell and `+=` the end of a corridor, and an action
is one character: 1 turns left, 2 turns right, 3 goes forward.

With a window an observation shows that many of the last places, without the actions taken there:
where the corridor is longer, its end looks the same for both signs, and one can only guess.
"""

import random
import re

from strop.environments.base import Environment, Observation, check_number, check_style, only_word
from strop.support.errors import UserError

TURNS = ("left", "right")
WORDS = re.compile(r"left|right|forward")
SYMBOLS = {"1": "left", "2": "right", "3": "forward"}


class EndlessTMaze(Environment):
    """Options: n_corridors (1 to 99), length (steps to the end of a corridor), shortest (0: all are
    as long; else their lengths are drawn from shortest to length), penalty (reward taken for each
    action that goes nowhere and for a wrong turn), window (places that are shown; 0: all), style.
    """

    def __init__(
        self, n_corridors: int = 3, length: int = 10, shortest: int = 0, penalty: float = 0.0,
        window: int = 0, style: str = "plain",
    ) -> None:  # fmt: skip
        check_style(style)
        check_number("endless_t_maze: n_corridors", n_corridors, 1, 99)
        check_number("endless_t_maze: length", length, 1)
        check_number("endless_t_maze: shortest", shortest, 0)
        check_number("endless_t_maze: penalty", penalty, 0.0, whole=False)
        check_number("endless_t_maze: window", window, 0)
        if shortest > length:
            raise UserError(f"endless_t_maze: shortest={shortest} is more than length={length}")
        self.n_corridors, self.length, self.shortest = n_corridors, length, shortest or length
        self.penalty, self.window, self.is_compact = penalty, window, style == "compact"
        self.rewrites = window > 0
        self.max_turns = 6 * (length + 1) * n_corridors
        self.max_tokens = 1 if self.is_compact else 64
        self.reward_range = (-penalty * self.max_turns, 1.0)
        self.corridors: list[tuple[str, int]] = []  # sign and length of each
        self.passed = self.cell = 0
        self.shown: list[str] = []  # the places so far

    def reset(self, seed: int) -> Observation:
        """Draw a sign and a length for every corridor."""
        draw = random.Random(seed)
        self.corridors = [
            (draw.choice(TURNS), draw.randint(self.shortest, self.length))
            for _ in range(self.n_corridors)
        ]
        self.passed = self.cell = 0
        self.shown = [self._place()]
        return self._observe(first=True)

    def step(self, action: str) -> Observation:
        """Go forward, or turn."""
        move = SYMBOLS.get(action[:1], "") if self.is_compact else only_word(action, WORDS)
        sign, length = self.corridors[self.passed]
        if self.cell < length and move == "forward":
            self.cell += 1
            self.shown.append(self._place())
            return self._observe()
        if self.cell < length or move not in TURNS:
            return self._observe(-self.penalty, valid=move != "")
        if move != sign:
            return self._end(-self.penalty)
        self.passed, self.cell = self.passed + 1, 0
        share = 1 / self.n_corridors
        if self.passed == self.n_corridors:
            return self._end(share)
        self.shown.append(self._place())
        return self._observe(share)

    def _rules(self) -> str:
        if self.is_compact:
            return ""
        return (
            f"You walk through {self.n_corridors} corridors. A sign at the start of each says "
            "where to turn at its end; only the newest sign counts. Answer with one word each "
            "time: forward, left or right.\n"
        )

    def _place(self) -> str:
        """The text of the current place."""
        sign, length = self.corridors[self.passed]
        if self.is_compact:
            at_start = str(1 + TURNS.index(sign))
            return f"{at_start if self.cell == 0 else '+' if self.cell == length else '-'}="
        where = f"You are in cell {self.cell} of {length}."
        if self.cell == 0:
            return f"{where} The sign says {sign}.\n"
        return f"{where} The corridor ends: turn.\n" if self.cell == length else f"{where}\n"

    def _observe(self, reward: float = 0.0, valid: bool = True, first: bool = False) -> Observation:
        text = "".join(self.shown[-self.window :]) if self.window else self.shown[-1]
        if self.window or first:
            text = self._rules() + text
        sign, _ = self.corridors[self.passed]
        state = f"{self.passed},{self.cell},{sign}"
        return Observation(text, reward, state=state, valid=valid, measures=self._measures())

    def _end(self, reward: float) -> Observation:
        return Observation("", reward, done=True, measures=self._measures())

    def _measures(self) -> dict[str, float]:
        return {"corridors": float(self.passed)}
