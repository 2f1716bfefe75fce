"""Replaces assumed costs by those that a run measured.

The costs of the run's model on one GPU of the kind are computed as a plan assumes them. The factor
by which the run was slower in a stage then applies to that stage in every layout:

    decode steps at the run's rows, tokens read at once, tokens of training
    seconds of a step, an answer and its reward: as measured
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from strop.planning.costs import refreshed
from strop.planning.course import Speed, Weights
from strop.planning.measured import Measured, measure
from strop.planning.model_costs import read_model
from strop.planning.parallel import Case, Trainer, costs_of_training, speed_of
from strop.planning.recorded import read_run
from strop.planning.work import Costs, Work
from strop.report.about import parsed
from strop.support.errors import UserError
from strop.support.files import flat, text_of

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


@dataclass(frozen=True)
class Calibration:
    """Measured divided by assumed seconds of some stages, and the measured seconds of others."""

    decode: float
    read: float
    train: float
    rest: float
    answer: float
    reward: float

    def of(self, costs: Costs, assumed_rest: float) -> Costs:
        """The calibrated costs; assumed_rest: the part of `rest` that is replaced."""
        speed, train = costs.speed, self.train
        weights = speed.weights or Weights()
        return replace(
            costs, speed=Speed(
                speed.step * self.decode, speed.row * self.decode, speed.cached * self.decode,
                speed.read * self.read, speed.begin * self.read, self.answer,
                Weights(weights.dense * self.decode, weights.experts * self.decode, weights.miss,
                        weights.compute * self.decode),
            ),
            reward=self.reward, token=costs.token * train, pair=costs.pair * train,
            rest=costs.rest - assumed_rest + self.rest,
        )  # fmt: skip

    @property
    def description(self) -> str:
        """What the runs showed, for the plan."""
        return (
            f"a decode step takes {self.decode:.3g} times as long as assumed, prefill "
            f"{self.read:.3g} times, training {self.train:.3g} times; besides, a step takes "
            f"{self.rest:.3g} s and an answer {self.answer + self.reward:.3g} s"
        )


@dataclass(frozen=True)
class Calibrations:
    """Calibrations of layouts whose GPUs take turns, and of those where some train while others
    generate; each from runs of its kind, if there are any. name: of the first run.
    """

    name: str
    together: Calibration
    apart: Calibration

    @property
    def lines(self) -> list[str]:
        """What the runs showed, one fact a line."""
        found = [f"measured in {self.name}: {self.together.description}"]
        if self.apart != self.together:
            found.append(f"where others train meanwhile: {self.apart.description}")
        return found


def calibrate(case: Case, folders: Sequence[Path]) -> tuple[Calibrations, Measured]:
    """Calibrate by runs of one model on one GPU of the kind. Raises UserError."""
    measured = measure(folders)
    run = _of_run(case, folders[0], measured.work)
    together, apart = (
        _beside(run, each, measured.work) for each in (measured.costs, measured.apart)
    )
    return Calibrations(folders[0].resolve().name, together, apart), measured


def _beside(run: Case, costs: Costs, work: Work) -> Calibration:
    """The costs of a run's work beside those assumed for it."""
    rows = np.array([min(work.slots, work.num_groups * len(work.groups[0]))])
    whole = [
        float(speed.of_rows(rows)[0] + speed.cached * rows[0] * run.held)
        for speed in (costs.speed, speed_of(run, 1))
    ]
    token, pair = costs_of_training(run, Trainer(1, 1, 1, 1, 1, gathered=True))
    sizes = np.concatenate(work.groups) + work.prompt
    train = float((costs.token * sizes).sum() / (token * sizes + pair * sizes**2).sum())
    return Calibration(
        whole[0] / whole[1], costs.speed.read / speed_of(run, 1).read or 1.0, train,
        costs.rest, costs.speed.answer, costs.reward,
    )  # fmt: skip


def _of_run(case: Case, folder: Path, work: Work) -> Case:
    """The case with the run's model, precision, passes and lengths."""
    checkpoint = next(folder.glob("checkpoints/step-*/config.json"), None)
    if checkpoint is None:
        there = any(folder.glob("checkpoints/step-*"))
        what = "checkpoints of adapters alone" if there else "no checkpoint"
        raise UserError(
            f"{folder} has {what}, so its model is unknown: give a run with the whole model, or "
            "plan without a run"
        )
    settings = dict(flat(parsed(text_of(folder / "config.toml", "the configuration"))))
    size = BYTES.get(str(settings.get("model.dtype")), case.assumed.weight_bytes)
    return replace(
        case, model=read_model(checkpoint.parent),
        assumed=replace(case.assumed, weight_bytes=size, cache_bytes=size),
        held=work.held,
        passes=float(refreshed([read_run(folder)])),
    )  # fmt: skip
