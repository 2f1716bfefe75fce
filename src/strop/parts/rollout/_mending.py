"""Episodes whose failed turns are repaired: where a call begins, and what replaces a turn."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from strop.engines.base import Event, first_tokens
from strop.parts.rollout._episode import Episode
from strop.parts.rollout._events import void, without_first
from strop.support.exits import Exit

Decode = Callable[[Sequence[int]], str]
MOST_TURNS = 30  # after so many turns of an episode, with repairs, nothing is repaired


@dataclass
class Mending:
    """An episode and the repairs of its failed turns."""

    episode: Episode
    rng: torch.Generator  # of the seeds of repairs and of the turns after them
    mends: bool  # whether failed turns are repaired
    own_seed: int  # of the turns that are not repairs
    tries: dict[int, int] = field(default_factory=dict)  # turn -> repairs of it that were started
    num_turns: int = 0  # that the environment has seen
    is_trying: bool = False  # the current action is to repair the turn before it
    was_whole: bool = False  # the last repair left nothing of the failed turn
    num_failed: int = 0  # turns, their repairs not counted
    kept: int = 0  # repairs that replaced a turn and did not fail
    whole: int = 0  # those of them that left nothing of the failed turn

    def seed(self) -> int:
        """Of a repair, or of the turns after one."""
        return int(torch.randint(2**62, (), generator=self.rng))

    def replace_failed(self, world: Any) -> Sequence[Event]:
        """Drop the repair's turn and return to the start of the failed one; returns its events.

        Later turns draw from a new seed: those of the old one at their places led to the failure.
        """
        seat = self.episode.seat
        turn = len(seat.turns) - 2
        failed = seat.turns[turn].events
        number = self.episode.repeated(world, turn)
        self.episode = self.episode.branched(number, seat.seed, turn)
        self.own_seed = self.seed()
        return failed

    def stop_at_failed(self) -> None:
        """End the episode with the failed turn, as if no repair had started."""
        seat = self.episode.seat
        opened = seat.turns.pop()
        seat.turn_log.pop()
        del seat.ids[len(seat.ids) - len(opened.given) :]
        self.episode.cut(Exit.TURN_LIMIT)


def call_begins(ids: Sequence[int], marker: str, decode: Decode) -> int | None:
    """The token in which the marker of a call begins; None where there is none."""
    place = decode(ids).find(marker) if marker else -1
    if place < 0:
        return None
    return next(n for n in range(len(ids)) if len(decode(ids[: n + 1])) > place)


def likeness(one: str, other: str) -> float:
    """Ratcliff and Obershelp's: twice the matching characters over all."""
    return difflib.SequenceMatcher(None, one, other).ratio()


def spliced(
    failed: Sequence[Event], repair: Sequence[Event], marker: str, least: float, decode: Decode
) -> tuple[list[Event], bool]:
    """The text that replaces a failed turn, and whether all of it is the repair's.

    Where the calls are alike, the reasoning before the failed one stays.
    """
    old, new = (tuple(id for e in events for id in e.ids) for events in (failed, repair))
    at, begin = (call_begins(ids, marker, decode) for ids in (old, new))
    alike = likeness(decode(old[at or 0 :]), decode(new[begin or 0 :])) >= least
    if not alike or at is None or begin is None:
        return void(repair), True
    return [*first_tokens(failed, at), *void(without_first(repair, begin))], False
