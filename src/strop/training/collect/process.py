"""The collector process: it runs stages 1 to 4 of later steps while the trainer learns.

It starts a step's rollouts once the weights of `step - 1 - max_staleness` have arrived
(in_flight.py defines the order), samples with the newest weights it has, and sends each group when
it finishes and each step's batch when it is complete. New weights are loaded between two tokens, or
between two steps' rollouts. The process keeps the state of the parts of these stages and sends it
with every batch, so the trainer can restart it after any batch; a restarted process gets the
finished groups back.
"""

import pickle
import shutil
import socket
import threading
import time
import traceback
from collections import deque
from concurrent.futures import Future, wait
from pathlib import Path

from safetensors.torch import load_file

from strop.batch.batch import Batch
from strop.engines.asynchronous import asynchronous
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains, generators
from strop.rewards.grader import Grades
from strop.support import guarded_process
from strop.training.collect.in_flight import InFlight, Plain
from strop.training.collect.messages import (
    ALIVE,
    Begin,
    Collected,
    Ended,
    Trained,
    Weights,
    collected,
    is_collected,
    learns,
)
from strop.training.world import World

ALIVE_SECONDS = 1.0  # between two heartbeats
LOOK_SECONDS = 0.1  # between two checks for grades when there is no other work


class Over(BaseException):
    """Raised when the trainer has closed the connection or died."""


