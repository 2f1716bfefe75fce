"""Guess a number between 1 and n; after each guess the environment says higher or lower.

In the plain style an action holds one number among words. In the compact style `1,9=` shows the
remaining range and later turns show the narrower one as `:5,9=`; the guess is the digits that an
action begins with.
"""

import random
import re

from strop.environments.base import Environment, Observation, check_number, check_style


class HiddenNumber(Environment):
    """Options: size (the largest number), max_turns (0: as many as halving needs), turn_cost (taken
    from the reward of the hit for each guess before it, never below 0), style.

    The hit earns 1, or less with a turn_cost: then only a hit at once counts as a success.
    """

    def __init__(
        self, size: int = 9, max_turns: int = 0, turn_cost: float = 0.0, style: str = "plain"
    ) -> None:
        check_style(style)
        check_number("hidden_number: size", size, 2, 10**6)
        check_number("hidden_number: max_turns", max_turns, 0)
        check_number("hidden_number: turn_cost", turn_cost, 0.0, 1.0, whole=False)
        self.size, self.turn_cost, self.is_compact = size, turn_cost, style == "compact"
        self.max_turns = max_turns or size.bit_length()
        self.max_tokens = tokens_of(size, self.is_compact)
        self.reward_range = (0.0, 1.0)
        self.number = self.low = self.high = 1
        self.guesses = 0

    def reset(self, seed: int) -> Observation:
        """Hide a number."""
        self.number = random.Random(seed).randint(1, self.size)
        self.low, self.high, self.guesses = 1, self.size, 0
        if self.is_compact:
            return self._observe(f"1,{self.size}=")
        return self._observe(
            f"I think of a whole number from 1 to {self.size}. Guess it: answer with one number "
            "each time, and I say whether mine is higher or lower.\n"
        )

    def step(self, action: str) -> Observation:
        """Compare the guess with the number."""
        guess = number_in(action, self.size, self.is_compact)
        self.guesses += 1
        if guess is None:
            text = self._range() if self.is_compact else "That is no number in the range.\n"
            return self._observe(text, valid=False)
        if guess == self.number:
            reward = max(1.0 - self.turn_cost * (self.guesses - 1), 0.0)
            return self._observe("", reward=reward, done=True)
        if guess < self.number:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        word = "higher" if guess < self.number else "lower"
        return self._observe(self._range() if self.is_compact else f"It is {word}.\n")

    def _range(self) -> str:
        return f":{self.low},{self.high}="

    def _observe(
        self, text: str, reward: float = 0.0, done: bool = False, valid: bool = True
    ) -> Observation:
        return Observation(text, reward, done, state=f"{self.low},{self.high}", valid=valid)


def number_in(action: str, most: int, is_compact: bool) -> int | None:
    """The number that an action says, or None when it says none from 1 to `most`, or several."""
    found = re.match(r"\d+", action) if is_compact else re.search(r"\d+", action)
    if found is None or len(found.group()) > 7:
        return None
    if not is_compact and len(set(re.findall(r"\d+", action))) > 1:
        return None
    number = int(found.group())
    return number if 1 <= number <= most else None


def tokens_of(most: int, is_compact: bool) -> int:
    """Most tokens of such an action; one of several digits also needs a token that ends it."""
    digits = len(str(most))
    return (digits + (digits > 1)) if is_compact else 64
