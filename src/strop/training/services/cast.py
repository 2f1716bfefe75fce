"""Assigns players to roles: one policy plays all, or each an adapter, trained or frozen."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from strop.method.services import ALONE, Player
from strop.support.errors import UserError
from strop.training.services.league import League


@dataclass
class Cast:
    """names: the adapters that are trained, in order. roles: the player of each role, by name;
    empty: one policy plays all. swap_every: steps after which each role passes to the adapter of
    the next one. step: the current one, from 1. league: its members take part in training.
    """

    names: tuple[str, ...] = ()
    roles: Mapping[int, str] = field(default_factory=dict)
    swap_every: int = 0
    league: League | None = None
    step: int = 1
    seed: int = 0

    def player(self, role: int) -> Player:
        """The current player of a role. Raises UserError for a role without one."""
        if not self.roles:
            return ALONE
        if role not in self.roles:
            known = ", ".join(map(str, self.roles))
            raise UserError(
                f"the role {role} has no player, roles.play has one for {known}: give it one"
            )
        order = list(self.roles)
        place = order.index(role)
        if self.swap_every:
            place = (place + (self.step - 1) // self.swap_every) % len(order)
        name = self.roles[order[place]]
        return Player(name, self.names.index(name) if name in self.names else -1)

    def players(self, game: int) -> Callable[[int], Player]:
        """The players of a game by role. game: a number that no other game of the run has."""
        if self.league is None or not self.league.members:
            return self.player
        return self.league.players_of_game(self.player, self.roles, self.seed, self.step, game)

    @contextmanager
    def without_league(self) -> Iterator[None]:
        """Inside, the current players play all roles."""
        league, self.league = self.league, None
        try:
            yield
        finally:
            self.league = league
