"""Linear layers with several low-rank adapters: chooses the adapter of each row of a pass.

    y_i = W x_i + alpha / rank * B_a A_a x_i         a: the adapter of row i; the base has none

The layers are PEFT's; all of them ask one `Routes` for the adapters of the rows of the pass. Rows
of one adapter make the same product as in a model that has no other, so that their results are the
same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from strop.support.about import BASE as BASE
from strop.support.errors import UserError

PARAMETERS = ("lora_A", "lora_B")  # of a layer: a module for each adapter
Way = tuple[str, Tensor | None]  # an adapter and its rows; None: all


class Routes:
    """The state that all adapted layers of a model share. known: the names of the adapters.

    Outside of `under` and `by_row` a pass runs under the first adapter.
    """

    def __init__(self, first: str) -> None:
        self.known = [first]
        self.now: tuple[Way, ...] = ((first, None),)
        self.dim = 0  # the dimension of the rows in a layer's input

    @contextmanager
    def under(self, name: str) -> Iterator[None]:
        """Run all rows inside the context under one adapter, or the base."""
        self.check(name)
        with self._going(((name, None),), 0):
            yield

    @contextmanager
    def by_row(self, names: Sequence[str], device: torch.device, dim: int = 0) -> Iterator[None]:
        """Run row i of every layer's input under the adapter names[i]; dim: that of the rows."""
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(names):
            rows.setdefault(name or self.known[0], []).append(row)
        ways: list[Way] = [(name, None) for name in rows]
        if len(rows) > 1:
            ways = [(name, torch.tensor(own, device=device)) for name, own in rows.items()]
        with self._going(tuple(ways), dim):
            yield

    @contextmanager
    def _going(self, ways: tuple[Way, ...], dim: int) -> Iterator[None]:
        before = self.now, self.dim
        self.now, self.dim = ways, dim
        try:
            yield
        finally:
            self.now, self.dim = before

    def check(self, name: str) -> None:
        """Raise UserError for an adapter that the model lacks."""
        if name not in (BASE, *self.known):
            raise UserError(f"the model has no adapter {name!r}; it has {', '.join(self.known)}")


def routes_of(model: nn.Module) -> Routes | None:
    """The shared state of a model's adapted layers; None where it has one adapter, or none."""
    return getattr(model, "strop_routes", None)


def route(model: nn.Module, first: str) -> Routes:
    """Make the adapted layers of a model run each row under its own adapter."""
    routes = Routes(first)
    model.strop_routes = routes  # type: ignore[assignment]
    for module in model.modules():
        if all(hasattr(module, name) for name in PARAMETERS):
            module.__class__ = _routed(type(module))
            module.strop_routes = routes  # type: ignore[assignment]
    return routes


def weights_of(model: nn.Module, name: str) -> list[nn.Parameter]:
    """The parameters of an adapter, in the order of the model's layers."""
    own = tuple(f".{kind}.{name}." for kind in PARAMETERS)
    return [p for path, p in model.named_parameters() if any(each in path for each in own)]


_CLASSES: dict[type, type] = {}


def _routed(kind: Any) -> type:
    """The class of layers whose pass uses the rows' adapters."""

    def forward(layer: Any, x: Tensor) -> Tensor:
        found: Tensor = layer.base_layer(x)
        routes = layer.strop_routes
        for name, rows in routes.now:
            if name == BASE:
                continue
            inner = layer.lora_A[name]
            own = x if rows is None else x.index_select(routes.dim, rows)
            more = layer.lora_B[name](inner(own.to(inner.weight.dtype))) * layer.scaling[name]
            if rows is None:
                found = (found + more).to(found.dtype)
            else:
                sums = (found.index_select(routes.dim, rows) + more).to(found.dtype)
                found = found.index_copy(routes.dim, rows, sums)
        return found

    if kind not in _CLASSES:
        _CLASSES[kind] = type(f"Routed{kind.__name__}", (kind,), {"forward": forward})
    return _CLASSES[kind]
