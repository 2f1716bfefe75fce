"""The loop over steps: train, evaluate, log, save; stops cleanly and goes on exactly."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from strop.algorithm import Algorithm
from strop.errors import RunStopped
from strop.step import Stepped, World, train_step
from strop.training import checkpoint
from strop.training.config import RunConfig
from strop.training.models import Loaded, load_weights
from strop.training.record import Record
from strop.training.setup import load_model, load_prompts, make_world

# (world, algorithm, split name, prompts) -> metrics `eval/{split}/...`
Evaluator = Callable[[World, Algorithm, str, Any], dict[str, float]]


class Watcher(Protocol):
    """Sees the run go by: progress on a terminal."""

    def begin(self, run: "Run") -> None: ...
    def step(self, run: "Run", metrics: dict[str, float]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Run:
    """A run in progress."""

    config: RunConfig
    algorithm: Algorithm
    loaded: Loaded
    world: World
    record: Record
    state: dict[str, Any] = field(default_factory=dict)
    done: int = 0  # steps
    stop_asked: bool = False

    @property
    def checkpoints(self) -> Path:
        """Where the run's checkpoints lie."""
        return self.record.folder / "checkpoints"

    def save(self) -> Path:
        """Write a checkpoint and drop the oldest ones."""
        place = checkpoint.save(
            self.checkpoints, self.done, self.loaded, self.world.policy.optimiser, self.state
        )
        checkpoint.prune(self.checkpoints, self.config.training.keep_checkpoints)
        return place


def start(config: RunConfig, folder: Path) -> Run:
    """A new run in `folder`; everything is checked before anything is written."""
    run = _prepare(config.complete(), folder)
    run.record.create(run.config.to_toml())
    return run


def resume(config: RunConfig, folder: Path) -> Run:
    """The run in `folder` at its newest checkpoint; later lines and files are cut off."""
    run = _prepare(config, folder)
    if checkpoint.complete(run.checkpoints):
        place = checkpoint.newest(run.checkpoints)
        saved = checkpoint.read(place)
        load_weights(run.loaded.model, place)
        assert run.world.policy.optimiser is not None
        run.world.policy.optimiser.load_state_dict(saved["optimiser"])
        run.done, run.state = saved["step"], saved["state"]
        run.world.engine.load_weights(None, run.done)
    checkpoint.prune(run.checkpoints, config.training.keep_checkpoints)
    run.record.cut_after(run.done)
    return run


def _prepare(config: RunConfig, folder: Path) -> Run:
    if config.threads:
        torch.set_num_threads(config.threads)
    algorithm = config.build()
    task = load_prompts(config.data, config.reward, config.seed)
    loaded = load_model(config)
    world = make_world(config, algorithm, loaded, task)
    return Run(config, algorithm, loaded, world, Record(folder))


def go(run: Run, watcher: Watcher, evaluator: Evaluator) -> None:
    """Run all remaining steps; saves at the end and after a first Ctrl-C.

    Raises RunStopped when the run cannot go on; the newest checkpoint is then complete.
    """
    settings = run.config.training
    with _asking_first(run, watcher):
        watcher.begin(run)
        if run.done == 0 and run.config.evaluation.every:
            metrics = _evaluated(run, evaluator, {})
            run.record.metrics(0, metrics)
            watcher.step(run, metrics)
        while run.done < settings.steps and not run.stop_asked:
            stepped = _one_step(run)
            metrics = stepped.metrics
            if _due(run.done, run.config.evaluation.every, settings.steps):
                metrics = _evaluated(run, evaluator, metrics)
            if _due(run.done, settings.rollouts_every, settings.steps):
                run.record.write_rollouts(run.done, stepped.batch, run.world.services)
            run.record.metrics(run.done, metrics)
            watcher.step(run, metrics)
            if _due(run.done, settings.save_every, settings.steps):
                run.save()
        if run.stop_asked and run.done < settings.steps:
            run.save()


def _one_step(run: Run) -> Stepped:
    """The next step; a failure names the step and leaves the run's state as it was."""
    step = run.done + 1
    run.world.services.step = step
    try:
        stepped = train_step(run.world, run.algorithm, run.state, step)
    except RunStopped as error:
        raise RunStopped(f"step {step}: {error}") from error
    run.done, run.state = step, stepped.state
    return stepped


def _evaluated(run: Run, evaluator: Evaluator, metrics: dict[str, float]) -> dict[str, float]:
    begun = time.perf_counter()
    task = run.world.services.task
    prompts = task.validation[: run.config.evaluation.max_prompts]
    if not prompts:
        return metrics
    found = evaluator(run.world, run.algorithm, "validation", prompts)
    return {**metrics, **found, "timing_s/eval": time.perf_counter() - begun}


def _due(step: int, every: int, last: int) -> bool:
    """Whether something that happens every so many steps, and at the end, happens now."""
    return step == last or (every > 0 and step % every == 0)


@contextmanager
def _asking_first(run: Run, watcher: Watcher) -> Iterator[None]:
    """First Ctrl-C: finish the step and save. Second: stop at once."""

    def ask(number: int, frame: Any) -> None:
        if run.stop_asked:
            raise KeyboardInterrupt
        run.stop_asked = True
        watcher.note("finishing this step, then saving (Ctrl-C again stops at once)")

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread: the caller decides what an interrupt means
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
