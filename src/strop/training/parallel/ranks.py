"""The training processes of a run: a single one, or several that hold the same columns.

Every process has the whole batch of a step and computes the same numbers. The model's weights are
sharded over all processes, and each runs the forward passes of its own micro-batches. Only models,
the engine and whatever leaves the process (files, prints, graders) use `Ranks`; parts never do.
"""

from __future__ import annotations

import datetime
import os
import pickle
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from strop.support.errors import RunStopped, UserError
from strop.support.stopping import INTERRUPTED, deafen
from strop.training.parallel import relaunched as launched
from strop.training.parallel import shards
from strop.training.parallel.watchdog import Signs

T = TypeVar("T")
# The other processes wait for one for at most this long. Work that the first does for all of them,
# such as rewards, may take long; the watchdog notices a process that hangs, see watchdog.py.
SILENCE = datetime.timedelta(hours=2)
# What torch reports in a process that has lost its connection to another one.
LOST = re.compile(r"[Cc]onnection (closed|reset|refused)|Broken pipe|gloo|NCCL")
WAKE_SECONDS = 0.5  # for platforms where a signal does not wake a waiting thread
CLOSE = 1e-6  # tolerance for a column's sums on two GPUs, relative to the absolute sum


class Ranks:
    """A single process: it holds everything and communicates with no other."""

    number = 0
    count = 1
    talk: Any = None  # the process group for plain objects

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes, prints and grades."""
        return self.number == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.count == 1

    def device(self, name: str) -> str:
        """Returns this process's device of a kind."""
        return name

    def total(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum columns that each process has filled for its own rows, with 0 elsewhere."""
        return columns

    def from_first(self, make: Callable[[], T], limited: bool = True) -> T:
        """Call `make` in the first process; its value is returned, or its error raised, in all.

        limited: whether `make` has timeouts of its own; otherwise the watchdog watches it.
        """
        return make()

    def gathered(self, value: T) -> list[T]:
        """Returns the values of all processes, in their order."""
        return [value]

    def some(self, flag: bool) -> bool:
        """Returns whether the flag is true in any process."""
        return flag

    def loss(self, raised: BaseException) -> str:
        """Says that another process is gone, where that is what was raised; empty otherwise."""
        return ""

    def wait(self) -> None:
        """Wait until all processes have called this."""
        self.some(False)

    def watch(self, limit: float, folder: Path) -> None:
        """Start the watchdog, which ends the run when a process hangs for `limit` seconds.

        folder: the run's folder.
        """

    def at(self, place: str) -> None:
        """Record where in the run this process is; empty: outside steps, where it may idle long."""

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
        """Distribute pieces by cost, and return the numbers of this process's pieces, by round.

        None: in this round other processes have a piece and this one has none.
        """
        return list(range(len(costs)))

    def shard(self, model: Any) -> Any:
        """Shard the model's weights over the processes, in place."""
        return model

    @contextmanager
    def speaking(self, *besides: type[Exception]) -> Iterator[None]:
        """Lets only one process report why the run ends; the others end silently.

        besides: exceptions that are not failures.
        """
        yield


ALONE = Ranks()


class Several(Ranks):
    """One of several processes that torchrun has started; `Ranks` says what its methods do.

    local: the number of the process on its machine.
    """

    def __init__(self, number: int, count: int, local: int, talk: Any) -> None:
        self.number, self.count, self.local, self.talk = number, count, local, talk
        self.signs = Signs(number, count)

    def device(self, name: str) -> str:
        return f"cuda:{self.local}" if name == "cuda" else name

    def total(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        for name in sorted(columns):
            if columns[name].numel():
                torch.distributed.all_reduce(columns[name])
        return columns

    def from_first(self, make: Callable[[], T], limited: bool = True) -> T:
        result: list[Any] = [None, None]
        failure: Exception | None = None
        if self.first:
            try:
                with self.signs.patient() if limited else nullcontext():
                    result[0] = make()
            except Exception as error:
                failure, result[1] = error, _sendable(error)
        torch.distributed.broadcast_object_list(result, src=0, group=self.talk)
        if result[1] is not None:
            raise failure or result[1]
        return result[0]

    def gathered(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, value, group=self.talk)
        return found

    def some(self, flag: bool) -> bool:
        largest = torch.tensor(int(flag))
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=self.talk)
        return bool(largest)

    def watch(self, limit: float, folder: Path) -> None:
        self.signs.watch(limit, folder, launched.connected, self._reports)

    def at(self, place: str) -> None:
        self.signs.place = place

    def agree(self, columns: Mapping[str, Tensor], step: int) -> None:
        each = self.gathered({name: _sums(columns[name]) for name in sorted(columns)})
        for name in sorted(set().union(*each)):
            here = [sums.get(name) for sums in each]
            others = [n for n, sums in enumerate(here) if not _alike(sums, here[0])]
            if others:
                raise RunStopped(
                    f"step {step}: the column {name} of process {others[0]} is not that of process "
                    "0, so their numbers have diverged: is anything in a reward, a part or an "
                    "environment random or timed, or are their machines different?"
                )

    def deal(self, costs: Sequence[int]) -> list[int | None]:
        loads, assigned = [0] * self.count, [list[int]() for _ in range(self.count)]
        for piece in sorted(range(len(costs)), key=lambda piece: (-costs[piece], piece)):
            least = loads.index(min(loads))
            loads[least] += costs[piece]
            assigned[least].append(piece)
        rounds = max(map(len, assigned))
        own = sorted(assigned[self.number])
        return [*own, *[None] * (rounds - len(own))]

    def shard(self, model: Any) -> Any:
        return shards.shard(model)

    def loss(self, raised: BaseException) -> str:
        if not LOST.search(str(_failure(raised))):
            return ""
        one = f"process {self.number} of {self.count}"
        return f"{one} has lost another one, which was killed or failed"

    @contextmanager
    def speaking(self, *besides: type[Exception]) -> Iterator[None]:
        try:
            yield
        except besides:
            raise
        except (Exception, KeyboardInterrupt) as raised:
            error = _failure(raised)
            if error is None:
                if self.number:
                    raise SystemExit(INTERRUPTED) from None
                raise
            deafen()
            if not self._reports():
                raise SystemExit(2 if isinstance(error, UserError) else 1) from None
            if loss := self.loss(error):
                raise RunStopped(f"{loss}.{self.signs.again}") from error
            if self.number and isinstance(error, UserError | RunStopped):
                text = f"process {self.number} of {self.count}: {error}"
                raise type(error)(text) from error
            raise error from error.__cause__
        finally:
            self.signs.leave()
        torch.distributed.destroy_process_group()

    def _reports(self) -> bool:
        """Returns whether this process is the first to fail, and so reports the error."""
        if self.number:  # process 0 reports errors that all processes see
            time.sleep(1.0)
        store = torch.distributed.distributed_c10d._get_default_store()
        try:
            return int(store.add("strop/failed", 1)) == 1
        except torch.distributed.DistError:  # the process that hosts the store was killed
            return True  # a duplicate report is better than none


def _failure(raised: BaseException) -> Exception | None:
    """Returns the error, or the one that was being handled when a signal came; None without one."""
    found: BaseException | None = raised
    while isinstance(found, KeyboardInterrupt):
        found = found.__context__
    return found if isinstance(found, Exception) else None


def _sendable(error: Exception) -> Exception:
    """Returns the error, or its traceback as a RuntimeError when it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _sums(column: Tensor) -> tuple[Any, ...]:
    """Type, shape and sums of a column: exact for integers, with the absolute sum for floats."""
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
    """Returns whether sums match; on GPUs the order of additions changes the last digits."""
    if one is None or other is None or len(one) != len(other) or len(one) < 6:
        return one == other
    near = CLOSE * max(one[-1], other[-1], 1e-30)
    gaps = (abs(a - b) for a, b in zip(one[3:], other[3:], strict=True))
    return one[:3] == other[:3] and all(gap <= near or gap != gap for gap in gaps)


def join() -> Ranks:
    """Join the processes that torchrun started; returns a single process without torchrun.

    Raises UserError when torchrun started more processes than the machine has GPUs.
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

    def meet() -> Any:
        if cuda:
            torch.cuda.set_device(local)  # of this thread
        kinds = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        torch.distributed.init_process_group(
            kinds, timeout=SILENCE, store=launched.attempt(SILENCE), rank=number, world_size=count
        )
        return torch.distributed.new_group(backend="gloo", timeout=SILENCE)

    return Several(number, count, local, _met(meet, f"process {number} of {count}"))


def _met(meet: Callable[[], T], name: str) -> T:
    """Call `meet`, in which processes wait for each other outside Python, in a separate thread, so
    that this one still receives signals.

    Raises RunStopped for a connection that fails or is lost, and KeyboardInterrupt; if several
    processes are stopped, only one reports it.
    """
    again = "no step was started: give the same command again"
    found: Future[T] = Future()

    def work() -> None:
        try:
            found.set_result(meet())
        except Exception as error:
            found.set_exception(error)

    thread = threading.Thread(target=work, name="strop-join", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(WAKE_SECONDS)
        return found.result(0)
    except KeyboardInterrupt as stopped:
        deafen()
        if not launched.is_first("stopped"):
            raise SystemExit(INTERRUPTED) from None
        stopped.args = (f"{name} waited for the others to join; {again}",)
        raise
    except (torch.distributed.DistError, RuntimeError) as error:
        deafen()
        why = " ".join(str(error).split())[:200]
        raise RunStopped(
            f"{name} could not join the others: one was not started, ended or cannot be reached "
            f"from here ({why}); {again}"
        ) from error
