"""The processes of a run: one that is alone, or several that hold the same columns.

Every process has the whole batch of a step and comes to the same numbers; a model's weights lie in
shards over all of them, and each runs the forward passes of its own micro-batches. Only the models,
the engine and what leaves the process (files, prints, graders) ask a `Ranks`. Parts never do.
"""

from __future__ import annotations

import datetime
import os
import pickle
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from strop.errors import RunStopped, UserError
from strop.training import launched, shards
from strop.training.signs import Signs

T = TypeVar("T")
# That the others wait for a process; what the first does for all, as rewards, may take long. One
# that hangs is noticed by its signs of life, see signs.py.
SILENCE = datetime.timedelta(hours=2)
# What torch says in a process whose connection to another one is gone.
LOST = re.compile(r"[Cc]onnection (closed|reset|refused)|Broken pipe|gloo|NCCL")
CLOSE = 1e-6  # of a column's sum on two GPUs, by the sum of its sizes


class Ranks:
    """One process alone: it holds everything, and nothing is asked of anyone."""

    number = 0
    count = 1
    talk: Any = None  # a group of all for plain objects

    @property
    def first(self) -> bool:
        """Whether this is the process that writes, prints and grades."""
        return self.number == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.count == 1

    def device(self, name: str) -> str:
        """This process's own of the devices of a kind."""
        return name

    def total(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Columns that each process has filled for its own rows, 0 elsewhere: all rows."""
        return columns

    def from_first(self, make: Callable[[], T], limited: bool = True) -> T:
        """What `make` gives in the first process; what it raises there is raised in all.

        limited: what it waits for has limits of its own; otherwise it hangs when it stands still.
        """
        return make()

    def gathered(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        return [value]

    def some(self, said: bool) -> bool:
        """Whether any process says so."""
        return said

    def wait(self) -> None:
        """Until all have come this far."""
        self.some(False)

    def watch(self, limit: float, folder: Path) -> None:
        """From now on notice a process that hangs for so many seconds, and end the run.

        folder: of the run.
        """

    def at(self, place: str) -> None:
        """Say where in the run this process is; empty: where it may stand still for long."""

    def check_shared(self, path: Path) -> None:
        """Raise UserError unless all processes see the file that the first one has written."""
        lacking = [n for n, seen in enumerate(self.gathered(path.exists())) if not seen]
        if lacking:
            raise UserError(
                f"process {lacking[0]} of {self.count} does not see {path}: give --out a folder "
                "that all machines share"
            )

    def agree(self, columns: Mapping[str, Tensor], step: int) -> None:
        """Raise RunStopped unless all processes hold the same columns."""

    def deal(self, costs: Sequence[int]) -> list[int | None]:
        """Numbers of the own among pieces of these costs, in turns that all processes take.

        None: the others still have one to do in this turn, this process has not.
        """
        return list(range(len(costs)))

    def shard(self, model: Any) -> Any:
        """The model, its weights cut into parts, one a process, in place."""
        return model

    @contextmanager
    def speaking(self, *besides: type[Exception]) -> Iterator[None]:
        """Inside, one process alone says why a run of several ends; the others end silently.

        besides: what is no failure.
        """
        yield


class Several(Ranks):
    """One of several processes, as torchrun starts them.

    local: its number on its machine.
    """

    def __init__(self, number: int, count: int, local: int, talk: Any) -> None:
        self.number, self.count, self.local, self.talk = number, count, local, talk
        self.signs = Signs(number, count)

    def device(self, name: str) -> str:
        """This process's own of the devices of a kind."""
        return f"cuda:{self.local}" if name == "cuda" else name

    def total(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Columns that each process has filled for its own rows, 0 elsewhere: all rows."""
        for name in sorted(columns):
            if columns[name].numel():
                torch.distributed.all_reduce(columns[name])
        return columns

    def from_first(self, make: Callable[[], T], limited: bool = True) -> T:
        """What `make` gives in the first process; what it raises there is raised in all."""
        said: list[Any] = [None, None]
        failure: Exception | None = None
        if self.first:
            try:
                with self.signs.patient() if limited else nullcontext():
                    said[0] = make()
            except Exception as error:
                failure, said[1] = error, _sendable(error)
        torch.distributed.broadcast_object_list(said, src=0, group=self.talk)
        if said[1] is not None:
            raise failure or said[1]
        return said[0]

    def gathered(self, value: T) -> list[T]:
        """The values of all processes, in their order."""
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, value, group=self.talk)
        return found

    def some(self, said: bool) -> bool:
        """Whether any process says so."""
        flag = torch.tensor(int(said))
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=self.talk)
        return bool(flag)

    def watch(self, limit: float, folder: Path) -> None:
        """From now on notice a process that hangs for so many seconds, and end the run."""
        self.signs.watch(limit, folder, launched.connected, self._speaks)

    def at(self, place: str) -> None:
        """Say where in the run this process is; empty: where it may stand still for long."""
        self.signs.place = place

    def agree(self, columns: Mapping[str, Tensor], step: int) -> None:
        """Raise RunStopped unless all processes hold the same columns."""
        each = self.gathered({name: _sums(columns[name]) for name in sorted(columns)})
        for name in sorted(set().union(*each)):
            here = [sums.get(name) for sums in each]
            others = [n for n, sums in enumerate(here) if not _alike(sums, here[0])]
            if others:
                raise RunStopped(
                    f"step {step}: the column {name} of process {others[0]} is not that of process "
                    "0, so their numbers have parted: is anything in a reward, a part or an "
                    "environment random or timed, or are their machines different?"
                )

    def deal(self, costs: Sequence[int]) -> list[int | None]:
        """Numbers of the own among pieces of these costs, in turns that all processes take."""
        loads, dealt = [0] * self.count, [list[int]() for _ in range(self.count)]
        for piece in sorted(range(len(costs)), key=lambda piece: (-costs[piece], piece)):
            least = loads.index(min(loads))
            loads[least] += costs[piece]
            dealt[least].append(piece)
        turns = max(map(len, dealt))
        own = sorted(dealt[self.number])
        return [*own, *[None] * (turns - len(own))]

    def shard(self, model: Any) -> Any:
        """The model, its weights cut into parts, one a process, in place."""
        return shards.shard(model)

    @contextmanager
    def speaking(self, *besides: type[Exception]) -> Iterator[None]:
        """Inside, one process alone says why a run of several ends; the others end silently."""
        try:
            yield
        except besides:
            raise
        except Exception as error:
            if not self._speaks():
                raise SystemExit(2 if isinstance(error, UserError) else 1) from None
            if LOST.search(str(error)):
                raise RunStopped(
                    f"process {self.number} of {self.count} has lost another one, which was "
                    "killed or could not go on"
                ) from error
            if self.number and isinstance(error, UserError | RunStopped):
                text = f"process {self.number} of {self.count}: {error}"
                raise type(error)(text) from error
            raise
        finally:
            self.signs.leave()
        torch.distributed.destroy_process_group()

    def _speaks(self) -> bool:
        """Whether this process is the first to fail."""
        if self.number:  # what all of them see is said by process 0
            time.sleep(1.0)
        store = torch.distributed.distributed_c10d._get_default_store()
        try:
            return int(store.add("strop/failed", 1)) == 1
        except torch.distributed.DistError:  # the process that counted was killed
            return True  # better said twice than never


def _sendable(error: Exception) -> Exception:
    """The error; its text where other processes could not read it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _sums(column: Tensor) -> tuple[Any, ...]:
    """Kind, shape and sums of a column: exact ones of whole numbers, of others with their size."""
    kind, flat = (str(column.dtype), tuple(column.shape)), column.detach().flatten()
    if not flat.is_floating_point():
        flat = flat.long()
        place = torch.arange(1, flat.shape[0] + 1, device=flat.device)
        return (*kind, int(flat.sum()), int((flat * place).sum()))
    known = flat[~flat.isnan()].double()
    place = torch.arange(1, known.shape[0] + 1, device=flat.device) / max(known.shape[0], 1)
    size = float(known.abs().sum())
    return (*kind, known.shape[0], float(known.sum()), float((known * place).sum()), size)


def _alike(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> bool:
    """Whether sums are of equal columns; on GPUs the order of additions moves a last digit."""
    if one is None or other is None or len(one) != len(other) or len(one) < 6:
        return one == other
    near = CLOSE * max(one[-1], other[-1], 1e-30)
    gaps = (abs(a - b) for a, b in zip(one[3:], other[3:], strict=True))
    return one[:3] == other[:3] and all(gap <= near or gap != gap for gap in gaps)


def join() -> Ranks:
    """The processes that torchrun has started this one among; alone where it has not.

    Raises UserError where they cannot find each other.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        return Ranks()
    number, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    cuda = torch.cuda.is_available()
    if cuda and local >= torch.cuda.device_count():
        raise UserError(
            f"process {number} is the {local + 1}th on its machine, which has "
            f"{torch.cuda.device_count()} GPUs: let torchrun start no more processes than that"
        )
    if cuda:
        torch.cuda.set_device(local)
    kinds = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    torch.distributed.init_process_group(
        kinds, timeout=SILENCE, store=launched.attempt(SILENCE), rank=number, world_size=count
    )
    talk = torch.distributed.new_group(backend="gloo", timeout=SILENCE)
    return Several(number, count, local, talk)
