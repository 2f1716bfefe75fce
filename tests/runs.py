"""Runs in this process, without the command line."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from commands import graders_copied

from strop.evaluation.run import validator
from strop.report.run_folder import Numbers
from strop.training import loop
from strop.training.loading import load_model
from strop.training.settings import config
from strop.training.setup import load_prompts, make_world
from strop.training.world import World


class Watcher:
    """Keeps what a person would see; `at_step` is called after every step."""

    def __init__(self, at_step: Callable[[Any], None] | None = None) -> None:
        self.seen: list[dict[str, float]] = []
        self.notes: list[str] = []
        self.at_step = at_step

    def begin(self, run: Any, before: list[dict[str, float]]) -> None:
        """Nothing to show."""

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        self.seen.append(metrics)
        if self.at_step is not None:
            self.at_step(run)

    def note(self, text: str) -> None:
        self.notes.append(text)


def numbers_in(lines: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], int]:
    """What a report reads of lines of metrics, and how many training steps they are of."""
    numbers = Numbers()
    for line in lines:
        numbers.add(line)
    return numbers.series(), len(numbers.steps)


def world_of(raw: dict[str, Any], algorithm: Any = None) -> tuple[Any, World]:
    """What a run trains with, and its world; algorithm: in place of the one of the settings."""
    made = config.make(raw)
    algorithm = algorithm or made.build()
    task = load_prompts(made.data, made.reward)
    return algorithm, make_world(made, algorithm, load_model(made), task)


class Runner:
    """Starts runs, goes on with them and ends their graders."""

    def __init__(self) -> None:
        self.open: list[loop.Run] = []

    def start(self, raw: dict[str, Any], folder: Path) -> loop.Run:
        with graders_copied():
            return self._kept(loop.start(config.make(raw), folder))

    def resume(self, folder: Path, **changes: Any) -> loop.Run:
        raw = config.load(folder / "config.toml").model_dump()
        for section, values in changes.items():
            raw[section] = {**raw[section], **values}
        with graders_copied():
            return self._kept(loop.resume(config.make(raw), folder))

    def go(self, run: loop.Run, at_step: Callable[[Any], None] | None = None) -> Watcher:
        watcher = Watcher(at_step)
        evaluation = run.config.evaluation
        try:
            loop.go(run, watcher, validator(evaluation.num_samples, evaluation.ks, run.config.seed))
        finally:
            run.close()
        return watcher

    def whole(self, raw: dict[str, Any], folder: Path) -> loop.Run:
        """A run from its first to its last step."""
        run = self.start(raw, folder)
        self.go(run)
        return run

    def _kept(self, run: loop.Run) -> loop.Run:
        self.open.append(run)
        return run
