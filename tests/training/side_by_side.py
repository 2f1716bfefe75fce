"""Environments whose roles act in a known order, for tests of roles."""

import random

from strop.environments import Environment, Observation


class SideBySide(Environment):
    """Two players who never meet: each is shown a digit, and paid by what it writes first. `only`:
    one of them acts alone.
    """

    roles = (0, 1)
    max_turns, max_tokens = 1, 2
    reward_range = (0.0, 1.0)

    def __init__(self, only: int = -1) -> None:
        self.only = only

    def reset(self, seed: int) -> Observation:
        draw = random.Random(seed)
        self.digits = [str(draw.randint(1, 4)), str(draw.randint(5, 9))]
        return self._shown(max(self.only, 0))

    def columns(self) -> dict[str, str]:
        return {"completion": self.digits[0]}

    def _shown(self, player: int) -> Observation:
        self.player = player
        return Observation(f"1,{self.digits[player]}=", role=player)

    def step(self, action: str) -> Observation:
        rewards = [0.0, 0.0]
        rewards[self.player] = worth(action, self.digits[self.player])
        if self.only < 0 and self.player == 0:
            shown = self._shown(1)
            return Observation(shown.text, role=1, rewards=tuple(rewards))
        return Observation("", done=True, rewards=tuple(rewards))


class Relay(Environment):
    """Two agents of one team, who speak in turn and see what was said: four turns."""

    max_turns, max_tokens = 4, 2
    reward_range = (0.0, 4.0)

    def reset(self, seed: int) -> Observation:
        self.turn, self.digit = 0, str(random.Random(seed).randint(1, 9))
        return Observation(f"1,{self.digit}=", role=0)

    def step(self, action: str) -> Observation:
        self.turn += 1
        reward = worth(action, self.digit)
        return Observation(":1,9=", reward=reward, done=self.turn == 4, role=self.turn % 2)


def worth(action: str, digit: str) -> float:
    """Between 0 and 1, and rarely the same for all answers."""
    return (ord(action[:1] or " ") + int(digit)) % 5 / 4
