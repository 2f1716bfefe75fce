"""One engine of a fleet, in a process of its own: takes orders, works in turns, knows no others."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from strop.errors import RunStopped
from strop.rollout.engines.fleet import Facts, Order, Turn
from strop.rollout.engines.turns import Turns
from strop.training.config import RunConfig
from strop.training.setup import load_model, open_engine


class Member:
    """Samples with the run's own engine settings; a turn takes orders and brings events."""

    def __init__(self, config: Mapping[str, Any], threads: int, search: list[str]) -> None:
        """config: of the run, plain. search: where Python looks for modules besides."""
        sys.path += [place for place in search if place not in sys.path]
        torch.set_num_threads(threads)
        self.config = RunConfig(**config)
        self.loaded: Any = None
        self.turns: Turns | None = None
        self.holder = ""  # who has opened it

    def open(self, holder: str) -> Facts:
        """Make an engine without requests, for a holder: with the weights of the start, or those
        that it had for another one. Raises UserError.
        """
        self.holder = holder
        if self.turns is None:
            self.loaded = load_model(self.config)
            self.turns = Turns(open_engine(self.config, self.config.engine, self.loaded))
        self.turns.clear()
        engine = self.turns.engine
        place = (socket.gethostname(), os.getpid())
        return Facts(engine.capabilities, engine.longest, self.config.training.num_slots, place)

    def turn(self, holder: str, orders: Iterable[Order], weights: Any, version: int) -> Turn:
        """Take weights, if any, then orders; see Turns.

        Raises RunStopped for who holds it no more: what a killed process had asked for.
        """
        if holder != self.holder:
            raise RunStopped("another process has this engine by now")
        assert self.turns is not None, "it is opened first"
        if weights is not None:
            own = self.loaded.model.state_dict()
            self.turns.engine.load_weights({**own, **unpacked(weights)}, version)
        return self.turns.turn(orders)


Packed = tuple[str, tuple[int, ...], np.ndarray]  # type, shape, bytes


def packed(weights: Mapping[str, torch.Tensor]) -> dict[str, Packed]:
    """Tensors as plain bytes, which Ray's object store holds once a machine and never copies.

    They are no `.numpy()` of the tensors, whose storage could then never be let go again.
    """
    flat = {
        name: value.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
        for name, value in weights.items()
    }
    return {
        name: (str(value.dtype).removeprefix("torch."), tuple(value.shape),
               np.from_dlpack(flat[name]))
        for name, value in weights.items()
    }  # fmt: skip


def unpacked(weights: Mapping[str, Packed]) -> dict[str, torch.Tensor]:
    """The tensors again, over the same bytes: to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that torch could write where it may not
        return {
            name: torch.from_numpy(data).view(getattr(torch, kind)).reshape(shape)
            for name, (kind, shape, data) in weights.items()
        }
