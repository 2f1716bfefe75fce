"""An environment: the policy guesses a number and is told whether it is larger or smaller."""

import random

from strop.environments.base import Environment, Observation


class Guess(Environment):
    """Equal seeds and actions must give equal episodes."""

    max_tokens = 1  # of an action
    reward_range = (0.0, 1.0)  # of an episode

    def __init__(self, highest: int = 5, tries: int = 3) -> None:
        self.highest = highest
        self.max_turns = tries  # actions of an episode

    def reset(self, seed: int) -> Observation:
        """What is seen first, in characters that the shipped model knows."""
        self.turn, self.hidden = 0, random.Random(seed).randint(1, self.highest)
        return Observation(f"1,{self.highest}:", state="begun")

    def step(self, action: str) -> Observation:
        """What follows an action."""
        self.turn += 1
        guess = int(action) if action.isdecimal() else 0
        hint = "=" if guess == self.hidden else "+" if guess < self.hidden else "-"
        return Observation(
            f"{hint}:",
            reward=float(guess == self.hidden),
            done=guess == self.hidden or self.turn == self.max_turns,
            state=hint,
            valid=action.isdecimal(),
        )
