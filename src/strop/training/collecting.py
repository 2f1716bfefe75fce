"""The process that collects: stages 1 to 4 of later steps, while the trainer learns from earlier.

It begins a step's rollouts once the weights of `step - 1 - max_staleness` are there (under_way.py
says in which order), samples with the newest ones that it has, and sends each group when it has
ended and each step's batch when it is whole. New weights are taken between two tokens, or between
two steps' rollouts. It keeps the state of the parts of these stages and sends it with every batch,
so that the trainer can begin it anew behind any of them; groups that had ended are then handed
back to it.
"""

import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from strop._output import Lasting
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.errors import RunStopped, UserError
from strop.part import Use
from strop.rollout.engines.base import Event
from strop.tasks import wire
from strop.training.config import RunConfig
from strop.training.letters import Begin, Broken, Collected, Ended, Trained, Weights
from strop.training.seeds import generators
from strop.training.setup import load_model, load_prompts, make_world
from strop.training.under_way import Plain, UnderWay
from strop.training.world import World

STAGES = ("sampling", "rollout", "reward", "curation")
ALIVE = "alive"
ALIVE_SECONDS = 1.0  # between two signs of life
LOOK_SECONDS = 0.1  # between two looks whether grades are there, where nothing else is to be done


def is_collected(path: str) -> bool:
    """Whether a part's path is of the stages that collect."""
    return path.partition(".")[0] in STAGES


class Over(BaseException):
    """Nothing more comes from the trainer: it ends this process, or is gone."""


class Post:
    """The letters between the processes; a thread reads.

    Every call raises Over when the trainer has left.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.news = threading.Condition()
        self.weights: Weights | None = None  # the newest that was not taken
        self.trained: deque[Trained] = deque()
        self.failure = ""  # of reading
        self.over = False
        self.told = time.monotonic()
        self.begin: Begin = pickle.loads(wire.receive(channel))
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, letter: Any) -> None:
        """Send a letter."""
        try:
            wire.send(self.channel, pickle.dumps(letter, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise Over from error
        self.told = time.monotonic()

    def live(self) -> None:
        """Tell the trainer, now and then, that work goes on."""
        if self.over:
            raise Over
        if time.monotonic() - self.told > ALIVE_SECONDS:
            self.send(ALIVE)

    def wait(self) -> None:
        """Until something new may have come."""
        with self.news:
            if not self.over:
                self.news.wait(ALIVE_SECONDS)
        self.live()

    def take(self) -> tuple[Weights | None, list[Trained]]:
        """What is new since the last time. Raises RuntimeError for what could not be read."""
        with self.news:
            if self.failure:
                raise RuntimeError(f"a letter of the trainer cannot be read:\n{self.failure}")
            weights, self.weights = self.weights, None
            trained = list(self.trained)
            self.trained.clear()
        return weights, trained

    def _read(self) -> None:
        while not self.over:
            letter: Any = None
            over, failure = False, ""
            try:
                letter = pickle.loads(wire.receive(self.channel))
            except (EOFError, OSError):
                shutil.rmtree(self.begin.folder, ignore_errors=True)  # that of a killed trainer
                over = True
            except Exception:  # of a class, say, that this process does not find
                failure = traceback.format_exc()
            with self.news:
                if over or failure:
                    self.over, self.failure = over, failure
                elif isinstance(letter, Weights):
                    if self.weights is not None:
                        Path(self.weights.path).unlink(missing_ok=True)
                    self.weights = letter
                else:
                    self.trained.append(letter)
                self.news.notify()


class Renewing:
    """An engine that looks for new weights before every token."""

    def __init__(self, engine: Any, renew: Any) -> None:
        self._engine, self._renew = engine, renew

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> list[Event]:
        """As the engine's own, with the newest weights."""
        self._renew()
        found: list[Event] = self._engine.step()
        return found


