"""The trainer's side of collecting in a process of its own: asynchronous training.

    step s trains on rollouts that were begun under weights of step s - 1 - max_staleness or later

The process is begun at the first step, fed with the weights of every step, and begun anew where it
dies or falls silent, behind the last batch that came. A batch is trained on once, in order. Groups
that have ended are kept until their step has been trained on, and are in every checkpoint, so that
neither a new process nor a resumed run draws them again.

Of several training processes the first one has it; the others hear what came.
"""

import pickle
import queue
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from safetensors.torch import save_file

from strop import part as parts
from strop._loading import search_path
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.errors import RunStopped, UserError
from strop.phases import Method, Phases
from strop.rollout.engines.weights_folder import WeightsFolder
from strop.tasks import wire
from strop.tasks.worker_process import GuardedProcess
from strop.training.clock import Clock
from strop.training.collecting import ALIVE, collected, is_collected, learns
from strop.training.config import RunConfig
from strop.training.letters import Begin, Broken, Collected, Ended, Trained, Weights
from strop.training.policy import Policy
from strop.training.ranks import Ranks
from strop.training.services.run import RunServices
from strop.training.services.stores import RunStores
from strop.training.under_way import Plain
from strop.training.world import World

MODULE = "strop.training.collecting"
MOST_DEATHS = 3  # in a row, without a batch between them
ROOM = 2.4  # times the weights, for a version that is written and one that is read
SILENT = "silent"
LOADING_SECONDS = 1800.0  # for reading the weights of a large model
LEAVING_SECONDS = 30.0  # for ending what its engine has started
DRAWN, GROUPS = "drawn", "groups"  # in a checkpoint's state: what later steps have, by step
LOOK_SECONDS = 1.0  # between two looks at the clock
OF_ENGINE = ("drafts/", "perf/")  # metrics that are of the collecting process's engine
ERRORS = {"UserError": UserError, "RunStopped": RunStopped}


