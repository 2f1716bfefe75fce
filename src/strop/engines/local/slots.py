"""The rows of the local engine: the state of each request, and the slot that holds its cache.

Tokens that are in no event yet have one record each; a step writes those of all rows at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from strop.engines.base import EXPERTS, Ended, Event, Request
from strop.engines.local.cache import BLOCK, Band, Bands, SlotCache
from strop.engines.local.ragged import Ragged
from strop.engines.sampling import ENTROPY, LOGP, LOGP_MODEL, TOKEN, TOP, Sets, uniforms
from strop.support.devices import to_device


class Records:
    """Records [tokens, width] of each slot since its last report; columns of `sampling.draw`.

    The records of a step are stored as they come, and distributed to the slots when one is read.
    `sets` has their kept sets, in the same places; None: no row has wanted them yet.
    """

    def __init__(self, num_slots: int) -> None:
        self.store = np.zeros((0, num_slots, TOP))  # reports read all columns before TOP
        self.sets: np.ndarray | None = None
        self.number = np.zeros(num_slots, np.int64)  # of each slot's records, without `steps`
        self.steps: list[np.ndarray] = []  # each has a record for each of the first slots

    def append(self, record_NW: np.ndarray, sets_N: Sets | None = None) -> None:
        """Append a record for each of the first slots."""
        if sets_N is not None or (self.steps and self.steps[-1].shape != record_NW.shape):
            self.deal()
        self.steps.append(record_NW)
        if sets_N is not None:
            row = np.arange(len(sets_N))
            place = self.number[: len(sets_N)].copy()
            self.deal()
            self._sets()[place, row] = sets_N

    def append_several(
        self,
        ragged: Ragged,
        number_N: np.ndarray,
        record_TW: np.ndarray,
        sets_T: Sets | None = None,
    ) -> None:
        """Append the first `number_N` of the records in `record_TW` of each of the first slots."""
        self.deal()
        before = self.number[: len(number_N)]
        self._reserve(int((before + number_N).max()), record_TW.shape[1])
        kept = np.flatnonzero(ragged.column < number_N[ragged.row])
        row = ragged.row[kept]
        place = before[row] + ragged.column[kept]
        self.store[place, row, : record_TW.shape[1]] = record_TW[kept]
        if sets_T is not None:
            self._sets()[place, row] = sets_T[kept]
        before += number_N

    def deal(self) -> None:
        """Distribute the records of the steps to the slots."""
        if not self.steps:
            return
        record_SNW, self.steps = np.stack(self.steps), []
        steps, slots, width = record_SNW.shape
        before = self.number[:slots]
        self._reserve(int(before.max()) + steps, width)
        self.store[before + np.arange(steps)[:, None], np.arange(slots), :width] = record_SNW
        before += steps

    def of(self, slots: Sequence[int]) -> list[np.ndarray]:
        """Records [tokens, width] of each of these slots."""
        self.deal()
        return [self.store[: self.number[slot], slot] for slot in slots]

    def sets_of(self, slots: Sequence[int]) -> list[Sequence[bytes]]:
        """The kept sets of each of these slots, where any are known."""
        self.deal()
        if self.sets is None:
            return [()] * len(slots)
        return [self.sets[: self.number[slot], slot].tolist() for slot in slots]

    def forget(self, slots: Sequence[int]) -> None:
        """Drop the records of these slots, which were reported or are not needed."""
        self.deal()
        self.number[slots] = 0
        if self.sets is not None:
            self.sets[:, slots] = b""

    def take_back(self, slots: Sequence[int]) -> None:
        """Drop the newest record of each of these slots."""
        self.deal()
        self.number[slots] -= 1

    def move(self, source: np.ndarray, target: np.ndarray) -> None:
        """Move the records of slots `source` to slots `target`, all at once."""
        self.deal()
        most = int(self.number[source].max())
        self.store[:most, target] = self.store[:most, source]
        if self.sets is not None:
            self.sets[:most, target] = self.sets[:most, source]
        self.number[target] = self.number[source]

    def _reserve(self, length: int, width: int) -> None:
        old_length, slots, old_width = self.store.shape
        if length <= old_length and width <= old_width:
            return
        length = old_length if length <= old_length else max(32, 2 * length)
        grown = np.zeros((length, slots, max(width, old_width)))
        grown[:old_length, :, :old_width] = self.store
        self.store = grown
        if self.sets is not None:
            self._sets()

    def _sets(self) -> np.ndarray:
        """The kept sets, grown to as many places as there are for records."""
        old, (length, slots, _) = self.sets, self.store.shape
        if old is None or len(old) < length:
            self.sets = np.full((length, slots), b"", dtype=object)
            if old is not None:
                self.sets[: len(old)] = old
        assert self.sets is not None
        return self.sets


def event_of(
    id: int, request: Request, record: np.ndarray, version: int, ended: Ended,
    sets: Sequence[bytes] = (),
) -> Event:  # fmt: skip
    """The event of a row's new tokens, from their records [N, columns of `sampling.draw`] and kept
    sets; without rules all kept sets are empty.
    """
    kept: tuple[bytes, ...] = ()
    if "kept" in request.want:
        kept = tuple(sets) if request.rules and sets else (b"",) * len(record)
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
        kept=kept,
    )


AHEAD = 16  # most steps whose random numbers are made at once
RECENT = 8  # newest tokens of each row that are kept on the host
FIELDS = np.dtype(
    [
        ("length", np.int64),  # tokens so far, prompt included; all but the last are cached
        ("limit", np.int64),  # ends with "length" at this many tokens
        ("seed", np.uint64),
        ("prompt", np.int64),  # hash of the prompt, to find rows that share it
        ("group", np.int64),  # hash of the prompt of a row or of the one that it was forked from
        ("recent", np.int64, (RECENT,)),  # newest tokens, -1 before the first; for drafts alone
        ("like", np.int64),  # the request of `Slots.kinds` with the same sampling options
        ("strings", np.bool_),  # has stop strings
        ("running", np.bool_),
        ("taken", np.bool_),  # holds a cache that is still needed: running or kept
    ],
    align=True,
)


@dataclass(slots=True, eq=False)
class Row:
    """One request in the engine."""

    id: int
    request: Request
    tokens: list[int]  # prompt and new tokens, up to the last report
    status: Literal["waiting", "running", "ended"] = "waiting"
    slot: int = -1  # -1: has no cache
    source: tuple[Row, int] | None = None  # a row with the same prefix, and the prefix's tokens
    # the row that continued in its slot, and how many tokens of this one it begins with
    heir: tuple[Row, int] | None = None
    prompt_hash: int = 0
    group: int = 0  # hash of its prompt, or of the prompt of the row that it continues

    def begins_as(self, other: Row) -> bool:
        """Whether both have the same prompt and weights, and so the same cache of the prompt."""
        own, theirs = self.request, other.request
        return own.ids == theirs.ids and own.weights == theirs.weights

    def found_source(self) -> tuple[Row, int] | None:
        """The row that has the cache of its prefix now, and the prefix's tokens; None: none has."""
        if self.source is None:
            return None
        row, size = self.source
        while row.slot < 0:
            if row.heir is None:
                return None
            row, kept = row.heir
            size = min(size, kept)
        return row, size