class Mailbox:
    """Exchanges messages with the trainer; a thread reads them.

    Every call raises Over when the trainer is gone.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.lock = threading.Lock()  # of what has arrived
        self.news = threading.Event()  # something has arrived since the last wait
        self.weights: Weights | None = None  # the newest, until they are taken
        self.trained: deque[Trained] = deque()
        self.failure = ""  # why a message could not be read
        self.over = False
        self.last_sent = time.monotonic()
        self.begin: Begin = pickle.loads(guarded_process.receive(channel))
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: object) -> None:
        """Send a message."""
        try:
            guarded_process.send(
                self.channel, pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            )
        except OSError as error:
            raise Over from error
        self.last_sent = time.monotonic()

    def live(self) -> None:
        """Send a heartbeat to the trainer when the last message is old."""
        if self.over:
            raise Over
        if time.monotonic() - self.last_sent > ALIVE_SECONDS:
            self.send(ALIVE)

    def wait(self) -> None:
        """Wait until something has arrived since the last wait, or for a while."""
        self.news.wait(ALIVE_SECONDS)
        self.news.clear()
        self.live()

    def take(self) -> tuple[Weights | None, list[Trained]]:
        """Returns what arrived since the last call. Raises RuntimeError if it was unreadable."""
        with self.lock:
            if self.failure:
                raise RuntimeError(f"a message of the trainer cannot be read:\n{self.failure}")
            weights, self.weights = self.weights, None
            trained = list(self.trained)
            self.trained.clear()
        return weights, trained

    def _read(self) -> None:
        while not self.over:
            message: Weights | Trained | None = None
            over, failure = False, ""
            try:
                message = pickle.loads(guarded_process.receive(self.channel))
            except (EOFError, OSError):
                # A killed trainer leaves its folder behind.
                shutil.rmtree(self.begin.folder, ignore_errors=True)
                over = True
            except Exception:  # for example, this process cannot import the class of the message
                failure = traceback.format_exc()
            with self.lock:
                if over or failure:
                    self.over, self.failure = over, failure
                elif isinstance(message, Weights):
                    if self.weights is not None:
                        Path(self.weights.path).unlink(missing_ok=True)
                    self.weights = message
                elif message is not None:
                    self.trained.append(message)
            self.news.set()


class CollectorLoop:
    """The loop of the collector process over the steps."""

    def __init__(self, post: Mailbox, world: World, algorithm: Algorithm) -> None:
        self.post, self.world, self.algorithm = post, world, algorithm
        self.begin = begin = post.begin
        self.state = dict(begin.state)
        self.version = -1  # of the weights that the engine samples with; none yet
        self.trained = self.drawn = begin.step - 1
        self.to_learn: list[Trained] = []
        self.refused: Exception | None = None  # the error that the samplers of the next step raised
        self.learns = learns(algorithm)
        self.sampler = world.engine
        book = asynchronous(self.sampler)
        book.before_step, book.while_waiting = self._between_tokens, post.live
        # Whether the engine gets new weights as soon as they arrive.
        self.at_once = begin.between_tokens or self.sampler.renews_alone
        by_draw = begin.max_staleness > 0 and self.at_once and algorithm.rollout.part.by_draw
        self.in_flight = InFlight(
            world, algorithm, self.state, by_draw, self._send_group, begin.drawn, begin.held
        )
        self.since = time.perf_counter()  # when the last batch was sent
        # Seconds since then; meanwhile: those it generated for while a step was graded.
        self.waited = self.generated = self.meanwhile = 0.0
        world.services.grading.meanwhile = self._while_graded

    def go(self) -> None:
        """Collect every remaining step."""
        self.world.services.begin_step(self.begin.step)
        for step in range(self.begin.step, self.world.num_steps + 1):
            while not (self.in_flight.steps and self.in_flight.steps[0].whole):
                self._go_on()
            self.post.send(self._finish())
            self.world.services.begin_step(step + 1)

    def _go_on(self) -> None:
        """Load what is new, then run the engine for a tick, or wait when it has no work."""
        before = time.perf_counter()
        self._renew()
        self.generated += time.perf_counter() - before
        before = time.perf_counter()
        if not self._tick() and not self.in_flight.steps:
            self.post.wait()
            self.waited += time.perf_counter() - before

    def _tick(self) -> bool:
        """Start the draws that fit and let the engine step; False when it has nothing to do.

        An error of a sampler ends the run once all earlier steps have been sent to the trainer.
        """
        before = time.perf_counter()
        self.in_flight.begin()
        while self.refused is None and self.in_flight.has_room() and self._may_draw():
            self.drawn += 1
            try:
                self.in_flight.draw(self.drawn)
            except Exception as error:
                self.refused = error
            self.in_flight.begin()
        if self.refused is not None and not self.in_flight.steps:
            raise self.refused
        if not self.in_flight.crowd.runs:
            return False
        self.in_flight.tick()
        self.generated += time.perf_counter() - before
        return True

    def _while_graded(self, graded: Future[Grades]) -> None:
        """Sample for the other steps while the first one is graded; only wait for other grades."""
        steps = self.in_flight.steps
        if not (self.in_flight.by_draw and steps and steps[0].collector.rewarding):
            while not graded.done():
                self.post.live()
                wait([graded], LOOK_SECONDS)
            return
        before = self.generated
        with self.in_flight.beside():
            while not graded.done():
                self.post.live()
                if not self._tick():
                    wait([graded], LOOK_SECONDS)
        self.meanwhile += self.generated - before

    def _may_draw(self) -> bool:
        """Returns whether the next step may start: its weights and trained batches have arrived."""
        newest = min(self.version, self.trained) if self.learns else self.version
        return self.drawn < self.world.num_steps and newest >= (
            self.drawn - self.begin.max_staleness
        )

    def _finish(self) -> Collected:
        services = self.world.services
        step, batch = self.in_flight.finish()
        seconds = step.collector.clock.seconds
        seconds["rollout"] = seconds.get("rollout", 0.0) + self.generated
        now = time.perf_counter()
        worked = now - self.since
        grading = seconds.get("reward", 0.0) - self.meanwhile
        found = Collected(
            step.number,
            Batch(dict(batch.columns)),
            step.collector.chains.metrics,
            seconds,
            {path: own for path, own in self.state.items() if is_collected(path)},
            self.trained,
            services.log.logged,
            services.metrics(),
            (list(services.grading.failures), list(services.sampling.failures)),
            self.waited,
            worked,
            worked - self.waited - grading,
            self.in_flight.ahead(),
            len(self.in_flight.crowd.runs),
        )
        self.since, self.waited, self.generated, self.meanwhile = now, 0.0, 0.0, 0.0
        return found

    def _send_group(self, step: int, group: Plain) -> None:
        self.post.send(Ended(step, group))

    def _between_tokens(self) -> None:
        self.post.live()
        if self.at_once:
            self._take()

    def _renew(self) -> None:
        """Load what is new; parts learn only while no strategy has read their state."""
        in_flight = self.in_flight
        if self.begin.between_tokens:
            self._take()
        elif not (in_flight.crowd.runs if self.at_once else in_flight.steps):
            self._take()  # otherwise before a tick, once the strategies have decided what continues
        if self.in_flight.by_draw or not self.in_flight.steps:
            for each in self.to_learn:
                now = self.algorithm.at_step(each.step, self.world.num_steps)
                rng_of = generators(self.world.seed, each.step)
                Chains(rng_of, state=self.state).learn(collected(now), each.batch)
                self.trained = each.step
            self.to_learn = []

    def _take(self) -> None:
        """Load the newest weights, and keep the batches from which parts will learn."""
        weights, trained = self.post.take()
        self.to_learn += trained
        if weights is not None:
            new = load_file(weights.path)
            Path(weights.path).unlink(missing_ok=True)
            own = self.world.policy.model.state_dict()
            self.sampler.load_weights({**own, **new}, weights.version)
            self.version = weights.version
