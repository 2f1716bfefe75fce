"""The trainer's side of collecting in a process of its own: asynchronous training.

    step s trains on rollouts that were begun under weights of step s - 1 - max_staleness or later

The process is begun at the first step, fed with the weights of every step, and begun anew where it
dies or falls silent, behind the last batch that came. A batch is trained on once, in order.
"""

import pickle
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from strop import part as parts
from strop._loading import search_path
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.errors import RunStopped, UserError
from strop.phases import Method, Phases
from strop.tasks import wire
from strop.tasks.worker_process import end_process, launch
from strop.training.clock import Clock
from strop.training.collect import Here
from strop.training.collecting import (
    ALIVE,
    Begin,
    Broken,
    Collected,
    Trained,
    Weights,
    is_collected,
    learn_from,
    learns,
)
from strop.training.config import RunConfig
from strop.training.files import writing
from strop.training.policy import Policy
from strop.training.services.run import RunServices
from strop.training.world import World

MODULE = "strop.training.collecting"
MOST_DEATHS = 3  # in a row, without a batch between them
SHARED = Path("/dev/shm")  # in memory, where there is room
ROOM = 1.2  # times the weights, for a file in SHARED
SILENT = "silent"
LOADING_SECONDS = 1800.0  # for reading the weights of a large model
LOOK_SECONDS = 1.0  # between two looks at the clock
ERRORS = {"UserError": UserError, "RunStopped": RunStopped}


class Box:
    """What has come from the process, and what goes there, in order; neither makes anyone wait."""

    def __init__(self) -> None:
        self.letters: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.begun, self.heard = time.monotonic(), 0.0  # 0: nothing yet

    def fill(self, channel: socket.socket) -> None:
        """Read every letter, signs of life left out; None when the other end is gone."""
        while True:
            try:
                letter = pickle.loads(wire.receive(channel))
            except (EOFError, OSError):
                self.letters.put(None)
                return
            self.heard = time.monotonic()
            if letter != ALIVE:
                self.letters.put(letter)

    def empty(self, channel: socket.socket) -> None:
        """Send every letter until the other end is gone, which `fill` notices."""
        with suppress(OSError):
            while True:
                wire.send(channel, self.outgoing.get())

    def post(self, letter: Any) -> None:
        """Let a letter be sent."""
        self.outgoing.put(pickle.dumps(letter, protocol=pickle.HIGHEST_PROTOCOL))

    def next(self, limit: float) -> Any:
        """The next letter; SILENT where nothing at all came for so many seconds.

        Until the first sign of life it loads, for which it has LOADING_SECONDS at least.
        """
        while True:
            try:
                return self.letters.get(timeout=min(limit, LOOK_SECONDS))
            except queue.Empty:
                since, most = self.heard or self.begun, limit
                if not self.heard:
                    most = max(limit, LOADING_SECONDS)
                if time.monotonic() - since > most:
                    return SILENT


