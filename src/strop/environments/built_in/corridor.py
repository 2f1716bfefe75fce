"""A corridor of cells with a key in one of them and a locked door in the last.

Take the key, then open the door: reward 1. The start and the key's cell come from the seed. The
state is (position, has key), so episodes of one prompt meet the same states again and again.

In the plain style an action is one of the words left, right, take, open. In the compact style
`1,2,3:KP=` shows the key's cell K (0 once you hold it) and yours P, later turns show `:KP=`, and an
action is one character: 1 goes left, 2 goes right, 3 takes the key or opens the door.
"""

import random
import re

from strop.environments.base import Environment, Observation, check_number, check_style, only_word

WORDS = re.compile(r"left|right|take|open")
SYMBOLS = {"1": "left", "2": "right", "3": "use"}


class Corridor(Environment):
    """Options: size (cells, 2 to 9), max_turns (0: three a cell), step_cost (reward taken for each
    action), style. An action without effect, such as a step into the wall, is still valid.
    """

    def __init__(
        self, size: int = 4, max_turns: int = 0, step_cost: float = 0.0, style: str = "plain"
    ) -> None:
        check_style(style)
        check_number("corridor: size", size, 2, 9)
        check_number("corridor: max_turns", max_turns, 0)
        check_number("corridor: step_cost", step_cost, 0.0, whole=False)
        self.size, self.step_cost, self.is_compact = size, step_cost, style == "compact"
        self.max_turns = max_turns or 3 * size
        self.max_tokens = 1 if self.is_compact else 64
        self.reward_range = (-step_cost * self.max_turns, 1.0 - step_cost)
        self.position = self.key = 1
        self.has_key = False

    def reset(self, seed: int) -> Observation:
        """Draw the cells of the start and of the key; the key is never at the door."""
        draw = random.Random(seed)
        self.key = draw.randint(1, self.size - 1)
        self.position = draw.randint(1, self.size)
        self.has_key = False
        return self._observe(self._rules() + self._place())

    def step(self, action: str) -> Observation:
        """Move, take or open."""
        move = SYMBOLS.get(action[:1], "") if self.is_compact else only_word(action, WORDS)
        if move == "left":
            self.position = max(self.position - 1, 1)
        elif move == "right":
            self.position = min(self.position + 1, self.size)
        elif move in ("open", "use") and self.has_key and self.position == self.size:
            return self._observe("", reward=1.0 - self.step_cost, done=True)
        elif move in ("take", "use") and self.position == self.key:
            self.has_key = True
        return self._observe(self._place(), reward=-self.step_cost, valid=move != "")

    def _rules(self) -> str:
        if self.is_compact:
            return "1,2,3"
        return (
            f"You are in a corridor of cells 1 to {self.size}. The door in cell {self.size} is "
            "locked; the key lies in one of the cells. Take the key, then open the door. Answer "
            "with one word each time: left, right, take or open.\n"
        )

    def _place(self) -> str:
        if self.is_compact:
            return f":{0 if self.has_key else self.key}{self.position}="
        key = "You hold the key." if self.has_key else f"The key lies in cell {self.key}."
        return f"You are in cell {self.position}. {key}\n"

    def _observe(
        self, text: str, reward: float = 0.0, done: bool = False, valid: bool = True
    ) -> Observation:
        state = f"{self.position},{int(self.has_key)}"
        return Observation(text, reward, done, state=state, valid=valid)
