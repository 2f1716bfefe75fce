"""What rows have drawn that is in no event yet: a record a token, written for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.engines.base import Ended, Event, Request
from strop.engines.local.ragged import Ragged
from strop.engines.sampling import ENTROPY, LOGP, LOGP_MODEL, TOKEN, TOP


class Records:
    """Records [tokens, width] of each slot since its last report; columns of `sampling.draw`.

    What a step has drawn is put away as it came; it is dealt out to the rows once one is asked for.
    """

    def __init__(self, num_slots: int) -> None:
        self.store = np.zeros((0, num_slots, 2))
        self.number = np.zeros(num_slots, np.int64)  # of each slot's, those of `steps` left out
        self.steps: list[np.ndarray] = []  # of the first slots each

    def append(self, told_NW: np.ndarray) -> None:
        """One more record for each of the first slots."""
        if self.steps and self.steps[-1].shape != told_NW.shape:
            self.deal()
        self.steps.append(told_NW)

    def append_several(self, ragged: Ragged, number_N: np.ndarray, told_TW: np.ndarray) -> None:
        """The first `number_N` of the records that each of the first slots has in `told_TW`."""
        self.deal()
        before = self.number[: len(number_N)]
        self._reserve(int((before + number_N).max()), told_TW.shape[1])
        kept = np.flatnonzero(ragged.column < number_N[ragged.row])
        row = ragged.row[kept]
        place = before[row] + ragged.column[kept]
        self.store[place, row, : told_TW.shape[1]] = told_TW[kept]
        before += number_N

    def deal(self) -> None:
        """Give each slot what the steps have drawn for it."""
        if not self.steps:
            return
        told_SNW, self.steps = np.stack(self.steps), []
        steps, slots, width = told_SNW.shape
        before = self.number[:slots]
        self._reserve(int(before.max()) + steps, width)
        self.store[before + np.arange(steps)[:, None], np.arange(slots), :width] = told_SNW
        before += steps

    def of(self, slots: Sequence[int]) -> list[np.ndarray]:
        """Records [tokens, width] of each of these slots."""
        self.deal()
        return [self.store[: self.number[slot], slot] for slot in slots]

    def forget(self, slots: Sequence[int]) -> None:
        """What these slots had is told, or of no use."""
        self.deal()
        self.number[slots] = 0

    def take_back(self, slots: Sequence[int]) -> None:
        """Forget the newest record of each of these slots."""
        self.deal()
        self.number[slots] -= 1

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """Slots `target` have what `source` had, all at once."""
        self.deal()
        most = int(self.number[source].max())
        self.store[:most, target] = self.store[:most, source]
        self.number[target] = self.number[source]

    def _reserve(self, length: int, width: int) -> None:
        old_length, slots, old_width = self.store.shape
        if length <= old_length and width <= old_width:
            return
        length = old_length if length <= old_length else max(32, 2 * length)
        grown = np.zeros((length, slots, max(width, old_width)))
        grown[:old_length, :, :old_width] = self.store
        self.store = grown


def event_of(id: int, request: Request, record: np.ndarray, version: int, ended: Ended) -> Event:
    """What the records [N, columns of `sampling.draw`] of a row's new tokens say."""
    top: tuple[dict[int, float], ...] = ()
    if request.num_top:
        pairs = record[:, TOP : TOP + 2 * request.num_top]
        ids, values = pairs[:, 0::2].astype(np.int64).tolist(), pairs[:, 1::2].tolist()
        top = tuple(dict(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True))

    def column(name: str, index: int) -> tuple[float, ...]:
        return tuple(record[:, index].tolist()) if name in request.want else ()

    return Event(
        request=id,
        ids=tuple(record[:, TOKEN].astype(np.int64).tolist()),
        logp=tuple(record[:, LOGP].tolist()),
        version=version,
        logp_model=column("logp_model", LOGP_MODEL),
        entropy=column("entropy", ENTROPY),
        top=top,
        ended=ended,
    )
