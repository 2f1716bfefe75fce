"""One engine of a fleet, in a process of its own: takes orders, works in turns, knows no others."""

from __future__ import annotations

import datetime
import os
import socket
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from strop.errors import RunStopped
from strop.rollout.engines.fleet import Facts, Order, Turn
from strop.rollout.engines.turns import Turns
from strop.training.cluster.broadcast import LIMIT_SECONDS, Bucket, Group
from strop.training.config import RunConfig
from strop.training.setup import load_model, open_engine

STAGED = "staged"


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
        self.group: Group | None = None  # that weights are broadcast in
        self.staged: tuple[int, dict[str, torch.Tensor]] | None = None  # not drawn with yet

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

    def join(
        self, holder: str, place: tuple[str, int], number: int, count: int, nccl: bool
    ) -> None:
        """Join the group that weights are broadcast in."""
        self.heed(holder)
        limit = datetime.timedelta(seconds=LIMIT_SECONDS)
        self.group = None
        store = torch.distributed.TCPStore(*place, is_master=False, timeout=limit)
        self.group = Group(store, number, count, nccl)

    def receive(self, holder: str, buckets: Sequence[Bucket], version: int) -> None:
        """Keep weights that are broadcast now, for the turn that is told to take them.

        Raises RuntimeError where they do not come whole; nothing is kept then.
        """
        self.heed(holder)
        group, self.group, self.staged = self.group, None, None
        if group is None:
            raise RuntimeError("it has not joined")
        device = self.loaded.model.device
        self.staged = version, group.take(buckets, version, device)
        self.group = group

    def turn(self, holder: str, orders: Iterable[Order], weights: Any, version: int) -> Turn | None:
        """Take weights, if any, then orders; see Turns. None: this process is new, open it first.

        weights: None, packed ones, or STAGED, those that were broadcast. Raises RunStopped for who
        holds it no more: what a killed process had asked for.
        """
        if self.turns is None:
            return None
        self.heed(holder)
        if weights is not None:
            self.turns.engine.load_weights(self._whole(weights, version), version)
        return self.turns.turn(orders)

    def _whole(self, weights: Any, version: int) -> dict[str, torch.Tensor]:
        """All weights of a version, of which these are new."""
        own: dict[str, torch.Tensor] = self.loaded.model.state_dict()
        staged, self.staged = self.staged, None
        if weights != STAGED:
            return {**own, **unpacked(weights)}
        assert staged is not None, "it says so when they have come"
        assert staged[0] == version, f"version {staged[0]} is there, not {version}"
        return {**own, **staged[1]}

    def heed(self, holder: str) -> None:
        """Answer. Raises RunStopped for who holds it no more."""
        if holder != self.holder:
            raise RunStopped("another process has this engine by now")


Packed = tuple[str, tuple[int, ...], np.ndarray]  # type, shape, bytes


def packed(weights: Mapping[str, torch.Tensor]) -> dict[str, Packed]:
    """Tensors as plain bytes, which Ray's object store holds once a machine and never copies.

    They are no `.numpy()` of the tensors, whose storage could then never be let go again.
    """
    return {
        name: (str(value.dtype).removeprefix("torch."), tuple(value.shape), _bytes(value))
        for name, value in weights.items()
    }


def _bytes(value: torch.Tensor) -> np.ndarray:
    flat = value.detach().to("cpu").contiguous().reshape(-1)
    return np.from_dlpack(flat.view(torch.uint8))


def unpacked(weights: Mapping[str, Packed]) -> dict[str, torch.Tensor]:
    """The tensors again, over the same bytes: to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that torch could write where it may not
        return {name: _tensor(*each) for name, each in weights.items()}


def _tensor(kind: str, shape: tuple[int, ...], data: np.ndarray) -> torch.Tensor:
    dtype = getattr(torch, kind)
    if not data.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)
