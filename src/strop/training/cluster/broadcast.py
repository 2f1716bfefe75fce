"""Broadcasts weights to engine workers in a process group: gloo for CPU tensors, else NCCL.

    process 0       packs tensors of one type into buckets, sends these, then the version
    process 1 ...   receives into new tensors, which become valid once the version has arrived

The group is separate from torch's default group, which several trainers share. It is recreated
after an engine is lost. An engine that missed a broadcast gets the weights from the object store.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from strop.support.errors import RunStopped, first_line

BUCKET_BYTES = 64 * 2**20
LIMIT_SECONDS = 60.0  # for all processes to join, and for one bucket
ANSWER_SECONDS = 10.0  # for an engine to finish its tick and answer


class Bucket(NamedTuple):
    """Names and shapes of tensors of one type that are sent as one tensor."""

    kind: torch.dtype
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """The number of elements in all of them."""
        return sum(math.prod(shape) for _, shape in self.shapes)


def in_buckets(weights: Mapping[str, Tensor], most_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """Pack all tensors into buckets of at most `most_bytes`; a larger tensor gets its own."""
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
    """A process group in which number 0 broadcasts weights to all others.

    Every call raises RuntimeError when another process is lost or too slow.
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
            self._broadcast(torch.cat([weights[n].detach().reshape(-1) for n, _ in bucket.shapes]))
        self._broadcast(torch.tensor([version], device=device))

    def take(
        self, buckets: Sequence[Bucket], version: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Receive all buckets and return the weights. Raises RunStopped for another version."""
        found: dict[str, Tensor] = {}
        for bucket in buckets:
            flat = torch.empty(bucket.size, dtype=bucket.kind, device=device)
            self._broadcast(flat)
            sizes = [math.prod(shape) for _, shape in bucket.shapes]
            for (name, shape), part in zip(bucket.shapes, flat.split(sizes), strict=True):
                found[name] = part.view(shape)
        received = torch.empty(1, dtype=torch.int64, device=device)
        self._broadcast(received)
        if int(received) != version:
            raise RunStopped(f"received weights of version {int(received)}, not {version}")
        return found

    def _broadcast(self, tensor: Tensor) -> None:
        self.inner.broadcast(
            [tensor.view(torch.uint8)], torch.distributed.BroadcastOptions()
        ).wait()


class Broadcast:
    """The sending side, for the engine workers that a holder has opened."""

    def __init__(self, ray: Any, holder: str) -> None:
        self.ray, self.holder = ray, holder
        self.group: Group | None = None
        self.workers: list[Any] = []
        self.store: Any = None

    def send(
        self, actors: Iterable[Any], weights: Mapping[str, Tensor], version: int
    ) -> list[bool]:
        """Send weights to these engines between their ticks; returns which of them received all."""
        actors = list(actors)
        have = self._answering(actors)
        workers = [each for each, answers in zip(actors, have, strict=True) if answers]
        if workers:
            got = iter(self._broadcast_to(workers, weights, version))
            have = [answers and next(got) for answers in have]
        return have

    def _answering(self, actors: Sequence[Any]) -> list[bool]:
        """Returns which engines answer; a broadcast would block on one that does not."""
        refs = [each.heed.remote(self.holder) for each in actors]
        answered, _ = self.ray.wait(refs, num_returns=len(refs), timeout=ANSWER_SECONDS)
        return [ref in answered and self._has(ref) for ref in refs]

    def _broadcast_to(
        self, workers: list[Any], weights: Mapping[str, Tensor], version: int
    ) -> list[bool]:
        buckets = in_buckets(weights)
        try:
            if self.group is None or self.workers != workers:
                self._create_group(workers, nccl=all(w.is_cuda for w in weights.values()))
            assert self.group is not None
            refs = [each.receive.remote(self.holder, buckets, version) for each in workers]
            self.group.send(weights, buckets, version)
        except RuntimeError as error:  # another process is lost or too slow
            print(f"note: weights of version {version} were not broadcast, engines load them from "
                  f"the object store: {first_line(error)}", file=sys.stderr)  # fmt: skip
            self.group = None
            return [False] * len(workers)
        have = [self._has(ref) for ref in refs]
        if not all(have):
            self.group = None
        return have

    def _create_group(self, workers: list[Any], nccl: bool) -> None:
        """Create the group of this process and these workers."""
        address = self.ray.util.get_node_ip_address()
        self.group, self.workers = None, workers
        self.store = torch.distributed.TCPStore(
            address, 0, is_master=True, wait_for_workers=False,
            timeout=datetime.timedelta(seconds=LIMIT_SECONDS),
        )  # fmt: skip
        place, count = (address, self.store.port), len(workers) + 1
        for number, each in enumerate(workers, 1):
            each.join.remote(self.holder, place, number, count, nccl)
        self.group = Group(self.store, 0, count, nccl)

    def _has(self, ref: Any) -> bool:
        try:
            self.ray.get(ref, timeout=LIMIT_SECONDS)
        except self.ray.exceptions.RayError:
            return False
        return True
