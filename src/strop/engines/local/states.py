"""The states of recurrent layers, in slots: of linear attention, state spaces, short convolutions.

A slot's state is that after all of its computed tokens, and no earlier one can be had from it. So
only a row that goes on from exactly there may copy it. Some layers keep keys and values as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import CacheLayerMixin

# Both are missing in older versions of transformers, where no such model is driven.
LAYERS = getattr(cache_utils, "DYNAMIC_LAYER_TYPE_MAPPING", {})
Base: Any = getattr(cache_utils, "LinearAttentionCacheLayerMixin", CacheLayerMixin)


class Kind(NamedTuple):
    """What a layer of one kind keeps of a row's tokens.

    mask: the kind of attention whose mask it takes, with keys and values; None: it has neither.
    state: whether it keeps a state.
    """

    mask: str | None
    state: bool = False


# By the names of a configuration's `layer_types`. Layers of feed-forward alone keep nothing.
KINDS = {name: Kind(name) for name in ("full_attention", "sliding_attention")}
KINDS |= {name: Kind(None) for name in ("mlp", "moe")}
for name, layer in LAYERS.items():
    if layer is getattr(cache_utils, "LinearAttentionLayer", None):
        KINDS[name] = Kind(None, state=True)
for name, mask in (("hybrid", "full_attention"), ("hybrid_sliding", "sliding_attention")):
    if name in LAYERS:
        KINDS[name] = Kind(mask, state=True)


class StateLayer(Base):
    """The states of one layer of a `SlotCache`, [lines, ...] each: `conv` of its convolution, and
    `recurrent`.

    Within a pass `conv_states` and `recurrent_states` have those of the rows of the pass, in which
    models also write; `close` brings them back where they are copies.
    """

    is_sliding = False

    def __init__(self, cache: Any) -> None:
        super().__init__()
        self.cache = cache
        self.is_initialized = False
        self.memory: dict[str, Tensor] = {}

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: each state is made when it is first written."""

    def open(self) -> None:
        """Show the states of the rows of the pass that begins."""
        rows = self.cache.span.rows
        for name, shown in (("conv", self.conv_states), ("recurrent", self.recurrent_states)):
            shown[0] = getattr(self, name)[rows] if name in self.memory else None
        self.has_previous_state[0] = self.is_initialized

    def close(self) -> None:
        """Store the states of the rows of the pass that has ended."""
        rows = self.cache.span.rows
        if isinstance(rows, slice):
            return
        for name, shown in (("conv", self.conv_states), ("recurrent", self.recurrent_states)):
            if shown[0] is not None:
                getattr(self, name).index_copy_(0, rows, shown[0])

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        """Append new columns [N, channels, Q] to those that the convolution saw; returns both."""
        kept = self._shown("conv", conv_states[..., :1], conv_kernel_size or conv_states.shape[-1])
        whole = torch.cat([kept, conv_states], dim=-1)
        kept.copy_(whole[..., -kept.shape[-1] :])
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Replace the recurrence's state [N, ...]."""
        size = recurrent_states.shape[-1]
        shown = self._shown("recurrent", recurrent_states[..., :1], size)
        shown.copy_(recurrent_states)
        return shown

    def _shown(self, name: str, like: Tensor, size: int) -> Tensor:
        """The rows' state of this name, made where there is none. like: [N, ..., 1]."""
        shown = self.conv_states if name == "conv" else self.recurrent_states
        if name not in self.memory:
            store = like.new_zeros(self.cache.lines, *like.shape[1:-1], size)
            self.memory[name] = store.view(-1)
            setattr(self, name, store)
            self.is_initialized = True
            shown[0] = store[self.cache.span.rows]
        state: Tensor = shown[0]
        return state

    # What `SlotCache` does with the stores of any layer.

    def stores(self, length: int) -> list[Tensor]:
        """All states; of a slot's first `length` tokens there are none but the newest."""
        return [getattr(self, name) for name in self.memory]

    def shape(self, old: Tensor, lines: int, places: int) -> tuple[int, ...]:
        """The shape of a store for so many lines."""
        return (lines, *old.shape[1:])

    def clear(self, lines: Any, places: Any) -> None:
        """Zero the states of these lines."""
        for store in self.stores(0):
            store[lines] = 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.span.used, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class HybridLayer(StateLayer, CacheLayerMixin):
    """A layer that keeps states, and keys and values `beside` them."""

    def __init__(self, cache: Any, beside: Any) -> None:
        super().__init__(cache)
        self.beside = beside

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.beside.update(*args, **kwargs)
        return found