class Collecting:
    """The loop over steps of a collecting process."""

    def __init__(self, post: Post, world: World, algorithm: Algorithm) -> None:
        self.post, self.world, self.algorithm = post, world, algorithm
        self.begin = begin = post.begin
        self.state = dict(begin.state)
        self.version = -1  # of the weights that sample; none yet
        self.trained = self.drawn = begin.step - 1
        self.unlearnt: list[Trained] = []
        self.refused: Exception | None = None  # what the samplers of the next step raised
        self.learns = learns(algorithm)
        self.sampler = world.engine
        world.engine = Renewing(self.sampler, self._between_tokens)
        # Whether weights are handed over as they come.
        self.at_once = begin.between_tokens or self.sampler.renews_alone
        by_draw = begin.max_staleness > 0 and self.at_once and algorithm.rollout.part.by_draw
        self.under_way = UnderWay(
            world, algorithm, self.state, by_draw, self._tell, begin.drawn, begin.held
        )
        self.since = time.perf_counter()  # the last batch
        # Seconds since then; meanwhile: of what it has generated, while a step was graded.
        self.waited = self.generated = self.meanwhile = 0.0
        if by_draw:
            world.services.grading.meanwhile = self._while_graded

    def go(self) -> None:
        """Collect every step that is left."""
        self.world.services.begin_step(self.begin.step)
        for step in range(self.begin.step, self.world.num_steps + 1):
            while not (self.under_way.steps and self.under_way.steps[0].whole):
                self._go_on()
            self.post.send(self._finish())
            self.world.services.begin_step(step + 1)

    def _go_on(self) -> None:
        """Take what is new, begin what the bound allows; let the engine step, or wait."""
        before = time.perf_counter()
        self._renew()
        self.generated += time.perf_counter() - before
        before = time.perf_counter()
        if not self._turn() and not self.under_way.steps:
            self.post.wait()
            self.waited += time.perf_counter() - before

    def _turn(self) -> bool:
        """Begin what the bound allows and let the engine step; False where it has nothing to do.

        What a sampler raises ends the run once the steps before it have gone to the trainer.
        """
        before = time.perf_counter()
        self.under_way.begin()
        while self.refused is None and self.under_way.has_room() and self._may_draw():
            self.drawn += 1
            try:
                self.under_way.draw(self.drawn)
            except Exception as error:
                self.refused = error
            self.under_way.begin()
        if self.refused is not None and not self.under_way.steps:
            raise self.refused
        if not self.under_way.crowd.runs:
            return False
        self.under_way.turn()
        self.generated += time.perf_counter() - before
        return True

    def _while_graded(self, graded: Future[Any]) -> None:
        """Let the other steps go on while one has its rewards; else it is waited for."""
        steps = self.under_way.steps
        if not steps or not steps[0].collector.rewarding:
            return
        before = self.generated
        with self.under_way.beside():
            while not graded.done():
                self.post.live()
                if not self._turn():
                    wait([graded], LOOK_SECONDS)
        self.meanwhile += self.generated - before

    def _may_draw(self) -> bool:
        """Whether the weights are there, and all else that is known, that begin the next step."""
        newest = min(self.version, self.trained) if self.learns else self.version
        return self.drawn < self.world.num_steps and newest >= (
            self.drawn - self.begin.max_staleness
        )

    def _finish(self) -> Collected:
        services = self.world.services
        step, batch = self.under_way.finish()
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
            self.under_way.ahead(),
            len(self.under_way.crowd.runs),
        )
        self.since, self.waited, self.generated, self.meanwhile = now, 0.0, 0.0, 0.0
        return found

    def _tell(self, step: int, group: Plain) -> None:
        self.post.send(Ended(step, group))

    def _between_tokens(self) -> None:
        self.post.live()
        if self.at_once:
            self._take()

    def _renew(self) -> None:
        """Take what is new; parts learn where no strategy has read their state."""
        under_way = self.under_way
        if self.begin.between_tokens:
            self._take()
        elif not (under_way.crowd.runs if self.at_once else under_way.steps):
            self._take()  # else before a turn, when strategies have said what goes on
        if self.under_way.by_draw or not self.under_way.steps:
            for each in self.unlearnt:
                now = self.algorithm.at_step(each.step, self.world.num_steps)
                rng_of = generators(self.world.seed, each.step)
                Chains(rng_of, state=self.state).learn(collected(now), each.batch)
                self.trained = each.step
            self.unlearnt = []

    def _take(self) -> None:
        """Sample with the newest weights; keep the batches that parts are to learn from."""
        weights, trained = self.post.take()
        self.unlearnt += trained
        if weights is not None:
            new = load_file(weights.path)
            Path(weights.path).unlink(missing_ok=True)
            own = self.world.policy.model.state_dict()
            self.sampler.load_weights({**own, **new}, weights.version)
            self.version = weights.version


def learns(algorithm: Algorithm) -> bool:
    """Whether a collecting part learns from batches that were trained on."""
    return any(hasattr(use.part, "update") for _, use in collected(algorithm))


def collected(algorithm: Algorithm) -> Iterator[tuple[str, Use]]:
    """The parts of the stages that collect, with their paths."""
    return ((path, use) for path, use in algorithm.uses() if is_collected(path))


def main(fileno: int) -> None:
    """Collect for the trainer at the other end of a socket, until it is gone or all is done."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the trainer decides
    sys.stdout, sys.stderr = Lasting(sys.stdout), Lasting(sys.stderr)
    os.set_inheritable(fileno, False)
    post = Post(socket.socket(fileno=fileno))
    sys.path[:] = post.begin.search
    try:
        try:
            _work(post)
        except (UserError, RunStopped) as error:
            post.send(Broken(str(error), type(error).__name__))
        except Over:
            raise
        except BaseException:
            post.send(Broken(traceback.format_exc()))
        while True:
            post.wait()  # the trainer ends this process; so it never looks like a crash
    except Over:
        os._exit(0)


def _work(post: Post) -> None:
    begin = post.begin
    torch.set_num_threads(begin.threads)
    config = RunConfig(**begin.config)
    method = config.build()
    assert isinstance(method, Algorithm), "the trainer refuses phases"
    task = load_prompts(config.data, config.reward, config.seed, heldout=False)
    world = make_world(config, method, load_model(config), task, learns=False)
    try:
        if begin.store is not None:
            folder, owner = begin.store
            world.services.stores.open(Path(folder), owner)
        post.send(ALIVE)
        Collecting(post, world, method).go()
    finally:
        world.services.close()
        world.engine.close()