class Apart(Here):
    """Collects in another process; a run with `training.max_staleness` has one.

    max_staleness: as in `training.max_staleness`; here 0 makes both take turns, with the numbers
    of a run in one process.
    """

    def __init__(
        self, config: RunConfig, algorithm: Algorithm, policy: Policy, max_staleness: int
    ) -> None:
        self.config, self.algorithm, self.policy = config, algorithm, policy
        self.max_staleness = max_staleness
        self.learns = learns(algorithm)
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.box = Box()
        self.recent: deque[Trained] = deque(maxlen=max_staleness + 1)
        self.folder: Path | None = None
        self.version = -1  # of the newest weights that were sent
        self.deaths = 0
        self.restarts = 0
        whole = torch.get_num_threads()
        self.threads = max(whole // 2, 1)  # of that process; the trainer keeps the others
        torch.set_num_threads(max(whole - self.threads, 1))

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """Let it collect from this step on, so that it loads while the trainer does something."""
        if self.process is None:
            self._start(step, state)

    def collect(
        self, world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """The batch of a step, with its metrics and the state of the parts that collected it.

        Raises what ended the process, and RunStopped where it dies again and again.
        """
        ready = self.box.letters.qsize()
        with clock("waiting"):
            found = self._next(step, chains.state)
        for path in [path for path in chains.state if is_collected(path)]:
            del chains.state[path]
        chains.state.update(found.state)
        for each in self.recent:
            if each.step > found.trained:
                learn_from(self.algorithm, each.batch, chains.state)
        chains.metrics.update(found.metrics)
        clock.seconds.update(found.seconds)
        self._hand_over(found, world.services)
        chains.metrics.update(
            {
                "asynchronous/batches_ready": float(ready),
                "asynchronous/collector_idle": found.waited / max(found.worked, 1e-9),
                "asynchronous/restarts": float(self.restarts),
                **_ages(found.batch, step),
            }
        )
        return found.batch

    def _hand_over(self, found: Collected, services: RunServices) -> None:
        """What rewards logged and what failed, as if it had happened here."""
        services.log.logged = found.logged
        services.grading.failures.extend(found.failures[0])
        services.sampling.failures.extend(found.failures[1])
        services.sampling.spent += int(found.spent.get("services/tokens_sampled", 0))
        services.scoring.spent += int(found.spent.get("services/tokens_scored", 0))

    def renew(self, step: int) -> None:
        """Send the weights after a step; nothing where the process was not begun yet."""
        self.version = step
        if self.channel is not None:
            self._send_weights()

    def learnt(self, step: int, batch: Batch) -> None:
        """Let the collecting parts learn from a batch that was trained on."""
        if self.learns:
            own = _columns_for(self.algorithm, batch)
            self.recent.append(Trained(step, own))
            if self.channel is not None:
                self.box.post(self.recent[-1])

    def close(self) -> None:
        """End the process."""
        self._end()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    # ---- from here on: how

    def _next(self, step: int, state: Mapping[str, Any]) -> Collected:
        while True:
            self.begin(step, state)
            limit = self.config.training.collector_timeout_seconds
            letter = self.box.next(limit)
            if letter is SILENT:
                self._died(f"it gave no sign of life for {limit:g} s")
            elif letter is None:
                self._died("it ended")
            elif isinstance(letter, Broken):
                self._end()
                kind = ERRORS.get(letter.kind, RuntimeError)
                raise kind(letter.text if letter.kind else f"collecting failed:\n{letter.text}")
            else:
                assert letter.step == step, f"a batch of step {letter.step} at step {step}"
                self.deaths = 0
                found: Collected = letter
                return found

    def _died(self, how: str) -> None:
        """Count it, and make room for another. Raises RunStopped at the third in a row."""
        code = self.process.poll() if self.process is not None else None
        self._end()
        self.deaths, self.restarts = self.deaths + 1, self.restarts + 1
        if self.deaths >= MOST_DEATHS:
            raise RunStopped(
                f"the process that collects rollouts died {self.deaths} times ({how}, exit code "
                f"{code}); is there memory for a second copy of the model? "
                "training.max_staleness=0 does without"
            )

    def _start(self, step: int, state: Mapping[str, Any]) -> None:
        self.box = Box()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = launch(MODULE, theirs.fileno(), 2)
        self.channel = ours
        for work in (self.box.fill, self.box.empty):
            threading.Thread(target=work, args=(ours,), daemon=True).start()
        collected = {path: own for path, own in state.items() if is_collected(path)}
        training = self.config.training
        config = self.config.model_dump()
        config["model"]["device"] = training.collector_device or self.config.model.device
        self.box.post(
            Begin(
                config,
                step,
                collected,
                self.max_staleness,
                self.threads,
                training.renew_between_tokens,
                search_path(),
            )
        )
        self.version = step - 1
        self._send_weights()

    @torch.no_grad()
    def _send_weights(self) -> None:
        """Write the trained weights to a file of their own, and tell its name when it is whole."""
        named = self.policy.model.named_parameters()
        weights = {n: p.detach().to("cpu").contiguous() for n, p in named if p.requires_grad}
        size = sum(weight.numel() * weight.element_size() for weight in weights.values())
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="strop-", dir=_place(size)))
        path = self.folder / f"{self.version:06d}.safetensors"
        failures = (OSError, RuntimeError, SafetensorError)
        what = "the weights for the collecting process"
        with writing(self.folder, what, size, failures, RunStopped):
            save_file(weights, path)
        self.box.post(Weights(self.version, str(path)))

    def _end(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        if self.process is not None:
            process, self.process = self.process, None
            end_process(process)


def _place(size: int) -> str | None:
    """A folder in memory where the weights fit twice; None: the system's folder for such files."""
    fits = SHARED.is_dir() and shutil.disk_usage(SHARED).free > 2 * ROOM * size
    return str(SHARED) if fits else None


def _columns_for(algorithm: Algorithm, batch: Batch) -> Batch:
    """The batch with the columns that the collecting parts learn from, on the CPU."""
    read: set[str] = {"turn_T", "rollout_K", "group_B", "uid_P", "draw_P", "mask_T"}
    for path, use in algorithm.uses():
        if is_collected(path):
            read.update(parts.update_reads(use))
    return Batch({n: c for n, c in batch.to("cpu").columns.items() if n in read})


def _ages(batch: Batch, step: int) -> dict[str, float]:
    """The age in steps of the oldest token, beside `sampling/age_steps`, the mean."""
    drawn_T = batch["mask_T"] & (batch["version_T"] >= 0)
    if not bool(drawn_T.any()):
        return {}
    oldest = int(batch["version_T"][drawn_T].min())
    return {"sampling/oldest_age_steps": float(step - 1 - oldest)}


def check(config: RunConfig, method: Method, num_processes: int = 1) -> None:
    """Raise UserError for what cannot be collected ahead of the step that learns from it.

    num_processes: that train.
    """
    wanted = f"training.max_staleness={config.training.max_staleness}"
    if num_processes > 1:
        raise UserError(
            f"{wanted}: with {num_processes} training processes each draws its share of the "
            "answers; leave it out, or train in one process"
        )
    if isinstance(method, Phases):
        raise UserError(f"{wanted}: a method in phases is trained in one process: leave it out")
    if getattr(config.engine, "staleness", 0):
        raise UserError(f"{wanted} and engine.staleness: give one of the two")
    if config.training.max_staleness >= config.training.steps:
        raise UserError(
            f"{wanted}, but the run has only {config.training.steps} steps: give training.steps "
            "more, or a smaller number"
        )
    if method.rollout.part.given:
        raise UserError(f"{wanted}: {method.rollout.label} samples nothing: leave it out")
    moved = [(u, p) for u in method.control for p in u.part.moves if is_collected(p)]
    for use, path in moved:
        raise UserError(f"{wanted}: {use.label} moves {path} from step to step: leave one out")
    for path, use in method.uses():
        if is_collected(path) and "stores" in {p.name for p in parts.parameters(use.part)}:
            raise UserError(f"{wanted}: {path} keeps rollouts on the disk: leave one out")
        if not is_collected(path) and hasattr(use.part, "observe"):
            raise UserError(f"{wanted}: {path} looks at rollouts as they come: leave one out")
