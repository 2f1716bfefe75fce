"""A game of TextArena: `data.task=textarena:Wordle-v0`, alone or with the policy in every seat.

A player sees the game's messages since its last turn. Games draw from Python's and numpy's global
generators; each episode has its own state of them, which is installed while it plays. Games keep
what they did (KuhnPoker reshuffles the deck of the game before), so each episode has a new copy.
"""

import copy
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from strop.environments.base import Environment, Observation, check_number
from strop.support.errors import UserError, did_you_mean, needs_extra
from strop.support.exits import Exit

MOST_PLAYERS = 15
LOST = -1.0  # the package's reward for a refused move that ends the game


class Textarena(Environment):
    """Options: players (0: as few as the game takes), whole (a turn shows what the package's own
    wrappers show, such as the whole history, and nothing else), max_turns, max_tokens,
    reward_range, and all others are those of `textarena.make`.

    Rewards are the game's, at its end. A move that the game refuses may be tried again where the
    game lets it; otherwise the player who made it loses.
    """

    def __init__(
        self,
        name: str,
        players: int = 0,
        whole: bool = False,
        max_turns: int = 32,
        max_tokens: int = 256,
        reward_range: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        check_number("textarena: players", players, 0, MOST_PLAYERS)
        check_number("textarena: max_turns", max_turns, 1)
        check_number("textarena: max_tokens", max_tokens, 1)
        self.name, self.rewrites, self.options = name, whole, options
        self.world = self.game = _made(name, options)
        try:
            self.unplayed = copy.deepcopy(self.world)  # some take seconds to make
        except TypeError:  # it holds the client of a served model
            self.unplayed = None
        self.drawn = (random.Random(0).getstate(), np.random.RandomState(0).get_state())
        self.num = self._smallest(players)
        self.roles = tuple(range(self.num)) if self.num > 1 else ()
        self.max_turns, self.max_tokens = max_turns, max_tokens
        self.reward_range = None if reward_range is None else (reward_range[0], reward_range[1])

    def reset(self, seed: int) -> Observation:
        """Begin the game of a seed."""
        self._begin(self.num, seed)
        return self._observe()

    def step(self, action: str) -> Observation:
        """Make a move."""
        player, errors = self.game.state.current_player_id, self._errors()
        with self._drawing():
            done, _ = self.world.step(action=action)
        if done:
            return self._end(player)
        return self._observe(valid=self._errors() <= errors)

    def _begin(self, num: int, seed: int) -> None:
        self.drawn = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(),
        )
        if self.unplayed is None:
            self.world = _made(self.name, self.options)
        else:
            self.world = copy.deepcopy(self.unplayed)
        self.game = self.world  # without its wrappers
        while hasattr(self.game, "env"):
            self.game = self.game.env
        with self._drawing():
            self.world.reset(num_players=num, seed=seed)

    def _observe(self, valid: bool = True) -> Observation:
        """The turn of the next player."""
        with self._drawing():
            if self.rewrites:
                player, text = self.world.get_observation()
            else:
                player, messages = self.game.get_observation()
                text = self._text(player, messages)
        role = player if self.roles else 0
        return Observation(str(text).strip() + "\n", valid=valid, role=role)

    def _text(self, player: int, messages: Sequence[Any]) -> str:
        """The messages that a player has not seen, without its own moves."""
        names = self.game.state.role_mapping
        lines = [
            f"[{names.get(sender, f'Player {sender}')}] {message}" if sender != -1 else message
            for sender, message, *_ in messages
            if sender != player
        ]
        return "\n".join(lines) or "It is your turn."

    def _end(self, player: int) -> Observation:
        """The end of the game. One without rewards has no score."""
        rewards, info = self.world.close()
        valid = not info.get(player, {}).get("invalid_move", False)
        paid: list[Any] = [(rewards or {}).get(seat) for seat in range(self.num)]
        if not valid and not isinstance(paid[player], int | float):
            paid[player] = LOST  # some games give the reason in the place of the reward
        if not all(isinstance(each, int | float) for each in paid):
            why = f"textarena:{self.name} ended a game without a reward for each player: {rewards}"
            return Observation("", done=True, exit=Exit.DECLARED, why=why)
        if not self.roles:
            return Observation("", float(paid[0]), done=True, valid=valid)
        return Observation("", done=True, valid=valid, rewards=tuple(map(float, paid)))

    def _errors(self) -> int:
        """The number of moves in a row that the game has refused."""
        return int(getattr(self.game.state, "error_count", 0))

    def _smallest(self, players: int) -> int:
        """The smallest number of players, or the given one. Raises UserError where none works."""
        why: Exception | None = None
        for num in (players,) if players else range(1, MOST_PLAYERS + 1):
            try:
                self._begin(num, 0)
            except Exception as error:  # games raise anything for a number that they refuse
                if why is None or isinstance(why, AssertionError):
                    why = error
            else:
                return num
        given = f"{players} players" if players else "any number of players"
        raise UserError(
            f"textarena: {self.name} does not begin with {given}: {type(why).__name__}: {why}"
        )

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Install this episode's state of the global generators inside the context."""
        outer = _drawn()
        _draw_from(self.drawn)
        try:
            yield
        finally:
            self.drawn = _drawn()
            _draw_from(outer)


def _drawn() -> Any:
    """The states of the global generators, from which games draw."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def _draw_from(states: Any) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


def _made(name: str, options: dict[str, Any]) -> Any:
    """The game. Raises UserError."""
    with needs_extra(f"environment textarena:{name} needs the package textarena", "textarena"):
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    if name not in ENV_REGISTRY:
        raise UserError(f"textarena has no game {name!r}{did_you_mean(name, list(ENV_REGISTRY))}")
    try:
        return textarena.make(name, **options)
    except LookupError as error:  # of nltk, whose corpora are loaded by a command of its own
        wanted = re.search(
            r"Resource '?(\w+)'? not found", re.sub(r"\x1b\[[\d;]*m", "", str(error))
        )
        if wanted is None:
            raise
        raise UserError(
            f"textarena: {name} needs words of nltk: python -m nltk.downloader {wanted[1]}"
        ) from error
