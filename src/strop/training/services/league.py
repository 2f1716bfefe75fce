"""A league: earlier copies of the adapters, which play against the current ones, and Elo ratings.

    expected = 1 / (1 + 10^((rating of the other - own) / 400))
    rating += K (score - expected) for the current ones, and as much less for the others

The score of a game is 1 where the current side earned more than the other one, 0 where it earned
less, else 1/2. Source of the ratings: A. Elo, The Rating of Chessplayers, 1978.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strop.method.chains import number_of
from strop.method.services import Player

START = 1000.0  # the rating of all adapters at the beginning
SCALE = 400.0  # points of difference at which ten of eleven games are won
RANGE = 2**62  # of `number_of`


class Played(NamedTuple):
    """A game against members of the league: the current adapters, the earlier copies, and the score
    of the former, 0 to 1.
    """

    own: tuple[str, ...]
    others: tuple[str, ...]
    score: float


@dataclass
class League:
    """share: the share of games played against members. size: most copies of an adapter; the oldest
    leave. every: steps between new copies. k: the largest change of a rating by a game.

    members: the steps of which there are copies of all trained adapters.
    """

    names: tuple[str, ...]
    every: int
    share: float = 0.5
    size: int = 8
    k: float = 4.0
    members: list[int] = field(default_factory=list)
    ratings: dict[str, float] = field(default_factory=dict)

    def players_of_game(
        self, now: Callable[[int], Player], roles: Mapping[int, str], seed: int, step: int,
        game: int,
    ) -> Callable[[int], Player]:  # fmt: skip
        """The players of a game by role: in a share of the games, one role drawn at random has its
        current player and all others are played by the members of one step.
        """
        if number_of(seed, step, "league", game) >= self.share * RANGE:
            return now
        mine = [role for role in roles if now(role).number >= 0]
        learns = mine[number_of(seed, step, "league/role", game) % len(mine)]
        member = self.members[number_of(seed, step, "league/member", game) % len(self.members)]

        def player(role: int) -> Player:
            own = now(role)
            if role == learns or own.number < 0:
                return own
            return Player(member_name(own.weights, member), -1)

        return player

    def rate(self, games: Sequence[Played]) -> dict[str, float]:
        """Update the ratings game by game; returns metrics."""
        for game in games:
            own, other = self._mean(game.own), self._mean(game.others)
            expected = 1 / (1 + 10 ** ((other - own) / SCALE))
            moved = self.k * (game.score - expected)
            for name in game.own:
                self.ratings[name] = self._of(name) + moved
            for name in game.others:
                self.ratings[name] = self._of(name) - moved
        found = {f"league/elo/{name}": self._of(name) for name in self.names}
        found["league/games"] = float(len(games))
        found["league/members"] = float(len(self.members))
        if games:
            found["league/score"] = sum(game.score for game in games) / len(games)
        return found

    def due(self, step: int) -> bool:
        """Whether copies are taken after a step."""
        return step % self.every == 0

    def take(self, step: int) -> tuple[dict[str, str], list[str]]:
        """Add copies of the adapters after a step; returns the copies' names with the adapters',
        and the names of the copies that leave.
        """
        self.members.append(step)
        new = {member_name(name, step): name for name in self.names}
        for copy, name in new.items():
            self.ratings[copy] = self._of(name)
        left = [member_name(name, old) for old in self.members[: -self.size] for name in self.names]
        del self.members[: -self.size]
        for name in left:
            self.ratings.pop(name, None)
        return new, left

    def copies(self) -> list[str]:
        """The names of all copies that take part."""
        return [member_name(name, step) for step in self.members for name in self.names]

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"members": list(self.members), "ratings": dict(self.ratings)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.members = [int(step) for step in state["members"]]
        self.ratings = {str(name): float(rating) for name, rating in state["ratings"].items()}

    def _of(self, name: str) -> float:
        return self.ratings.get(name, START)

    def _mean(self, names: tuple[str, ...]) -> float:
        return sum(map(self._of, names)) / len(names)


def member_name(name: str, step: int) -> str:
    """The name of the copy of an adapter after a step."""
    return f"{name}@{step}"
