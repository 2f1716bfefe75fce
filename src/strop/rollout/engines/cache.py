"""A key-value cache in slots, for rows of different lengths, and the masks that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from strop.errors import UserError

MASK_KINDS = ("full_attention", "sliding_attention")


@dataclass
class Span:
    """Which rows and places one forward pass writes, and how far it may look.

    rows: a slice (all slots from 0, read in place) or slot numbers [N] (their cache is gathered).
    write: [N, Q] place of each new token in its slot; padding goes to the spare last place.
    used: number of places that attention sees, the longest row's length.
    """

    rows: slice | Tensor
    write: Tensor
    used: int


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer: [num_slots, heads, places, head size]."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = (
            new.new_zeros(self.cache.lines, new.shape[1], self.cache.places, new.shape[3])
            for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        span = self.cache.span
        lines = self.cache.line_numbers[span.rows] if isinstance(span.rows, slice) else span.rows
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            # indices on both sides of a slice put the indexed axes first: [N, Q, heads, size]
            store[lines[:, None], :, span.write] = new.transpose(1, 2)
        keys, values = (store[:, :, : span.used] for store in (self.keys, self.values))
        if isinstance(span.rows, slice):
            return keys[span.rows], values[span.rows]
        return keys.index_select(0, span.rows), values.index_select(0, span.rows)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.span.used, 0

    def get_seq_length(self) -> int:
        return 0  # rows differ; positions and masks are always given explicitly

    def get_max_length(self) -> int:
        return -1


BLOCK = 64  # places that a slot grows by, at least


def roomy(length: int) -> int:
    """Places of a slot that is made for `length` tokens: some more, so that growing stays rare."""
    return -(-(length + 1 + length // 8) // BLOCK) * BLOCK


class SlotCache(Cache):
    """Slots of a growing number of places; set `span` before each forward pass.

    The last place is never read: padding of shorter rows is written there. max_tokens: most places
    of all slots together; None: no bound.
    """

    def __init__(
        self, num_layers: int, num_slots: int, device: torch.device, max_tokens: int | None = None
    ) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])
        self.num_slots = num_slots
        self.max_tokens = max_tokens
        self.lines = 0  # slots that have memory
        self.places = 0
        self.line_numbers = torch.arange(num_slots, device=device)
        self.span = Span(slice(0, 0), self.line_numbers[:0], 0)

    def reserve(self, length: int, lines: int) -> None:
        """Make room for `length` tokens (and the spare place) in the first `lines` slots.

        length: at least of the longest row that is to stay; rows behind `lines` may lose theirs.
        There must be room for so much within `max_tokens`.
        """
        if length < self.places and lines <= self.lines:
            return
        longer = length >= self.places
        places = roomy(length) if longer else self.places
        wanted = lines if longer else max(lines, self.lines)
        if lines > self.lines:
            wanted = min(max(lines, self.lines + self.lines // 4), self.num_slots)
        if self.max_tokens is not None:
            wanted = lines if wanted * places > self.max_tokens else wanted
            places = min(places, self.max_tokens // wanted)
        assert places > length, "rows were let in for which there is no room"
        self._move(wanted, places)

    def _move(self, lines: int, places: int) -> None:
        """Give every layer stores of this size, with what there was as far as it fits."""
        kept_lines, kept_places = min(lines, self.lines), min(places, self.places)
        self.lines, self.places = lines, places
        for layer in self.live_layers():
            for name in ("keys", "values"):
                old = getattr(layer, name)
                new = old.new_zeros(lines, old.shape[1], places, old.shape[3])
                new[:kept_lines, :, :kept_places] = old[:kept_lines, :, :kept_places]
                setattr(layer, name, new)

    def shrink(self, num_bytes: int) -> None:
        """Give the memory back if it is more than `num_bytes`; nothing may be in the slots."""
        stores = [s for layer in self.live_layers() for s in (layer.keys, layer.values)]
        if sum(store.numel() * store.element_size() for store in stores) > num_bytes:
            self.lines = self.places = 0
            for layer in self.live_layers():
                layer.keys, layer.values = layer.keys[:0].clone(), layer.values[:0].clone()
                layer.is_initialized = False

    def clear(self, slots: Sequence[int]) -> None:
        """Zero what lies in these slots."""
        for layer in self.live_layers():
            for store in (layer.keys, layer.values):
                store[slots] = 0

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` places of slots `source` to slots `target`, all at once."""
        for layer in self.live_layers():
            for store in (layer.keys, layer.values):
                store[target, :, :length] = store[:, :, :length].index_select(0, source)

    def live_layers(self) -> list[SlotLayer]:
        return [layer for layer in self.layers if layer.is_initialized]


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
        if not kinds <= set(MASK_KINDS) or getattr(config, "use_bidirectional_attention", False):
            raise UserError(
                f"the local engine can't cache {config.model_type} (layers: {sorted(kinds)}); "
                "use another engine"
            )
        if "sliding_attention" in kinds:
            self.kinds: tuple[str, ...] = MASK_KINDS
        elif kinds or self.window is None:
            self.kinds = ("full_attention",)
        else:  # one window for all layers, as in Mistral
            self.kinds = ("sliding_attention",)
        self.dtype = model.dtype

    def masks(self, positions: Tensor, used: int) -> Tensor | dict[str, Tensor]:
        """Masks [N, 1, Q, used] for queries at `positions` [N, Q], as the model takes them."""
        places = torch.arange(used, device=positions.device)
        distance = positions[:, None, :, None] - places
        causal = distance >= 0
        masks = {}
        for kind in self.kinds:
            seen = causal
            if kind == "sliding_attention":
                assert self.window is not None
                seen = causal & (distance < self.window)
            masks[kind] = seen if self.implementation == "sdpa" else self._additive(seen)
        return masks if len(masks) > 1 else masks[self.kinds[0]]

    def _additive(self, seen: Tensor) -> Tensor:
        least = torch.finfo(self.dtype).min
        return torch.zeros(seen.shape, dtype=self.dtype, device=seen.device).masked_fill(
            ~seen, least
        )
