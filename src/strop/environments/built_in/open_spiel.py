"""A game of OpenSpiel in which the policy plays every seat: Kuhn poker, tic-tac-toe, and others.

A player sees what the game shows to that player, and answers with the number of an action. Anything
but a legal action ends the game: the player who gave it gets the game's worst outcome less
`format_penalty`, all others get 0 (arXiv 2510.15414: an immediate loss).

In the plain style the last whole number of an action counts. In the compact style
`0,1:2-=` shows the numbers of the legal actions, once, and then the player's view (here a king, and
that the other player passed), later turns show `:0-+=`; the action is the number that the answer
begins with.
"""

import random
import re
import string
from typing import Any

from strop.environments.base import Environment, Observation, check_number, check_style
from strop.support.errors import UserError, did_you_mean, needs_extra

# Replacements for characters of a game that the shipped model does not know.
SIGNS = str.maketrans(
    {".": "0", "x": "1", "o": "2", "p": "-", "b": "+", "d": "*", "a": "/", "\n": "", " ": ","}
)
KNOWN = frozenset(string.digits + "+-*/(),:=")


class OpenSpiel(Environment):
    """Options: game (its OpenSpiel name, with parameters in brackets), format_penalty (taken from
    who gives no legal action, beside the loss), legal_reward (for each legal action), style.

    Games of chance are drawn from the seed. Rewards are what the game pays, as soon as it does.
    """

    def __init__(
        self,
        game: str = "kuhn_poker",
        format_penalty: float = 0.05,
        legal_reward: float = 0.0,
        style: str = "plain",
    ) -> None:
        check_style(style)
        check_number("open_spiel: format_penalty", format_penalty, 0.0, whole=False)
        check_number("open_spiel: legal_reward", legal_reward, 0.0, whole=False)
        self.name, self.is_compact = game, style == "compact"
        self.format_penalty, self.legal_reward = format_penalty, legal_reward
        self.game = _load(game)
        num, actions = self.game.num_players(), self.game.num_distinct_actions()
        self.roles = tuple(range(num)) if num > 1 else ()
        self.max_turns = self.game.max_game_length()
        self.digits = len(str(actions - 1))  # several digits also need a token that ends them
        self.max_tokens = (self.digits + (self.digits > 1)) if self.is_compact else 256
        worst, best = self.game.min_utility() - format_penalty, self.game.max_utility()
        self.reward_range = (worst, best + legal_reward * self.max_turns)
        if self.is_compact:
            self._check_compact()

    def reset(self, seed: int) -> Observation:
        """Begin a game with the seed's chance moves."""
        self.draw = random.Random(seed)
        self.state = self.game.new_initial_state()
        self.shown: set[int] = set()
        self._play_chance()
        return self._observe(())

    def step(self, action: str) -> Observation:
        """Make a move, or lose by an illegal one."""
        player, move = self.state.current_player(), self._read(action)
        rewards = [0.0] * self.game.num_players()
        if move not in self.state.legal_actions():
            rewards[player] = self.game.min_utility() - self.format_penalty
            return self._observe(rewards, done=True, valid=False)
        before = self.state.returns()
        self.state.apply_action(move)
        self._play_chance()
        rewards = [now - old for now, old in zip(self.state.returns(), before, strict=True)]
        rewards[player] += self.legal_reward
        return self._observe(rewards, done=self.state.is_terminal())

    def _play_chance(self) -> None:
        while self.state.is_chance_node():
            moves, odds = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(self.draw.choices(moves, odds)[0])

    def _read(self, action: str) -> int | None:
        """The number of the action; None when there is none."""
        if self.is_compact:
            found = re.match(rf"\d{{1,{self.digits}}}", action)
            return int(found.group()) if found else None
        numbers: list[str] = re.findall(r"\d+", action)
        return int(numbers[-1]) if numbers and len(numbers[-1]) < 10 else None

    def _observe(self, rewards: Any, done: bool = False, valid: bool = True) -> Observation:
        if done:
            return Observation("", done=True, valid=valid, rewards=tuple(rewards))
        player = self.state.current_player()
        seen, is_first = self._seen(player), player not in self.shown
        self.shown.add(player)
        text = self._compact(seen, is_first) if self.is_compact else self._plain(seen, is_first)
        state = f"{player},{seen}"
        return Observation(text, state=state, role=player, rewards=tuple(rewards))

    def _seen(self, player: int) -> str:
        """The player's view of the game: the board under perfect information, else the player's
        information state.
        """
        kind = self.game.get_type()
        is_open = kind.information == kind.Information.PERFECT_INFORMATION
        if not kind.provides_observation_string or (
            kind.provides_information_state_string and not is_open
        ):
            return str(self.state.information_state_string(player))
        return str(self.state.observation_string(player))

    def _compact(self, seen: str, is_first: bool) -> str:
        legal = ",".join(map(str, self.state.legal_actions())) if is_first else ""
        return f"{legal}:{seen.translate(SIGNS)}="

    def _plain(self, seen: str, is_first: bool) -> str:
        player = self.state.current_player()
        legal = self.state.legal_actions()
        named = ", ".join(f"{a} ({self.state.action_to_string(player, a)})" for a in legal)
        rules = (
            f"You are player {player} of {self.game.num_players()} in the game {self.name}. Answer "
            "with the number of a legal action; anything else loses the game.\n"
        )
        return f"{rules * is_first}You see:\n{seen}\nLegal actions: {named}\n"

    def _check_compact(self) -> None:
        """Raise UserError for a game whose first view has characters without a compact sign."""
        shown = self.reset(0).text
        unknown = sorted(set(shown) - KNOWN)
        if unknown:
            raise UserError(
                f"open_spiel: {self.name} shows {''.join(unknown)!r}, which the compact style has "
                "no signs for: take kuhn_poker, tic_tac_toe, nim or liars_dice, or style plain"
            )


def _load(name: str) -> Any:
    """The game of a name. Raises UserError for a missing package, no game, or an unfit one."""
    with needs_extra("environment open_spiel needs the package open-spiel", "games"):
        import pyspiel
    plain, games = name.partition("(")[0], pyspiel.registered_names()
    if plain not in games:
        raise UserError(f"open_spiel has no game {plain!r}{did_you_mean(plain, games)}")
    try:
        game = pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        raise UserError(f"open_spiel: cannot load the game {name!r}: {error}") from error
    kind = game.get_type()
    if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
        raise UserError(f"open_spiel: in {name} players act at once: take a game of single moves")
    if not (kind.provides_observation_string or kind.provides_information_state_string):
        raise UserError(f"open_spiel: {name} has no text for what a player sees: take another")
    return game
