"""The trainer's side of the asynchronous collector, which collects in a separate process.

    step s trains on rollouts that started under weights of step s - 1 - max_staleness or later

The trainer starts the process at the first step and sends it the weights of every step. When the
process dies or falls silent, the trainer restarts it after the last batch it received. Each batch
is trained on once, in order. Finished groups are kept until their step has been trained on, and
every checkpoint saves them, so neither a restarted process nor a resumed run samples them again.

Of several training processes only the first one owns the collector; it broadcasts what it receives.
"""

import pickle
import queue
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from safetensors.torch import save_file

from strop.batch.batch import Batch
from strop.engines.weights_folder import WeightsFolder
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method, Phases
from strop.method.chains import Chains
from strop.support import guarded_process
from strop.support.errors import PLAIN, StepGivenUp, UserError
from strop.support.guarded_process import GuardedProcess
from strop.support.loading import search_path
from strop.support.processes import Restarts
from strop.training.collect.in_flight import Plain
from strop.training.collect.messages import (
    ALIVE,
    Begin,
    Broken,
    Collected,
    Ended,
    Trained,
    Weights,
    collected,
    is_collected,
    learns,
)
from strop.training.learner.policy import Policy
from strop.training.learner.step_metrics import Clock
from strop.training.parallel.ranks import Ranks
from strop.training.services.run import RunServices
from strop.training.services.stores import RunStores
from strop.training.settings.config import RunConfig
from strop.training.world import BatchCollector, World

MODULE = "strop.training.collector_process"
ROOM = 2.4  # times the weights: one version is written while another one is read
SILENT = "silent"
LOADING_SECONDS = 1800.0  # the collector may need this long to load a large model
LEAVING_SECONDS = 30.0  # the collector may need this long to close its engine
# Keys in a checkpoint's state: what later steps have drawn and finished, by step.
DRAWN, GROUPS = "drawn", "groups"
LOOK_SECONDS = 1.0  # between two checks of the clock
OF_ENGINE = ("drafts/", "perf/")  # metrics of the collecting process's engine


