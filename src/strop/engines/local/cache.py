"""A key-value cache in slots, for rows of different lengths, and the masks that go with it.

Rows of about one length lie side by side in bands. A forward pass works on all running rows
together, but attention reads every row up to the longest of its band. All rows grow by one token
per step, so bands stay good until a row ends or comes. Rows of one length are one band, and then
the pass is the same as without bands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from strop.engines.local.states import KINDS, HybridLayer, StateLayer
from strop.support.devices import to_device
from strop.support.errors import UserError


@dataclass
class Span:
    """The rows and places that one forward pass writes, and how far it attends.

    rows: a slice (all slots from 0, read in place) or slot indices [N] (their cache is gathered).
    write: [N, Q] place of each new token in its slot; padding goes to the spare last place.
    used: number of places that attention sees, the longest row's length.
    slot_T: the slots of new tokens that come end to end; then `write` is [T, 1]. None: each row has
    Q new tokens.
    fresh: attention sees only new tokens.
    """

    rows: slice | Tensor
    write: Tensor
    used: int
    slot_T: Tensor | None = None
    fresh: bool = False


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: [lines, heads, places, head size], at the start of `memory`."""

    is_sliding = False

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.memory: dict[str, Tensor] = {}
        for name, new in (("keys", key_states), ("values", value_states)):
            store = new.new_zeros(self.cache.lines, new.shape[1], self.cache.places, new.shape[3])
            self.memory[name] = store.view(-1)
            setattr(self, name, store)
        self.is_initialized = True
        self.cache.moved += 1

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        span = self.cache.span
        written = self.cache.written(key_states.shape[1])
        several = key_states.shape[2] > 1  # then heads must move behind tokens
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            size = store.shape[3]
            vectors = new.transpose(1, 2) if several else new
            store.view(-1, size).index_copy_(0, written, vectors.reshape(-1, size))
        if span.fresh:
            return key_states, value_states
        rows, used = span.rows, span.used
        if isinstance(rows, slice):
            return self.keys[rows, :, :used], self.values[rows, :, :used]
        keys, values = self.keys[:, :, :used], self.values[:, :, :used]
        return keys.index_select(0, rows), values.index_select(0, rows)

    def stores(self, length: int) -> list[Tensor]:
        """Keys and values of each slot's first `length` tokens."""
        return [self.keys.narrow(2, 0, length), self.values.narrow(2, 0, length)]

    def shape(self, old: Tensor, lines: int, places: int) -> tuple[int, ...]:
        """The shape of a store for so many lines and places."""
        return lines, old.shape[1], places, old.shape[3]

    def clear(self, lines: Any, places: slice | Tensor) -> None:
        """Zero some places of these lines."""
        for store in (self.keys, self.values):
            store[lines, :, places] = 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.span.used, 0

    def get_seq_length(self) -> int:
        return 0  # rows differ; positions and masks are always given explicitly

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.13


def layer_of(kind: str, cache: Any) -> Any:
    """A layer of this kind for a `SlotCache`."""
    mask, state = KINDS[kind]
    if not state:
        return SlotLayer(cache)
    return HybridLayer(cache, SlotLayer(cache)) if mask else StateLayer(cache)


ELSEWHERE = "generate with another engine, such as engine.kind=vllm (docs/ENGINES.md)"
BLOCK = 64  # places that a slot grows by, at least


