"""Weights broadcast to engines in a group of processes: gloo where they lie on a CPU, else NCCL.

    process 0       packs tensors of one type into buckets, sends these, then the version
    process 1 ...   fills tensors of its own, which count once the version has come

The group stands beside torch's default one, which several trainers have. It is made anew when an
engine has been lost. Who lacks a version after it has been sent gets it from the object store.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from strop.errors import RunStopped
from strop.training.cluster.connect import first_line

BUCKET_BYTES = 64 * 2**20
LIMIT_SECONDS = 60.0  # for all to come together, and for one bucket
ANSWER_SECONDS = 10.0  # for an engine to end its turn and say that it is there


class Bucket(NamedTuple):
    """Tensors of one type that are sent as one: their names and shapes."""

    kind: torch.dtype
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Numbers in all of them."""
        return sum(math.prod(shape) for _, shape in self.shapes)


def in_buckets(weights: Mapping[str, Tensor], most_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """All tensors, in buckets of so many bytes at most, or of one tensor."""
    found: list[Bucket] = []
    room: dict[torch.dtype, int] = {}
    last: dict[torch.dtype, int] = {}
    for name, value in weights.items():
        size, kind = value.numel() * value.element_size(), value.dtype
        entry = (name, tuple(value.shape))
        if room.get(kind, -1) < size:
            last[kind], room[kind] = len(found), most_bytes
            found.append(Bucket(kind, ()))
        place = last[kind]
        found[place] = Bucket(kind, (*found[place].shapes, entry))
        room[kind] -= size
    return found


class Group:
    """Processes that weights go through, from number 0 to all others.

    Every call raises RuntimeError where another process is lost, or late.
    """

    def __init__(
        self, store: Any, number: int, count: int, nccl: bool, seconds: float = LIMIT_SECONDS
    ) -> None:
        limit = datetime.timedelta(seconds=seconds)
        self.inner: Any
        if nccl:
            options = torch.distributed.ProcessGroupNCCL.Options()
            options._timeout = limit
            self.inner = torch.distributed.ProcessGroupNCCL(store, number, count, options)
        else:
            self.inner = torch.distributed.ProcessGroupGloo(store, number, count, limit)

    def send(self, weights: Mapping[str, Tensor], buckets: Sequence[Bucket], version: int) -> None:
        """Send all buckets, then the version."""
        device = next(iter(weights.values())).device
        for bucket in buckets:
            self._pass(torch.cat([weights[n].detach().reshape(-1) for n, _ in bucket.shapes]))
        self._pass(torch.tensor([version], device=device))

    def take(
        self, buckets: Sequence[Bucket], version: int, device: torch.device
    ) -> dict[str, Tensor]:
        """What is sent, once all of it is there. Raises RunStopped for another version."""
        found: dict[str, Tensor] = {}
        for bucket in buckets:
            flat = torch.empty(bucket.size, dtype=bucket.kind, device=device)
            self._pass(flat)
            sizes = [math.prod(shape) for _, shape in bucket.shapes]
            for (name, shape), part in zip(bucket.shapes, flat.split(sizes), strict=True):
                found[name] = part.view(shape)
        told = torch.empty(1, dtype=torch.int64, device=device)
        self._pass(told)
        if int(told) != version:
            raise RunStopped(f"weights of version {int(told)} came for version {version}")
        return found

    def _pass(self, tensor: Tensor) -> None:
        self.inner.broadcast(
            [tensor.view(torch.uint8)], torch.distributed.BroadcastOptions()
        ).wait()


class Broadcast:
    """The sending side, for the actors of engines that a holder has opened."""

    def __init__(self, ray: Any, holder: str) -> None:
        self.ray, self.holder = ray, holder
        self.group: Group | None = None
        self.members: list[Any] = []
        self.store: Any = None

    def send(
        self, actors: Iterable[Any], weights: Mapping[str, Tensor], version: int
    ) -> list[bool]:
        """Send weights to these engines, between their turns; which of them have all of it."""
        actors = list(actors)
        have = self._answering(actors)
        members = [each for each, answers in zip(actors, have, strict=True) if answers]
        if members:
            got = iter(self._sent(members, weights, version))
            have = [answers and next(got) for answers in have]
        return have

    def _answering(self, actors: Sequence[Any]) -> list[bool]:
        """Who is there: all would wait for one that is not."""
        refs = [each.heed.remote(self.holder) for each in actors]
        heard, _ = self.ray.wait(refs, num_returns=len(refs), timeout=ANSWER_SECONDS)
        return [ref in heard and self._has(ref) for ref in refs]

    def _sent(self, members: list[Any], weights: Mapping[str, Tensor], version: int) -> list[bool]:
        buckets = in_buckets(weights)
        try:
            if self.group is None or self.members != members:
                self._gather(members, nccl=all(w.is_cuda for w in weights.values()))
            assert self.group is not None
            refs = [each.receive.remote(self.holder, buckets, version) for each in members]
            self.group.send(weights, buckets, version)
        except RuntimeError as error:  # another one is lost, or late
            print(f"note: weights of version {version} were not broadcast, engines take them from "
                  f"the object store: {first_line(error)}", file=sys.stderr)  # fmt: skip
            self.group = None
            return [False] * len(members)
        have = [self._has(ref) for ref in refs]
        if not all(have):
            self.group = None
        return have

    def _gather(self, members: list[Any], nccl: bool) -> None:
        """Make the group of this process and these."""
        address = self.ray.util.get_node_ip_address()
        self.group, self.members = None, members
        self.store = torch.distributed.TCPStore(
            address, 0, is_master=True, wait_for_workers=False,
            timeout=datetime.timedelta(seconds=LIMIT_SECONDS),
        )  # fmt: skip
        place, count = (address, self.store.port), len(members) + 1
        for number, each in enumerate(members, 1):
            each.join.remote(self.holder, place, number, count, nccl)
        self.group = Group(self.store, 0, count, nccl)

    def _has(self, ref: Any) -> bool:
        try:
            self.ray.get(ref, timeout=LIMIT_SECONDS)
        except self.ray.exceptions.RayError:
            return False
        return True
