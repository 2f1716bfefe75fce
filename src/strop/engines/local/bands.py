"""Rows side by side in the cache, of about one length, of which attention reads no more than that.

A forward pass works on all running rows together, but attention reads every row up to the longest
of its band. All rows grow by a token a step, so bands stay as good as they are until a row ends or
comes. Rows of one length are one band, and then the pass is what it is without bands.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Keys and values, in bytes, that are read in the time of one more call of attention. Of a GPU not
# measured: a call of some 40 microseconds.
CALL_BYTES, CALL_BYTES_ELSEWHERE = 2**17, 2**27
# What bands must save, of the places of all rows and in calls: less is not worth other roundings.
LEAST_SAVED, LEAST_CALLS = 1 / 16, 8
MOVED = 3  # places that are read in the time in which one is moved
TILE = 16  # places that attention adds up at once: whole ones leave a row's bits as they are


class Band(NamedTuple):
    """The rows from `first` to before `end`, of which attention reads `used` places."""

    first: int
    end: int
    used: int


class Bands:
    """How rows are parted, and when they had better change places.

    call: places of a row that are read in the time of one more call.
    """

    def __init__(self, call: int) -> None:
        self.call = call
        self.clear()

    def clear(self) -> None:
        """Forget the rows, and what their order has cost."""
        self.cuts = np.zeros(1, np.int64)  # the first row of each band
        self.owed = self.waste = 0  # places read in vain: since rows moved, and by each step
        self.price = 0  # of moving, as places
        self.moves = (np.empty(0, np.int64),) * 2

    def part(self, length_N: np.ndarray) -> None:
        """Find bands of the rows as they lie, and which had better lie elsewhere."""
        self.cuts, read = self._cuts(length_N)
        longest_first = np.argsort(-length_N, kind="stable")
        cuts, least = self._cuts(length_N[longest_first])
        self.waste = read - least
        if self.waste <= 0:
            self.waste = self.owed = 0
            return
        here = np.searchsorted(cuts, np.arange(len(length_N)), "right")
        wanted = np.empty_like(here)
        wanted[longest_first] = here
        target = np.flatnonzero(wanted != here)
        self.moves = target[np.argsort(wanted[target], kind="stable")], target
        self.price = MOVED * len(target) * int(length_N[target].max())

    def take_step(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Rows that change places before this step, from and to.

        They do when reading in vain has cost as much as moving.
        """
        self.owed += self.waste
        if not self.waste or self.owed < self.price:
            return None
        self.owed = 0
        return self.moves

    def close(self, place_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows that change places so that these become the first, from and to.

        place_N: where they lie, in order. Each stays in its band, so that bands stay in order.
        """
        band = np.searchsorted(self.cuts, place_N, "right") - 1
        size = np.bincount(band, minlength=len(self.cuts))
        end = size.cumsum()
        first = end - size
        stays = (place_N >= first[band]) & (place_N < end[band])
        free = np.ones(len(place_N), bool)
        free[place_N[stays]] = False
        self.cuts = first[size > 0]
        return place_N[~stays], np.flatnonzero(free)

    def of(self, length_N: np.ndarray) -> list[Band]:
        """The bands of the rows, which have so many tokens by now."""
        longest = np.maximum.reduceat(length_N, self.cuts)
        used = np.minimum(-(-longest // TILE) * TILE, longest.max())
        ends = [*self.cuts[1:].tolist(), len(length_N)]
        return [Band(*own) for own in zip(self.cuts.tolist(), ends, used.tolist(), strict=True)]

    def sort(self, length_N: np.ndarray) -> np.ndarray:
        """Rows that are to come, those of the longest band first, else in their order."""
        if len(length_N) < 2:
            return np.arange(len(length_N))
        longest_first = np.argsort(-length_N, kind="stable")
        cuts, _ = self._cuts(length_N[longest_first])
        band = np.empty_like(longest_first)
        band[longest_first] = np.searchsorted(cuts, np.arange(len(length_N)), "right")
        return np.argsort(band, kind="stable")

    def _cuts(self, length_N: np.ndarray) -> tuple[np.ndarray, int]:
        """The first row of each band, and how many places a step reads."""
        whole = len(length_N) * int(length_N.max())
        worth = max(LEAST_CALLS * self.call, LEAST_SAVED * whole)
        if len(length_N) * int(np.ptp(length_N)) > worth:
            cuts, read = parted(length_N, self.call)
            if whole - read >= worth:
                return np.array(cuts), read
        return np.zeros(1, np.int64), whole


def parted(length_N: np.ndarray, call: int, first: int = 0) -> tuple[list[int], int]:
    """Cut where it saves most, and both parts again, while it saves more than a call.

    The first row of each part, the first of all being `first`, and what all parts are: rows times
    the longest.
    """
    number, longest = len(length_N), int(length_N.max(initial=0))
    if number > 1 and number * (longest - int(length_N.min())) > call:
        before = np.maximum.accumulate(length_N)[:-1]
        behind = np.maximum.accumulate(length_N[::-1])[-2::-1]
        rows = np.arange(1, number)
        read = rows * before + (number - rows) * behind
        cut = 1 + int(read.argmin())
        if number * longest - int(read[cut - 1]) > call:
            one, read_one = parted(length_N[:cut], call, first)
            two, read_two = parted(length_N[cut:], call, first + cut)
            return one + two, read_one + read_two
    return [first], number * longest