def roomy(length: int, doubles: bool = False) -> int:
    """Places of a slot for `length` tokens: some more, so that growing stays rare."""
    if doubles:
        return max(4 * BLOCK, 1 << length.bit_length())
    return -(-(length + 1 + length // 8) // BLOCK) * BLOCK


class SlotCache(Cache):
    """Slots of a growing number of places; `begin` comes before each forward pass.

    The last place is never read: padding of shorter rows is written there. max_tokens: most places
    of all slots together; None: no bound. notes: whether one more layer stores further numbers of
    each token beside its keys and values. kinds: of the layers, where they differ.
    """

    def __init__(
        self, num_layers: int, num_slots: int, device: torch.device,
        max_tokens: int | None = None, notes: bool = False, kinds: Sequence[str] = (),
    ) -> None:  # fmt: skip
        layers: list[Any] = [layer_of(kind, self) for kind in kinds[:num_layers]]
        plain = num_layers + notes - len(layers)
        super().__init__(layers=layers + [SlotLayer(self) for _ in range(plain)])
        self.states = [layer for layer in layers if isinstance(layer, StateLayer)]
        self.num_slots = num_slots
        self.device = device
        self.max_tokens = max_tokens
        self.lines = 0  # slots that have memory
        self.places = 0
        self.doubles = False  # whether it grows by doubling
        self.moved = 0  # how often stores were reallocated
        # The line of memory of each slot. Rows that change slots take their lines along if all
        # readers of the cache look lines up; otherwise they are copied.
        self.line = np.arange(num_slots)
        self.line_N = torch.arange(num_slots, device=device)
        self.takes_lines = False
        self._begins: dict[int, tuple[int, Tensor]] = {}  # `_begin` by heads, with its places
        self.begin(Span(slice(0, 0), torch.zeros(0, 0, dtype=torch.int64, device=device), 0))

    def begin(self, span: Span) -> None:
        """Prepare for a forward pass that writes and reads the places of `span`."""
        self.span = span
        self._written: dict[int, Tensor] = {}
        for layer in self.states:
            layer.open()

    def end(self) -> None:
        """Store what the forward pass has left in copies of states."""
        for layer in self.states:
            layer.close()

    def note(self, values: Tensor) -> None:
        """Store the notes [N, Q, size] of the tokens that the pass has written."""
        values = values[:, None]
        self.layers[-1].update(values, values[..., :1])

    def noted(self, slot: int, start: int, end: int) -> Tensor:
        """The notes [end - start, size] of some places of a slot."""
        found: Tensor = self.layers[-1].keys[self.line[slot], 0, start:end]
        return found

    def stores(self, number: int, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, created for values like these [N, heads, size]."""
        layer = self.layers[number]
        if not layer.is_initialized:
            layer.lazy_initialization(value[:, :, None], value[:, :, None])
        return layer.keys, layer.values

    def written(self, heads: int) -> Tensor:
        """Indices [N * Q * heads] of a store's vectors that this pass writes, for all layers."""
        if heads not in self._written:
            span = self.span
            lines = span.rows if span.slot_T is None else span.slot_T
            begin = self._begin(heads)[lines]
            self._written[heads] = (begin[:, None] + span.write[:, :, None]).flatten()
        return self._written[heads]

    def _begin(self, heads: int) -> Tensor:
        """Index [slots, heads] of the first vector of each slot and head in a store."""
        if self._begins.get(heads, (0,))[0] != self.places:
            number = torch.arange(self.num_slots * heads, device=self.span.write.device)
            self._begins[heads] = (self.places, self.places * number.view(-1, heads))
        return self._begins[heads][1]

    def reserve(self, length: int, lines: int) -> None:
        """Make room for `length` tokens (and the spare place) in the first `lines` slots.

        length: at least that of the longest row to keep; rows beyond `lines` may lose their cache.
        All this must fit within `max_tokens`.
        """
        if length < self.places and lines <= self.lines:
            return
        if self.takes_lines:
            lines = max(lines, self.lines)
        places = roomy(length, self.doubles)
        wanted = lines if length >= self.places else max(lines, self.lines)
        if lines > self.lines:
            wanted = min(max(lines, self.lines + self.lines // 4), self.num_slots)
        if self.max_tokens is not None:
            wanted = lines if wanted * places > self.max_tokens else wanted
            places = min(places, self.max_tokens // wanted)
        assert places > length, "rows were admitted for which there is no room"
        self._resize(wanted, places)

    def _resize(self, lines: int, places: int) -> None:
        """Give every layer stores of this size, with the old content as far as it fits.

        Each store moves into the memory that the one before it has left, so that only the first
        needs new memory, unless all have to grow.
        """
        kept_lines, kept_places = min(lines, self.lines), min(places, self.places)
        self.lines, self.places = lines, places
        self.moved += 1
        left: Tensor | None = None
        for layer in self.live_layers():
            for name, own in layer.memory.items():
                old = getattr(layer, name)
                shape = layer.shape(old, lines, places)
                number = math.prod(shape)
                if left is None or left.numel() < number or left.dtype != own.dtype:
                    left = own.new_empty(max(number, own.numel()))
                new = left[:number].view(shape)
                if isinstance(layer, StateLayer):
                    new[:kept_lines] = old[:kept_lines]
                else:
                    new[:kept_lines, :, :kept_places] = old[:kept_lines, :, :kept_places]
                    new[:kept_lines, :, kept_places:] = 0
                new[kept_lines:] = 0
                setattr(layer, name, new)
                layer.memory[name], left = left, own

    def shrink(self, num_bytes: int) -> bool:
        """Free the memory if it is more than `num_bytes`; returns whether it was. The slots must be
        empty.
        """
        large = self.num_bytes() > num_bytes
        if large:
            self.lines = self.places = 0
            self.moved += 1
            self.reset_lines()
            for layer in self.live_layers():
                for name in layer.memory:
                    setattr(layer, name, getattr(layer, name)[:0].clone())
                layer.memory = {}
                layer.is_initialized = False
            for layer in self.states:
                layer.open()
        return large

    def num_bytes(self) -> int:
        """Bytes of all stores, used or not."""
        memory = (m for layer in self.live_layers() for m in layer.memory.values())
        return sum(each.numel() * each.element_size() for each in memory)

    def clear(self, slots: Sequence[int] | Tensor, places: slice | Tensor = slice(None)) -> None:
        """Zero these slots: all of their places, or one place of each."""
        lines = slots if isinstance(slots, Tensor) else self.lines_of(slots)
        for layer in self.live_layers():
            layer.clear(lines, places)

    def restart(self, slots: Sequence[int]) -> None:
        """Give these slots the states from which a sequence begins."""
        lines = self.lines_of(slots)
        for layer in self.states:
            layer.clear(lines, slice(None))

    def reset_lines(self) -> None:
        """Give each slot the line with its own index; the slots must be empty."""
        self.line = np.arange(self.num_slots)
        self.line_N.copy_(to_device(self.line, self.device))

    def lines_of(self, slots: Sequence[int]) -> list[int]:
        """The lines of these slots."""
        found: list[int] = self.line[list(slots)].tolist()
        return found

    def move(self, source: np.ndarray, target: np.ndarray, length: int) -> None:
        """Move the content of slots `source`, at most `length` places, to slots `target`, all at
        once; slots that are only in `source` then have no useful content.
        """
        if not self.takes_lines:
            self.copy(source.tolist(), target.tolist(), length)
            return
        taken, left = self.line[source], self.line[target]
        self.line[target] = taken
        self.line[np.setdiff1d(source, target)] = np.setdiff1d(left, taken)
        self.line_N.copy_(to_device(self.line, self.device))

    def copy(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Copy the first `length` places of slots `source` to slots `target`, all at once."""
        source, target = self.lines_of(source), self.lines_of(target)
        stores = [store for layer in self.live_layers() for store in layer.stores(length)]
        read_last = {slot: turn for turn, slot in enumerate(source)}
        if self.device.type == "cpu" and all(
            read_last.get(slot, turn) <= turn for turn, slot in enumerate(target)
        ):  # copied in this order no slot is read after it was written, so no buffer is needed
            for one, others in _runs(source, target):
                for store in stores:
                    store[others].copy_(store[one])
            return
        source_N, target_N = to_device(np.array([source, target]), self.device)
        for store in stores:
            store.index_copy_(0, target_N, store.index_select(0, source_N))

    def live_layers(self) -> list[Any]:
        both = ((layer, getattr(layer, "beside", None)) for layer in self.layers)
        return [each for pair in both for each in pair if each and each.is_initialized]


def _runs(source: Sequence[int], target: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Groups copies of one source to adjacent targets, such as the slots of a prompt group."""
    run: tuple[int, int, int] | None = None  # a source, its first target, and the end
    for one, other in zip(source, target, strict=True):
        if one == other:
            continue
        if run is not None and run[0] == one and run[2] == other:
            run = (one, run[1], other + 1)
            continue
        if run is not None:
            yield run[0], slice(*run[1:])
        run = (one, other, other + 1)
    if run is not None:
        yield run[0], slice(*run[1:])


class Attention:
    """Builds the explicit attention masks that a model family takes.

    Raises UserError for attention that can't be driven by explicit masks.
    """

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        self.implementation = config._attn_implementation
        self.window: int | None = getattr(config, "sliding_window", None)
        if self.implementation not in ("sdpa", "eager"):
            raise UserError(
                f"the local engine can't mask attn_implementation={self.implementation!r}; "
                "load the model with attn_implementation='sdpa'"
            )
        others = sorted(kinds - KINDS.keys())
        # "vision" means that only the tokens of an image see those behind them
        if getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision"):
            others = ["bidirectional attention"]
        if "local" in getattr(config, "attention_layers", ()):  # masked by the layers themselves
            others = ["local attention"]
        if others:
            raise UserError(
                f"the local engine can't drive a {config.model_type!r} model: it has no cache for "
                f"{', '.join(others)}; {ELSEWHERE}"
            )
        needed = {KINDS[kind].mask for kind in kinds} - {None}
        if kinds and not needed:
            self.kinds: tuple[str, ...] = ()
        elif "sliding_attention" in needed:
            self.kinds = ("full_attention", "sliding_attention")
        elif kinds or self.window is None:
            self.kinds = ("full_attention",)
        else:  # one window for all layers, as in Mistral
            self.kinds = ("sliding_attention",)
        # The mask of each kind of layer, by the names that models give them; None: it has none.
        self.names: dict[str, str | None] = {}
        if any(kind != KINDS[kind].mask for kind in kinds):
            both = any(KINDS[kind].mask and KINDS[kind].state for kind in kinds)
            more = ("linear_attention", "conv") if both else ()
            self.names = {kind: KINDS[kind].mask for kind in (*self.kinds, *sorted(kinds), *more)}
        self.dtype = model.dtype
        self.size = self.width = 0  # positions that `steps` covers, places of `lines`
        self.steps: list[Tensor] = []
        self.lines: list[Tensor] = []  # the rows of all possible masks

    def masks(self, positions: Tensor, used: int) -> Any:
        """Masks [N, 1, Q, used] of queries at `positions` [N, Q], as models take them; None where
        no layer has attention.
        """
        if not self.kinds:
            return None
        # CUDA kernels take a mask without a copy only if its rows begin at multiples of 16
        width = -(-used // 16) * 16
        if width > self.size or self.steps[0].device != positions.device:
            self.size = 2 * width
            self.steps = [self._steps(kind, positions.device) for kind in self.kinds]
            self.width = 0
        if width != self.width:
            shape, self.width = (self.size + 1, width), width
            self.lines = [steps.as_strided(shape, (1, 1)) for steps in self.steps]
        behind = self.size - positions
        found = [lines[behind][:, None, :, :used] for lines in self.lines]
        if len(found) == 1 and not self.names:
            return found[0]
        masks: dict[str | None, Tensor] = dict(zip(self.kinds, found, strict=True))
        if not self.names:
            return masks
        return {name: masks.get(kind) for name, kind in self.names.items()}

    def _steps(self, kind: str, device: torch.device) -> Tensor:
        """Values [2 size] added to the score of a place, indexed by size + its offset to the query.

        The mask's row for a query at position p is the stretch that begins at size - p.
        """
        behind = torch.arange(2 * self.size, device=device) - self.size
        seen = behind <= 0
        if kind == "sliding_attention":
            assert self.window is not None
            seen &= behind > -self.window
        least = -torch.inf if self.implementation == "sdpa" else torch.finfo(self.dtype).min
        steps = torch.full((2 * self.size,), least, dtype=self.dtype, device=device)
        return steps.masked_fill_(seen, 0)


# Keys and values, in bytes, that are read in the time of one more call of attention. The value for
# a GPU is not measured: it assumes a call of some 40 microseconds.
CALL_BYTES, CALL_BYTES_ELSEWHERE = 2**17, 2**27
# Bands must save this share of all rows' places, and the time of so many calls: smaller savings do
# not justify results that round differently.
LEAST_SAVED, LEAST_CALLS = 1 / 16, 8
MOVED = 3  # places that are read in the time of moving one
TILE = 16  # places that attention sums at once: whole tiles leave a row's bits unchanged


class Band(NamedTuple):
    """The rows from `first` to before `end`, of which attention reads `used` places."""

    first: int
    end: int
    used: int


class Bands:
    """How rows are divided into bands, and when rows should be moved.

    call: places of a row that are read in the time of one more call.
    """

    def __init__(self, call: int) -> None:
        self.call = call
        self.clear()

    def clear(self) -> None:
        """Reset the bands, and the cost of the rows' order."""
        self.cuts = np.zeros(1, np.int64)  # the first row of each band
        self.owed = self.waste = 0  # places read needlessly: since rows moved, and per step
        self.price = 0  # the cost of moving rows, in places
        self.moves = (np.empty(0, np.int64),) * 2

    def part(self, length_N: np.ndarray) -> None:
        """Find the bands of the rows in their order, and the rows that should be moved."""
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
        """Rows to move before this step, from and to.

        Rows move when needless reads have cost as much as moving them.
        """
        self.owed += self.waste
        if not self.waste or self.owed < self.price:
            return None
        self.owed = 0
        return self.moves

    def close(self, place_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows to move, from and to, so that the rows at `place_N` become the first.

        place_N: their places, in order. Each stays in its band, so that bands stay in order.
        """
        band = np.searchsorted(self.cuts, place_N, "right")
        size = np.bincount(band)
        end = size.cumsum()
        first = end - size
        stays = (place_N >= first[band]) & (place_N < end[band])
        free = np.ones(len(place_N), bool)
        free[place_N[stays]] = False
        self.cuts = first[size > 0]
        return place_N[~stays], np.flatnonzero(free)

    def of(self, length_N: np.ndarray) -> list[Band]:
        """The bands of the rows, given their current lengths."""
        longest = np.maximum.reduceat(length_N, self.cuts)
        used = np.minimum(-(-longest // TILE) * TILE, longest.max())
        ends = [*self.cuts[1:].tolist(), len(length_N)]
        return [Band(*own) for own in zip(self.cuts.tolist(), ends, used.tolist(), strict=True)]

    def sort(self, length_N: np.ndarray) -> np.ndarray:
        """An order for new rows: the longest band first, and the given order within a band."""
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
    """Cut the rows where it saves most, and both parts again, while that saves more than a call.

    Returns the first row of each part, counted from `first`, and the size of all parts: rows times
    the longest, summed.
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


def attend_newest(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """Attention [N, 1, heads, size] of one query a row [N, heads, 1, size] over keys and values
    [N, heads of keys, places, size] under a mask [N, 1, 1, places].

    Heads that share keys become several queries of one head, so that no key is copied for them.
    """
    number, heads, _, size = query.shape
    together = heads // key.shape[1]
    rows = query.reshape(number, heads // together, together, size)
    if together == 1 and query.dtype == torch.bfloat16 and query.device.type == "cpu":
        rows = rows.expand(-1, -1, 2, -1)  # torch computes two queries faster than one
    found = nn.functional.scaled_dot_product_attention(
        rows, key, value, attn_mask=mask, scale=scale
    )
    return found[:, :, :together].reshape(number, 1, heads, -1)