class Box:
    """Queues the messages from the process and to it, in order, without blocking either side.

    messages: all of them except finished groups, which `groups` holds.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.groups: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.started, self.last_received = time.monotonic(), 0.0  # 0: nothing received yet
        for work in (self._receive, self._send):
            threading.Thread(target=work, args=(channel,), daemon=True).start()

    def _receive(self, channel: socket.socket) -> None:
        """Queue every message except heartbeats, and None when the other end has closed."""
        while True:
            try:
                message = pickle.loads(guarded_process.receive(channel))
            except (EOFError, OSError):
                self.messages.put(None)
                return
            except Exception:  # for example, this process cannot import the class of the message
                message = Broken(traceback.format_exc())
            self.last_received = time.monotonic()
            if isinstance(message, Ended):
                self.groups.put(message)
            elif message != ALIVE:
                self.messages.put(message)

    def _send(self, channel: socket.socket) -> None:
        """Send every message until the other end closes, which `_receive` notices."""
        with suppress(OSError):
            while (message := self.outgoing.get()) is not None:
                guarded_process.send(channel, message)

    def post(self, message: object) -> None:
        """Queue a message to be sent."""
        self.outgoing.put(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        """Stop sending."""
        self.outgoing.put(None)

    def next(self, limit: float, stopping: Callable[[], bool] = lambda: False) -> Any:
        """Returns the next message, or SILENT when nothing arrived for `limit` seconds.

        Raises StepGivenUp when `stopping` ends the wait.
        """
        while True:
            try:
                return self.messages.get(timeout=min(limit, LOOK_SECONDS))
            except queue.Empty:
                if stopping():
                    raise StepGivenUp from None
                since = self.last_received or self.started
                if time.monotonic() - since > self.patience(limit):
                    return SILENT

    def patience(self, limit: float) -> float:
        """Seconds of silence that are allowed. Until its first heartbeat the process is loading; it
        has at least LOADING_SECONDS for that.
        """
        return limit if self.last_received else max(limit, LOADING_SECONDS)


class AsynchronousCollector(BatchCollector):
    """Collects in a separate process; a run with `training.max_staleness` uses it.

    max_staleness: as in `training.max_staleness`; with 0 the two processes alternate and give the
    same numbers as a run in one process.
    """

    def __init__(
        self, config: RunConfig, algorithm: Algorithm, policy: Policy, max_staleness: int
    ) -> None:
        self.config, self.algorithm, self.policy = config, algorithm, policy
        self.ranks = policy.ranks
        self.max_staleness = max_staleness
        self.learns = learns(algorithm)
        self.other = GuardedProcess()
        self.box: Box | None = None  # of the process, while it runs
        self.recent: deque[Trained] = deque(maxlen=max_staleness + 1)
        self.folder: WeightsFolder | None = None
        self.stores: RunStores | None = None  # the collector process writes them ahead of this one
        self.stopping: Callable[[], bool] = lambda: False  # whether a step may be given up now
        self.version = -1  # of the newest weights sent
        self.held: dict[int, dict[Any, Plain]] = {}  # finished groups, by step and draw
        self.restarts = Restarts("the process that collects rollouts died")
        self.since = time.monotonic()  # when the last batch was taken
        whole = torch.get_num_threads()
        self.threads = max(whole // 2, 1)  # the trainer uses the others
        if self.ranks.first:
            torch.set_num_threads(max(whole - self.threads, 1))

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """Start the process at this step, so that it loads while the trainer does other work."""
        if self.box is None and self.ranks.first:
            self._start(step, state)

    def collect(
        self, world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """Returns the batch of a step and updates `chains` with its metrics and parts' state.

        Raises the error that ended the process, or RunStopped when the process keeps dying.
        """
        world.whole()  # a restarted process needs the whole weights
        with clock("waiting"):
            found, metrics = self.ranks.from_first(lambda: self._take(step, chains.state))
        for path in [path for path in chains.state if is_collected(path) or path == DRAWN]:
            del chains.state[path]
        chains.state.update(found.state)
        if found.drawn:
            chains.state[DRAWN] = found.drawn
        for each in self.recent:
            if each.step > found.trained:
                now = self.algorithm.at_step(each.step, world.num_steps)
                chains.learn(collected(now), each.batch)
        chains.metrics.update(found.metrics)
        of_engine = {k: v for k, v in found.spent.items() if k.startswith(OF_ENGINE)}
        chains.metrics.update(of_engine)
        clock.seconds.update(found.seconds)
        self._hand_over(found, world.services)
        chains.metrics.update({**metrics, **_ages(found.batch, step)})
        return found.batch

    def _hand_over(self, found: Collected, services: RunServices) -> None:
        """Record logs, failures and costs as if the rollouts had been collected in this process."""
        services.log.turn_to(services.log.step, found.logged)  # a validation adds to these
        services.grading.failures.extend(found.failures[0])
        services.sampling.failures.extend(found.failures[1])
        services.sampling.spent += int(found.spent.get("services/tokens_sampled", 0))
        services.scoring.spent += int(found.spent.get("services/tokens_scored", 0))

    def renew(self, step: int) -> None:
        """Send the weights after a step if the process is running."""
        self.version = step
        if self.box is not None:
            self._send_weights(self.box)

    def learnt(self, step: int, batch: Batch) -> None:
        """Send a trained batch to the collecting parts that learn from it."""
        if self.learns:
            own = _columns_for(self.algorithm, batch)
            self.recent.append(Trained(step, own))
            if self.box is not None:
                self.box.post(self.recent[-1])

    def kept(self, done: int) -> dict[str, Any]:
        """Returns the groups of later steps that have finished, for a checkpoint."""
        self._sort_groups()
        held = {step: [*groups.values()] for step, groups in self.held.items() if step > done}
        return {GROUPS: held} if held else {}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Restore the finished groups from a checkpoint."""
        self.held = {
            step: {tuple(group["draw"]): group for group in groups}
            for step, groups in kept.get(GROUPS, {}).items()
        }

    def close(self) -> None:
        """Let the process close its engine, then end it."""
        try:
            self.other.leave(LEAVING_SECONDS)
        finally:
            self._end()
            if self.folder is not None:
                self.folder.close()
                self.folder = None

    # ---- implementation

    def _take(self, step: int, state: Mapping[str, Any]) -> tuple[Collected, dict[str, float]]:
        """Returns what was collected for a step, with metrics of both processes."""
        self._sort_groups()
        ready = 0 if self.box is None else self.box.messages.qsize()
        groups = sum(map(len, self.held.values()))
        started = time.monotonic()
        found = self._next(step, state)
        now = time.monotonic()
        metrics = {
            "asynchronous/batches_ready": float(ready),
            "asynchronous/groups_ready": float(groups),
            "asynchronous/groups_under_way": float(found.in_flight),
            "asynchronous/collector_idle": found.waited / max(found.worked, 1e-9),
            "asynchronous/trainer_idle": (now - started) / max(now - self.since, 1e-9),
            "asynchronous/restarts": float(self.restarts.total),
            "perf/collecting_s": found.busy,
        }
        self.since = now
        self._sort_groups()
        self.held = {later: each for later, each in self.held.items() if later > step}
        return found, metrics

    def _sort_groups(self) -> None:
        """Sort the received groups by step."""
        while self.box is not None and not self.box.groups.empty():
            message = self.box.groups.get()
            own = self.held.setdefault(message.step, {})
            own[tuple(message.group["draw"])] = message.group

    def _next(self, step: int, state: Mapping[str, Any]) -> Collected:
        while True:
            self.begin(step, state)
            assert self.box is not None
            limit = self.config.training.collector_timeout_seconds
            message = self.box.next(limit, self.stopping)
            if message is SILENT:
                self._died(
                    f"it gave no sign of life for {self.box.patience(limit):g} s",
                    "; training.collector_timeout_seconds=... waits longer, also in a resumed run",
                )
            elif message is None:
                self._died(self.other.how_it_died())
            elif isinstance(message, Broken):
                self._end()
                kind = PLAIN.get(message.kind, RuntimeError)
                raise kind(message.text if message.kind else f"collecting failed:\n{message.text}")
            else:
                assert message.step == step, f"a batch of step {message.step} at step {step}"
                self.restarts.worked()
                return message

    def _died(self, how: str, remedy: str = "") -> None:
        """Clean up and count the restart. Raises RunStopped at the third death in a row."""
        self._end()
        self.restarts.count(
            how,
            f"{remedy}; is there memory for a second copy of the model? A new run with "
            "training.max_staleness=0 needs none",
        )

    def _start(self, step: int, state: Mapping[str, Any]) -> None:
        if self.folder is None:
            size = sum(p.numel() * p.element_size() for p in self._weights().values())
            self.folder = WeightsFolder(int(ROOM * size), "make room in one of them")
        self.folder.clear()
        self.box = Box(self.other.launch(MODULE))
        own = {path: each for path, each in state.items() if is_collected(path)}
        training = self.config.training
        config = self.config.model_dump()
        config["model"]["device"] = training.collector_device or self.config.model.device
        store = None
        if self.stores is not None and self.stores.folder is not None:
            self.stores.ahead = True
            store = (str(self.stores.folder), self.stores.owner)
        self.box.post(
            Begin(
                config,
                step,
                own,
                self.max_staleness,
                self.threads,
                str(self.folder.path),
                training.renew_between_tokens,
                search_path(),
                {later: each for later, each in state.get(DRAWN, {}).items() if later >= step},
                {later: [*each.values()] for later, each in self.held.items() if later >= step},
                store,
            )
        )
        self.version = step - 1
        self._send_weights(self.box)

    def _weights(self) -> dict[str, torch.Tensor]:
        """Returns the trained weights, gathered whole when several processes shard them."""
        shell = self.policy.shell
        named = (self.policy.model if shell is None else shell.plain).named_parameters()
        return {name: weight.detach() for name, weight in named if weight.requires_grad}

    def _send_weights(self, box: Box) -> None:
        """Write the trained weights to a new file, and send its name once it is complete."""
        assert self.folder is not None, "the folder is created before the process"
        weights = {n: weight.to("cpu").contiguous() for n, weight in self._weights().items()}
        path = self.folder.put(f"{self.version:06d}", lambda path: save_file(weights, path))
        box.post(Weights(self.version, str(path)))

    def _end(self) -> None:
        if self.box is not None:
            self._sort_groups()
            self.box.close()
            self.box = None
        self.other.end()


