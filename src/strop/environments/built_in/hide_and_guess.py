"""Hidden numbers as a game: an attacker hides a number, defenders search for it.

The attacker (player 0, role 0) names a number from 1 to n, which nobody else sees. The defenders
(role 1) guess in turn; every guess and whether the number is higher or lower are public. The
attacker gets 1 when no guess hits. For a hit, the defender who made it gets 1 and the other ones
get `share`. An attacker who names no number forfeits: the seed hides one, and the game continues.

In the plain style an action holds one number among words. In the compact style the attacker sees
`(1,9)=` and defenders the remaining range, `1,9=`, later `:5,9=`; a number is the digits that an
action begins with.
"""

import random

from strop.environments.base import Environment, Observation, check_number, check_style
from strop.environments.built_in.hidden_number import number_in, tokens_of


class HideAndGuess(Environment):
    """Options: size (the largest number), defenders (how many), guesses (of all defenders together;
    0: one less than halving needs), share (of a hit, to each other defender), style.
    """

    def __init__(
        self,
        size: int = 9,
        defenders: int = 1,
        guesses: int = 0,
        share: float = 0.5,
        style: str = "plain",
    ) -> None:
        check_style(style)
        check_number("hide_and_guess: size", size, 2, 10**6)
        check_number("hide_and_guess: defenders", defenders, 1, 100)
        check_number("hide_and_guess: guesses", guesses, 0)
        check_number("hide_and_guess: share", share, 0.0, 1.0, whole=False)
        self.size, self.share, self.is_compact = size, share, style == "compact"
        self.roles = (0,) + (1,) * defenders
        self.guesses = guesses or max(size.bit_length() - 1, defenders)
        self.max_turns = -(-self.guesses // defenders)
        self.max_tokens = tokens_of(size, self.is_compact)
        self.reward_range = (0.0, 1.0)

    def reset(self, seed: int) -> Observation:
        """Ask the attacker for a number."""
        self.seed, self.number, self.forfeited = seed, 0, False
        self.low, self.high, self.made = 1, self.size, 0
        if self.is_compact:
            return self._turn(f"(1,{self.size})=")
        return self._turn(
            f"Hide a whole number from 1 to {self.size}: others have {self.guesses} guesses and "
            "hear each time whether yours is higher or lower. Answer with the number.\n"
        )

    def step(self, action: str) -> Observation:
        """Hide a number, or guess it."""
        number = number_in(action, self.size, self.is_compact)
        if not self.number:
            self.forfeited = number is None
            self.number = number or random.Random(self.seed).randint(1, self.size)
            return self._turn(self._range(), valid=number is not None)
        guesser = self._guesser()
        self.made += 1
        if number == self.number:
            worth = [0.0, *[self.share] * (len(self.roles) - 1)]
            worth[guesser] = 1.0
            return Observation("", done=True, rewards=tuple(worth))
        if number is not None and number < self.number:
            self.low = max(self.low, number + 1)
        elif number is not None:
            self.high = min(self.high, number - 1)
        if self.made == self.guesses:
            worth = [float(not self.forfeited), *[0.0] * (len(self.roles) - 1)]
            return Observation("", done=True, valid=number is not None, rewards=tuple(worth))
        return self._turn(self._range(), valid=number is not None)

    def _guesser(self) -> int:
        """The defender who guesses next."""
        return 1 + self.made % (len(self.roles) - 1)

    def _range(self) -> str:
        """The text for the next guesser."""
        is_first = self.made < len(self.roles) - 1  # this defender's
        if self.is_compact:
            return f"{'' if is_first else ':'}{self.low},{self.high}="
        rules = (
            f"A whole number from 1 to {self.size} is hidden; all guesses together may be "
            f"{self.guesses}. Answer with one number, and you hear where the hidden one lies.\n"
        )
        return f"{rules * is_first}It lies from {self.low} to {self.high}.\n"

    def _turn(self, text: str, valid: bool = True) -> Observation:
        player = self._guesser() if self.number else 0
        state = f"{self.low},{self.high},{self.made}" if self.number else "hide"
        return Observation(text, state=state, valid=valid, role=player)
