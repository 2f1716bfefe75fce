"""One worker of an engine pool, in a separate process: it takes orders and returns events."""

from __future__ import annotations

import datetime
import os
import socket
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from strop.engines.base import Engine, Event, try_start
from strop.engines.pool.pool import Facts, Order, Turn
from strop.support.devices import use_deterministic_operators
from strop.support.errors import RunStopped
from strop.training.cluster.broadcast import LIMIT_SECONDS, Bucket, Group
from strop.training.cluster.connect import enter
from strop.training.loading import load_model, open_engine
from strop.training.settings.config import RunConfig

TURN_SECONDS = 0.2  # a tick ends after this time even without events


class Turns:
    """Executes orders on an engine and returns its events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.open: set[int] = set()  # requests in progress

    def turn(self, orders: Iterable[Order]) -> Turn:
        """Execute the orders, then run the engine until there are events or time is up."""
        events: list[Event] = []
        for what, *given in orders:
            if what == "start":
                self.open.add(given[0])
                events += try_start(self.engine, *given)
                continue
            new = getattr(self.engine, what)(*given)
            if what == "cancel" and given[0] in self.open:
                events += [*new, Event(given[0], (), (), self.engine.version, ended="aborted")]
                self.open.remove(given[0])
        started = time.monotonic()
        while self.open and not events and time.monotonic() - started < TURN_SECONDS:
            events += self.engine.poll(TURN_SECONDS)
        self.open -= {event.request for event in events if event.ended}
        return Turn(tuple(events), self.engine.drafts)

    def clear(self) -> None:
        """Let the engine begin afresh."""
        for id in self.open:
            self.engine.cancel(id)
        self.open = set()
        self.engine.forget()


STAGED = "staged"


class EngineWorker:
    """Samples with the run's own engine settings; a tick takes orders and returns events."""

    def __init__(
        self, config: Mapping[str, Any], threads: int, folder: str, search: list[str]
    ) -> None:
        """config: of the run, in plain form. folder, search: working directory and module search
        path of the command.
        """
        enter(folder, search)
        torch.set_num_threads(threads)
        self.config = RunConfig(**config)
        if self.config.training.full_determinism:
            use_deterministic_operators()
        self.loaded: Any = None
        self.turns: Turns | None = None
        self.holder = ""  # the process that opened it last
        self.group: Group | None = None  # for broadcasts of weights
        self.staged: tuple[int, dict[str, torch.Tensor]] | None = None  # received, not loaded yet

    def open(self, holder: str) -> Facts:
        """Open the engine without requests for a holder. Raises UserError.

        A new engine has the initial weights; one opened before keeps the weights it had.
        """
        self.holder = holder
        if self.turns is None:
            self.loaded = load_model(self.config)
            self.turns = Turns(open_engine(self.config, self.config.engine, self.loaded))
        self.turns.clear()
        engine = self.turns.engine
        place = (socket.gethostname(), os.getpid())
        num_slots = self.config.training.num_slots
        return Facts(engine.capabilities, engine.longest, num_slots, place, engine.notes)

    def join(
        self, holder: str, place: tuple[str, int], number: int, count: int, nccl: bool
    ) -> None:
        """Join the group in which weights are broadcast."""
        self.heed(holder)
        limit = datetime.timedelta(seconds=LIMIT_SECONDS)
        self.group = None
        store = torch.distributed.TCPStore(*place, is_master=False, timeout=limit)
        self.group = Group(store, number, count, nccl)

    def receive(self, holder: str, buckets: Sequence[Bucket], version: int) -> None:
        """Receive broadcast weights and keep them until a tick loads them.

        Raises RuntimeError when they do not arrive completely; then nothing is kept.
        """
        self.heed(holder)
        group, self.group, self.staged = self.group, None, None
        if group is None:
            raise RuntimeError("this engine has not joined the group")
        device = self.loaded.model.device
        self.staged = version, group.take(buckets, version, device)
        self.group = group

    def turn(self, holder: str, orders: Iterable[Order], weights: Any, version: int) -> Turn | None:
        """Load weights, if any, then execute orders; see Turns. None: a new process, open it first.

        weights: None, packed weights, or STAGED for those received by broadcast. Raises RunStopped
        for a former holder: a killed process may have left calls behind.
        """
        if self.turns is None:
            return None
        self.heed(holder)
        if weights is not None:
            self.turns.engine.load_weights(self._whole(weights, version), version)
        return self.turns.turn(orders)

    def _whole(self, weights: Any, version: int) -> dict[str, torch.Tensor]:
        """Returns all weights of a version, of which the given ones are new."""
        own: dict[str, torch.Tensor] = self.loaded.model.state_dict()
        staged, self.staged = self.staged, None
        if weights != STAGED:
            return {**own, **unpacked(weights)}
        assert staged is not None, "staged weights are requested only after they were received"
        assert staged[0] == version, f"version {staged[0]} is staged, not {version}"
        return {**own, **staged[1]}

    def heed(self, holder: str) -> None:
        """Answer the current holder. Raises RunStopped for a former one."""
        if holder != self.holder:
            raise RunStopped("another process has this engine by now")


Packed = tuple[str, tuple[int, ...], np.ndarray]  # type, shape, bytes


def packed(weights: Mapping[str, torch.Tensor]) -> dict[str, Packed]:
    """Pack tensors as plain bytes, which Ray's object store holds once per machine without copies.

    `.numpy()` would not do: the storage of the tensors could then never be released.
    """
    return {
        name: (str(value.dtype).removeprefix("torch."), tuple(value.shape), _bytes(value))
        for name, value in weights.items()
    }


def _bytes(value: torch.Tensor) -> np.ndarray:
    flat = value.detach().to("cpu").contiguous().reshape(-1)
    return np.from_dlpack(flat.view(torch.uint8))


def unpacked(weights: Mapping[str, Packed]) -> dict[str, torch.Tensor]:
    """Returns read-only tensors over the same bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that the memory is read-only
        return {name: _tensor(*each) for name, each in weights.items()}


def _tensor(kind: str, shape: tuple[int, ...], data: np.ndarray) -> torch.Tensor:
    dtype = getattr(torch, kind)
    if not data.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)