def _columns_for(algorithm: Algorithm, batch: Batch) -> Batch:
    """Returns only the columns that the collecting parts learn from, on the CPU."""
    read: set[str] = {"turn_T", "rollout_K", "group_B", "uid_P", "draw_P", "mask_T"}
    for _, use in collected(algorithm):
        read.update(parts.update_reads(use))
    return Batch({n: c for n, c in batch.to("cpu").columns.items() if n in read})


def _ages(batch: Batch, step: int) -> dict[str, float]:
    """Returns the age in steps of the oldest token sampled for this step; `sampling/age_steps`
    is the mean over all tokens.
    """
    drawn_T = batch["mask_T"] & (batch["version_T"] >= 0) & (batch["origin_T"] == 0)
    if not bool(drawn_T.any()):
        return {}
    oldest = int(batch["version_T"][drawn_T].min())
    return {"sampling/oldest_age_steps": float(step - 1 - oldest)}


def check(config: RunConfig, method: Method) -> None:
    """Raise UserError for a method that cannot be collected ahead of the step that trains on it."""
    wanted = f"training.max_staleness={config.training.max_staleness}"
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
        if not is_collected(path) and hasattr(use.part, "observe"):
            raise UserError(f"{wanted}: {path} looks at rollouts as they come: leave one out")


def check_here(method: Method, ranks: Ranks) -> None:
    """Raise UserError when several processes collect and a part reads what other runs write,
    because each process would read that separately.
    """
    for algorithm in method.algorithms:
        for path, use in algorithm.uses():
            if not ranks.alone and getattr(use.part, "looks_outside", False):
                raise UserError(
                    f"{path} reads what other runs write, and {ranks.count} processes may not find "
                    "the same: train in one, or let one collect, training.max_staleness=1"
                )
