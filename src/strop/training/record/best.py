"""Finds a run's best step by a validation metric, and decides when the run stops early."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.support.errors import UserError, nearest_first
from strop.tracking.metrics_file import is_number, read_metrics
from strop.training.record import checkpoint
from strop.training.settings.config import RunConfig

SCORES = "eval/"


class Race:
    """The validations of a run so far: its best step, and how many have passed since.

    It needs no saved state. The checkpoint of a step that is better than all before stays, so the
    metrics and checkpoints in a run's folder restore everything. The validation before step 1 does
    not count, because nothing was trained then; in a tie the earlier step wins.
    """

    def __init__(self, config: RunConfig) -> None:
        """Raises UserError for a metric that no validation has."""
        training = config.training
        self.name, self.patience = training.best, training.patience
        self.sign = 1 if training.best_is == "highest" else -1
        self.step, self.value, self.since = 0, 0.0, 0  # step 0: there is no best step yet
        if self.patience and not self.name:
            raise UserError(
                "training.patience waits for a better training.best, which is not given: give it, "
                "such as training.best=eval/validation/pass@1"
            )
        if self.name and not (self.name.startswith(SCORES) and config.evaluation.every):
            raise UserError(
                f"training.best={self.name} must be a number of a validation, such as "
                "eval/validation/pass@1, and evaluation.every be above 0: give both, or leave it "
                "out"
            )

    def check(self, line: Mapping[str, Any]) -> None:
        """Raise UserError where the first scored validation does not have the metric."""
        found = [name for name in line if name.startswith(SCORES)]
        own = [name for name in found if name.split("/")[:2] == self.name.split("/")[:2]]
        unscored = [name.rpartition("/")[2] for name in own] == ["num_unscored"]
        if self.name and found and self.name not in found and not unscored:
            scores = [name for name in found if not name.endswith(("/low", "/high"))]
            raise UserError(
                f"training.best={self.name} is no number of the validation; it has "
                f"{nearest_first(self.name, scores)}: give one of these"
            )

    def take(self, step: int, line: Mapping[str, Any]) -> bool:
        """Record a step's metrics; returns whether it is the best step so far."""
        if not self.name or not any(name.startswith(SCORES) for name in line):
            return False
        value = line.get(self.name)
        better = is_number(value) and (
            not self.step or self.sign * value > self.sign * self.value  # type: ignore[operator]
        )
        if better:
            self.step, self.value, self.since = step, float(value or 0.0), 0
        else:
            self.since += 1
        return better

    @property
    def over(self) -> bool:
        """Returns whether the run has waited long enough for an improvement."""
        return bool(self.patience) and self.since >= self.patience

    @property
    def description(self) -> str:
        """The best step in words; empty where there is none."""
        return f"step {self.step}, {self.name} {self.value:.4g}" if self.step else ""

    @property
    def why_over(self) -> str:
        """Why the run ends before its last step; empty where it does not."""
        if not self.over:
            return ""
        before = f"none better than {self.description}" if self.step else f"none with {self.name}"
        return f"{self.since} validations in a row, {before} (training.patience={self.patience})"


def race_of(config: RunConfig, folder: Path, until: int) -> Race:
    """The race of a run's folder up to a step. Raises UserError.

    A step without a checkpoint cannot be the best one: the best checkpoint is always kept.
    """
    race = Race(config)
    if not race.name or not (folder / "metrics.jsonl").is_file():
        return race
    saved = {checkpoint.step_of(place) for place in checkpoint.complete(folder / "checkpoints")}
    lines = read_metrics(folder)
    if not any(race.name in line for line in lines):
        for line in lines:
            race.check(line)
    for line in lines:
        if 0 < line["step"] <= until:
            known = line["step"] in saved
            race.take(line["step"], line if known else {**line, race.name: None})
    return race


def best_step(config: RunConfig, folder: Path) -> int:
    """The step whose checkpoint is a run's best one. Raises UserError where there is none."""
    if not config.training.best:
        raise UserError(
            f"{folder} kept no best checkpoint: only a run with training.best=NUMBER does; name a "
            "checkpoint with --step"
        )
    places = checkpoint.complete(folder / "checkpoints")
    race = race_of(config, folder, checkpoint.step_of(places[-1]) if places else 0)
    if not race.step:
        raise UserError(f"{folder} has no checkpoint of a step with {config.training.best} yet")
    return race.step