@dataclass(frozen=True)
class Fill:
    """A row that will run in `slot`; slot `source` has the cache of its first `shared` tokens."""

    row: Row
    slot: int
    source: int = -1
    shared: int = 0


class Slots:
    """A fixed number of rows with caches; running rows come first after `compact`.

    Values that change at every token are columns of arrays, on the host (`table`, `records`) or on
    the device (`last`), so that a step has no loop over rows. While the same rows run, a step reads
    none of these columns but `last`: `compact` notes what it has to know.

    longest: tokens of the longest running row. tokens: those of all running rows. texts: whether
    some of them have stop strings. quiet: number of steps before which none reaches its limit.
    """

    def __init__(self, num_slots: int, cache: SlotCache, device: torch.device, call: int) -> None:
        self.cache = cache
        self.bands = Bands(call)  # of the running rows, once `arrange` was called
        self.parted = False  # whether they are up to date
        self.rows: list[Row | None] = [None] * num_slots
        self.table = np.zeros(num_slots, FIELDS)
        self.last = torch.zeros(num_slots, dtype=torch.long, device=device)  # newest token
        self.records = Records(num_slots)
        self.number = -1  # number of running rows, which are the first; -1: unknown
        self.longest = self.tokens = self.quiet = 0
        self.texts = False
        self.changed = True  # the set of running rows differs from the last plan's
        self.ahead: list[tuple[Tensor, Tensor]] = []  # the next results of `numbers`, nearest last
        self.reach = 1  # number of steps to make at the next refill of `ahead`
        # for each slot, its row in a pass that has already started; None: the rows are others now
        self.origin: np.ndarray | None = None
        self.adapters: list[str] = []  # of the running rows; empty: must be looked up
        # by sampling options: an index, and a request that has them
        self.kinds: dict[tuple[Any, ...], tuple[int, Request]] = {}

    def choose(self, number: int) -> list[int]:
        """Up to `number` slots to fill: free ones, then those of kept rows."""
        chosen: list[int] = np.flatnonzero(~self.table["taken"])[:number].tolist()
        for slot in self.held()[: number - len(chosen)]:
            self.free(slot)
            chosen.append(slot)
        return chosen

    def held(self) -> list[int]:
        """Slots of kept rows, in the order in which they are evicted: the oldest first."""
        held = np.flatnonzero(self.table["taken"] & ~self.table["running"]).tolist()
        held.sort(key=lambda slot: self.row(slot).id)
        return held

    def heirs(self, waiting: Sequence[Row]) -> dict[int, int]:
        """Rows by id with the slot of an ended row, in which they continue without a copy.

        The slot goes to the first row that begins with all of the ended row's tokens. Where slots
        are short, so that the cache would be evicted anyway, it may also go to the only row that
        begins with some of them.
        """
        sources = [(row, *each) for row in waiting if (each := row.found_source()) is not None]
        if not sources:
            return {}
        short = len(waiting) > int((~self.table["taken"]).sum())
        users = Counter(source.id for _, source, _ in sources)
        found: dict[int, int] = {}
        for row, source, size in sources:
            if source.status != "ended" or self.table["running"][source.slot]:
                continue
            if size >= len(source.tokens) or (short and users[source.id] == 1):
                found[row.id] = source.slot
                self.table["running"][source.slot] = True  # so that no other row takes it
        return found

    def row(self, slot: int) -> Row:
        row = self.rows[slot]
        assert row is not None, f"slot {slot} is empty"
        return row

    def place(self, rows: Sequence[Row], slots: Sequence[int], context_length: int) -> None:
        """Start rows in slots whose cache holds all their tokens but the last."""
        if not self.table["running"].any():
            self.kinds.clear()
            self.bands.clear()
        for row, slot in zip(rows, slots, strict=True):
            request, length = row.request, len(row.tokens)
            limit = min(len(request.ids) + request.max_tokens, context_length)
            seed = request.seed & 0xFFFFFFFFFFFFFFFF
            strings = bool(request.stop_strings)
            recent = (*(-1,) * (RECENT - length), *row.tokens[-RECENT:])
            self.table[slot] = (
                *(length, limit, seed, row.prompt_hash, row.group),
                *(recent, self._kind(request), strings, True, True),
            )
            self.rows[slot] = row
            row.slot, row.status, row.source = slot, "running", None
        self.records.forget(slots)
        self.origin = None
        newest = [row.tokens[-1] for row in rows]
        index, token = to_device(np.array([slots, newest], np.int64), self.last.device)
        self.last[index] = token
        self._change()

    def _kind(self, request: Request) -> int:
        asked = (request.temperature, request.rules, request.num_top, request.stop_ids)
        return self.kinds.setdefault((*asked, request.want), (len(self.kinds), request))[0]

    def ways(self, number: int) -> tuple[list[Request], np.ndarray]:
        """Requests with different sampling options, and each first row's index among them."""
        numbers, like = np.unique(self.table["like"][:number], return_inverse=True)
        kinds = [request for _, request in self.kinds.values()]
        return [kinds[kind] for kind in numbers.tolist()], like

    def free(self, slot: int) -> None:
        """Free a slot and its row's cache."""
        row = self.rows[slot]
        if row is not None:
            row.slot = -1
        self.rows[slot] = None
        self.table["running"][slot] = self.table["taken"][slot] = False
        self._change()

    def hold(self, slot: int) -> None:
        """Stop the row but keep its cache."""
        self.table["running"][slot] = False
        self._change()

    def _change(self) -> None:
        """Discard everything that was prepared for the previous set of running rows."""
        self.changed = True
        self.parted = False
        self.adapters = []
        self.number = -1
        self.ahead, self.reach = [], 1

    def compact(self) -> int:
        """Move running rows to the first slots; returns their number."""
        if self.number < 0:
            self.number = self._close_up()
            running = self.table[: self.number]
            self.longest = int(running["length"].max(initial=0))
            self.tokens = int(running["length"].sum())
            self.texts = bool(running["strings"].any())
            self.quiet = 0
        return self.number

    def _close_up(self) -> int:
        """Fill the holes among running rows; held rows in between move behind them."""
        running = self.table["running"]
        number = int(np.count_nonzero(running))
        if not running[:number].all():
            holes = np.flatnonzero(~running[:number])
            tail = number + np.flatnonzero(running[number:])
            swap = self.table["taken"][holes]
            source, target = self.bands.close(np.flatnonzero(running))
            self._move(np.concatenate([source, holes[swap]]), np.concatenate([target, tail[swap]]))
            self.table["running"][tail] = False
            self.table["taken"][tail] = swap
            for slot in tail[~swap].tolist():
                self.rows[slot] = None
        return number

    def arrange(self, number: int) -> int:
        """Find the bands of `number` running rows, and move rows where it is worth it."""
        length = self.table["length"][:number]
        if not self.parted:
            self.bands.part(length)
        if moves := self.bands.take_step():
            self._move(*moves)
            self._change()
            self.bands.part(length)
        self.parted = True
        return number

    def read(self, number: int) -> list[Band]:
        """The bands of the running rows, once they are arranged."""
        if len(self.bands.cuts) == 1:
            return [Band(0, number, self.longest)]
        return self.bands.of(self.table["length"][:number])

    def weights(self, number: int) -> list[str]:
        """The adapter of each of the first rows."""
        if not self.adapters:
            self.adapters = [self.row(slot).request.weights for slot in range(number)]
        return self.adapters

    def sorted(self, rows: list[Row]) -> list[Row]:
        """New rows in the order in which they are best placed."""
        order = self.bands.sort(np.array([len(row.tokens) for row in rows]))
        return [rows[place] for place in order.tolist()]

    def pack(self) -> None:
        """Move running rows to the first slots and held ones to the slots after them."""
        self.compact()
        taken = self.table["taken"]
        number = int(taken.sum())
        holes = np.flatnonzero(~taken[:number])
        tail = number + np.flatnonzero(taken[number:])
        if len(holes):
            self._move(tail, holes)
            taken[tail] = False
            for slot in tail.tolist():
                self.rows[slot] = None

    def fitting(self, sizes: Sequence[tuple[int, int]]) -> int:
        """How many of these waiting rows, (tokens, limit) each, the cache's bound admits.

        They and the running rows have room to grow, so that none is soon evicted again.
        """
        if (most := self.cache.max_tokens) is None:
            return len(sizes)
        number, chosen = self.compact(), 0
        running = self.table[:number]
        places = int(np.minimum(running["length"] + BLOCK, running["limit"]).max(initial=1))
        for length, limit in sizes:
            wider = max(places, min(length + BLOCK, limit))
            together = number + chosen + 1
            if together > len(self.rows) or (together > 1 and together * wider > most):
                break
            places, chosen = wider, chosen + 1
        if chosen:
            self._give_up_held(number + chosen, places)
        return chosen

    def surplus(self, number: int) -> list[int]:
        """Slots of the running rows, out of `number`, to evict so that the longest can grow.

        They are the shortest, which are the cheapest to recompute, and of these the youngest.
        """
        if self.cache.max_tokens is None:
            return []
        running = self.table[:number]
        over = max(number - self.cache.max_tokens // self._places_ahead(number), 0)
        age = np.array([-self.row(slot).id for slot in range(number)])
        return sorted(np.lexsort((age, running["length"]))[:over].tolist())

    def grow(self, number: int) -> None:
        """Give the cache room for the next token of `number` running rows."""
        if self.cache.max_tokens is not None:
            self._give_up_held(number, self._places_ahead(number))
        lines, length = self.extent()
        self.cache.reserve(length, lines)

    def _places_ahead(self, number: int) -> int:
        """Places for the longest row's next token and some more, so that growing is rare."""
        running = self.table[:number]
        return min(int(running["length"].max()) + BLOCK // 4, int(running["limit"].max()))

    def _give_up_held(self, number: int, places: int) -> None:
        """Free held rows until the rest fit the cache's bound beside `number` rows of `places`."""
        most, held = self.cache.max_tokens, self.held()
        assert most is not None
        lengths = self.table["length"]
        while held:
            longest = max(places, 1 + int(lengths[held].max()))
            if (number + len(held)) * longest <= most:
                break
            self.free(held.pop(0))
        self.pack()

    def extent(self) -> tuple[int, int]:
        """Slots up to the last one that is taken, and tokens of the longest row in any."""
        taken = np.flatnonzero(self.table["taken"])
        if not len(taken):
            return 0, 0
        return int(taken[-1]) + 1, int(self.table["length"][taken].max())

    def _move(self, source: np.ndarray, target: np.ndarray) -> None:
        length = int(self.table["length"][source].max())
        self.table[target] = self.table[source]
        moved = [self.row(slot) for slot in source.tolist()]
        for row, slot in zip(moved, target.tolist(), strict=True):
            self.rows[slot] = row
            row.slot = slot
        if self.origin is not None:
            self.origin[target] = self.origin[source]
        self.cache.move(source, target, length)
        source_t, target_t = to_device(np.stack([source, target]), self.last.device)
        self.last[target_t] = self.last[source_t]
        self.records.move(source, target)

    def numbers(self, number: int) -> tuple[Tensor, Tensor]:
        """[number] on the device: the position of each row's newest token, and its random number.

        They are copied together, and for several steps at once while the same rows run, because a
        copy costs the same whatever its size.
        """
        if not self.ahead:
            steps = np.arange(self.reach - 1, -1, -1)[:, None]
            length = self.table["length"][:number] + steps
            uniform = uniforms(self.table["seed"][:number], length.astype(np.uint64))
            numbers = np.stack((length - 1, uniform.view(np.int64)))
            positions, bits = to_device(numbers, self.last.device)
            drawn = bits.view(torch.float64)
            self.ahead = list(zip(positions.unbind(), drawn.unbind(), strict=True))
            self.reach = min(2 * self.reach, AHEAD)
        return self.ahead.pop()

    def write(self, records: np.ndarray, sets: Sets | None) -> None:
        """Append one token to each of the first rows, with their records [N, width] and kept sets
        on the host. The tokens are in `last`.
        """
        self.records.append(records, sets)
        self.table["length"][: len(records)] += 1
        self.longest += 1
        self.tokens += len(records)
        self.quiet -= 1

    def write_several(
        self, ragged: Ragged, number_N: np.ndarray, token_T: Tensor, records: np.ndarray,
        sets: Sets | None,
    ) -> None:  # fmt: skip
        """Append the first `number_N` of the tokens sampled for each of the first rows."""
        self.records.append_several(ragged, number_N, records, sets)
        newest = np.flatnonzero(ragged.column == number_N[ragged.row] - 1)
        self.last[: ragged.num_rows] = token_T[torch.from_numpy(newest).to(token_T.device)]
        self.table["length"][: ragged.num_rows] += number_N
        self.number, self.quiet, self.ahead, self.origin = -1, 0, [], None

    def fail(self, slots: Sequence[int], why: Sequence[str], version: int) -> list[Event]:
        """Remove the newest token of rows for which none could be drawn; returns their last events.

        Their caches are cleared: a NaN there would reach the slot's next row, masked or not.
        """
        self.table["length"][slots] -= 1
        self.origin = None
        self.records.take_back(slots)
        events = self.report(slots, ["failed"] * len(slots), version)
        self.cache.clear(slots)
        return [event._replace(why=reason) for event, reason in zip(events, why, strict=True)]

    def report(self, slots: Sequence[int], ended: Sequence[Ended], version: int) -> list[Event]:
        """Make one event per row from the tokens that it has sampled since its last report."""
        events = []
        known = zip(self.records.of(slots), self.records.sets_of(slots), strict=True)
        for slot, reason, (record, sets) in zip(slots, ended, known, strict=True):
            row = self.row(slot)
            event = event_of(row.id, row.request, record, version, reason, sets)
            if EXPERTS in row.request.want:
                event = event._replace(experts=self._experts(row, slot, len(record)))
            row.tokens.extend(event.ids)
            events.append(event)
        self.records.forget(slots)
        return events

    def _experts(self, row: Row, slot: int, new: int) -> tuple[bytes, ...]:
        """The experts of the passes that sampled a row's new tokens; at first its prompt's too."""
        end = int(self.table["length"][slot]) - 1
        is_first = len(row.tokens) == len(row.request.ids)
        noted = self.cache.noted(slot, 0 if is_first else end - new, end).cpu().numpy()
        return tuple(map(bytes, noted))