class Box:
    """What has come from the process, and what goes there, in order; neither makes anyone wait.

    letters: all but groups that have ended, which are apart.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.letters: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.groups: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self.outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.begun, self.heard = time.monotonic(), 0.0  # 0: nothing yet
        for work in (self._fill, self._empty):
            threading.Thread(target=work, args=(channel,), daemon=True).start()

    def _fill(self, channel: socket.socket) -> None:
        """Read every letter, signs of life left out; None when the other end is gone."""
        while True:
            try:
                letter = pickle.loads(wire.receive(channel))
            except (EOFError, OSError):
                self.letters.put(None)
                return
            except Exception:  # of a class, say, that this process does not find
                letter = Broken(traceback.format_exc())
            self.heard = time.monotonic()
            if isinstance(letter, Ended):
                self.groups.put(letter)
            elif letter != ALIVE:
                self.letters.put(letter)

    def _empty(self, channel: socket.socket) -> None:
        """Send every letter until the other end is gone, which `_fill` notices."""
        with suppress(OSError):
            while (letter := self.outgoing.get()) is not None:
                wire.send(channel, letter)

    def post(self, letter: Any) -> None:
        """Let a letter be sent."""
        self.outgoing.put(pickle.dumps(letter, protocol=pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        """Send nothing more."""
        self.outgoing.put(None)

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


class Apart:
    """Collects in another process; a run with `training.max_staleness` has one.

    max_staleness: as in `training.max_staleness`; here 0 makes both take turns, with the numbers
    of a run in one process.
    """

    def __init__(
        self, config: RunConfig, algorithm: Algorithm, policy: Policy, max_staleness: int
    ) -> None:
        self.config, self.algorithm, self.policy = config, algorithm, policy
        self.ranks = policy.ranks
        self.max_staleness = max_staleness
        self.learns = learns(algorithm)
        self.other = GuardedProcess()
        self.box: Box | None = None  # of that process, while there is one
        self.recent: deque[Trained] = deque(maxlen=max_staleness + 1)
        self.folder: WeightsFolder | None = None
        self.stores: RunStores | None = None  # which that process writes, ahead of this one
        self.version = -1  # of the newest weights that were sent
        self.held: dict[int, dict[Any, Plain]] = {}  # groups that have ended, by step and draw
        self.deaths = 0
        self.restarts = 0
        self.since = time.monotonic()  # the last batch was taken
        self.all_threads = torch.get_num_threads()
        self.threads = max(self.all_threads // 2, 1)  # of that process; the trainer has the others
        if self.ranks.first:
            torch.set_num_threads(max(self.all_threads - self.threads, 1))

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """Let it collect from this step on, so that it loads while the trainer does something."""
        if self.box is None and self.ranks.first:
            self._start(step, state)

    def collect(
        self, world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """The batch of a step, with its metrics and the state of the parts that collected it.

        Raises what ended the process, and RunStopped where it dies again and again.
        """
        world.whole()  # for a process that is begun anew
        with clock("waiting"):
            found, told = self.ranks.from_first(lambda: self._take(step, chains.state))
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
        chains.metrics.update({**told, **_ages(found.batch, step)})
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
        if self.box is not None:
            self._send_weights(self.box)

    def learnt(self, step: int, batch: Batch) -> None:
        """Let the collecting parts learn from a batch that was trained on."""
        if self.learns:
            own = _columns_for(self.algorithm, batch)
            self.recent.append(Trained(step, own))
            if self.box is not None:
                self.box.post(self.recent[-1])

    def kept(self, done: int) -> dict[str, Any]:
        """The groups of later steps that have ended by now."""
        self._sort_groups()
        held = {step: [*groups.values()] for step, groups in self.held.items() if step > done}
        return {GROUPS: held} if held else {}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Hold the groups that a checkpoint held."""
        self.held = {
            step: {tuple(group["draw"]): group for group in groups}
            for step, groups in kept.get(GROUPS, {}).items()
        }

    def close(self) -> None:
        """End the process, once it has closed its engine."""
        try:
            self.other.leave(LEAVING_SECONDS)
        finally:
            self._end()
            if self.folder is not None:
                self.folder.close()
                self.folder = None
            torch.set_num_threads(self.all_threads)

    # ---- from here on: how

    def _take(self, step: int, state: Mapping[str, Any]) -> tuple[Collected, dict[str, float]]:
        """What has been collected for a step, and metrics of the two processes."""
        self._sort_groups()
        ready = 0 if self.box is None else self.box.letters.qsize()
        groups = sum(map(len, self.held.values()))
        begun = time.monotonic()
        found = self._next(step, state)
        now = time.monotonic()
        told = {
            "asynchronous/batches_ready": float(ready),
            "asynchronous/groups_ready": float(groups),
            "asynchronous/groups_under_way": float(found.under_way),
            "asynchronous/collector_idle": found.waited / max(found.worked, 1e-9),
            "asynchronous/trainer_idle": (now - begun) / max(now - self.since, 1e-9),
            "asynchronous/restarts": float(self.restarts),
            "perf/collecting_s": found.busy,
        }
        self.since = now
        self._sort_groups()
        self.held = {later: each for later, each in self.held.items() if later > step}
        return found, told

    def _sort_groups(self) -> None:
        """Put the groups that have come to their steps."""
        while self.box is not None and not self.box.groups.empty():
            letter = self.box.groups.get()
            own = self.held.setdefault(letter.step, {})
            own[tuple(letter.group["draw"])] = letter.group

    def _next(self, step: int, state: Mapping[str, Any]) -> Collected:
        while True:
            self.begin(step, state)
            assert self.box is not None
            limit = self.config.training.collector_timeout_seconds
            letter = self.box.next(limit)
            if letter is SILENT:
                self._died(f"it gave no sign of life for {limit:g} s")
            elif letter is None:
                self._died(self.other.how_it_died())
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
        self._end()
        self.deaths, self.restarts = self.deaths + 1, self.restarts + 1
        if self.deaths >= MOST_DEATHS:
            raise RunStopped(
                f"the process that collects rollouts died {self.deaths} times ({how}); "
                "is there memory for a second copy of the model? "
                "training.max_staleness=0 does without"
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
        """The trained weights; of several processes' shards the whole ones."""
        shell = self.policy.shell
        named = (self.policy.model if shell is None else shell.plain).named_parameters()
        return {name: weight.detach() for name, weight in named if weight.requires_grad}

    def _send_weights(self, box: Box) -> None:
        """Write the trained weights to a file of their own, and tell its name when it is whole."""
        assert self.folder is not None, "it is made before the process"
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
    """The batch with the columns that the collecting parts learn from, on the CPU."""
    read: set[str] = {"turn_T", "rollout_K", "group_B", "uid_P", "draw_P", "mask_T"}
    for _, use in collected(algorithm):
        read.update(parts.update_reads(use))
    return Batch({n: c for n, c in batch.to("cpu").columns.items() if n in read})


def _ages(batch: Batch, step: int) -> dict[str, float]:
    """The age in steps of the oldest token that was drawn for its step, beside
    `sampling/age_steps`, the mean of all.
    """
    drawn_T = batch["mask_T"] & (batch["version_T"] >= 0) & (batch["origin_T"] == 0)
    if not bool(drawn_T.any()):
        return {}
    oldest = int(batch["version_T"][drawn_T].min())
    return {"sampling/oldest_age_steps": float(step - 1 - oldest)}


def check(config: RunConfig, method: Method) -> None:
    """Raise UserError for what cannot be collected ahead of the step that learns from it."""
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
    """Raise UserError where several processes collect, and each would read for itself what other
    runs write.
    """
    for algorithm in method.algorithms:
        for path, use in algorithm.uses():
            if not ranks.alone and getattr(use.part, "looks_outside", False):
                raise UserError(
                    f"{path} reads what other runs write, and {ranks.count} processes may not find "
                    "the same: train in one, or let one collect, training.max_staleness=1"
                )
