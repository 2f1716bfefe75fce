"""Trains one policy on several tasks in order: the plan, its runs and their result.

    FOLDER/sequence.json      the tasks in their order, the held-out suites, each task's settings
    FOLDER/1-NAME/            a plain run, of the first task; the next begins with its last weights
    FOLDER/result.json        the matrix of accuracies and all that follows from it

Every run validates on all tasks and suites before its first step and after its last, so the matrix
can be read from their metrics. A complete run is not repeated.
"""

import dataclasses
import json
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from strop.comparison.plan import K_OF, read_as
from strop.comparison.scores import axis
from strop.data.read import named_sources, validation_sets
from strop.evaluation.task_matrix import Kept, kept
from strop.report.run_folder import Run, read_run
from strop.support.errors import UserError
from strop.support.files import without_nan
from strop.support.writing import write_whole, writing
from strop.tracking.metrics_file import NAME as METRICS
from strop.tracking.metrics_file import read_metrics
from strop.training.loading import load_model
from strop.training.record import checkpoint
from strop.training.record.run_folder import begin_folder
from strop.training.settings.config import RunConfig, make
from strop.training.setup import load_prompts

NAME = "sequence.json"
WIDTH = 2 * 1.959964  # standard errors in a 95% interval


@dataclass(frozen=True)
class Plan:
    """Tasks in their order, suites that are only scored, each task's settings as TOML.

    The settings of all tasks but the first lack the model: it is the result of the previous task.
    metric: the validation metric that counts as accuracy. prompts: of each validation set.
    """

    method: str
    tasks: tuple[str, ...]
    suites: tuple[str, ...]
    configs: tuple[str, ...]
    prompts: tuple[int, ...]
    metric: str

    @property
    def sets(self) -> tuple[str, ...]:
        """The validation sets, in the order of `prompts`."""
        return (*self.tasks, *self.suites)

    def keep(self, folder: Path) -> None:
        """Write the plan into its folder, or check that it has the same, unless the first task of
        another plan never began. Raises UserError.
        """
        path = folder / NAME
        if path.exists():
            known = read_plan(folder)
            begun = known.folder_of(0, folder).exists()
            if begun and dataclasses.replace(known, metric=self.metric) != self:
                raise UserError(
                    f"{folder} holds another sequence: give another --out, or resume it: `strop "
                    f"sequence --resume {folder}`"
                )
            if known == self:
                return
        with writing(folder, "the sequence"):  # or another number of its validations is read
            if not path.exists():
                begin_folder(folder)
            write_whole(path, json.dumps(dataclasses.asdict(self), indent=1))

    def folder_of(self, number: int, folder: Path) -> Path:
        """The folder of the run of a task, counted from 0."""
        return folder / f"{number + 1}-{self.tasks[number]}"


def read_plan(folder: Path) -> Plan:
    """The plan of a sequence's folder. Raises UserError where there is none."""
    return read_as(lambda raw: Plan(**raw), folder / NAME, "sequence")


def plan_of(settings: RunConfig, replay: float = 0.0, metric: str = "pass@1") -> Plan:
    """The plan of settings whose data are the tasks in their order.

    replay: share of a step's prompts from earlier tasks, in equal parts. Raises UserError.
    """
    sources = named_sources(settings.data.files)
    if not sources:
        raise UserError("name the tasks in their order, each with its rows: --data NAME=FILE")
    tasks = tuple(name for name, _ in sources)
    plain, named = validation_sets(settings.data.validation_files)
    sets = (*(["validation"] if plain else []), *named)
    for name in tasks:
        if name not in sets:
            raise UserError(
                f"the task {name} has no rows to be scored on: give --validation {name}=FILE"
            )
    wanted, ks = K_OF.fullmatch(metric), settings.complete().evaluation.ks
    if wanted and int(wanted[1]) not in ks:
        raise UserError(
            f"--metric {metric}: the validations have k of {', '.join(map(str, ks))}; give another "
            "one, or evaluation.num_samples"
        )
    if settings.data.weights:
        raise UserError("data.weights: a sequence sets them itself, from --replay: leave them out")
    configs = [_of_task(settings, [*sources[number::-1]], replay) for number in range(len(sources))]
    suites = tuple(name for name in sets if name not in tasks)
    most = settings.evaluation.max_prompts
    for config in configs:  # all files are read before the first step of the first task
        found = load_prompts(config.data, config.reward, heldout=False).validations
    return Plan(
        settings.recipe,
        tasks,
        suites,
        tuple(config.complete().to_toml() for config in configs),
        tuple(min(len(found[name]), most) for name in (*tasks, *suites)),
        metric,
    )


def _of_task(settings: RunConfig, sources: list[tuple[str, Any]], replay: float) -> RunConfig:
    """The settings of a task; the tasks before it are replayed."""
    old = sources[1:] if replay else []
    files = tuple(f"{name}={file}" for name, file in [sources[0], *old])
    weights = (1 - replay, *[replay / len(old)] * len(old)) if old else ()
    data = settings.data.model_copy(update={"files": files, "weights": weights})
    every = {"every": settings.training.steps}
    evaluation = settings.evaluation.model_copy(update=every)
    return make(settings.model_copy(update={"data": data, "evaluation": evaluation}).model_dump())


Train = Callable[[Path | None, Path], None]  # configuration (None: resume) and folder of a run


def carry_out(plan: Plan, folder: Path, train: Train, tell: Callable[[str], None]) -> "Result":
    """Train the remaining tasks in order; returns the result of all. Raises as a run does."""
    model = ""
    for number, name in enumerate(plan.tasks):
        run = plan.folder_of(number, folder)
        settings = _settings(plan.configs[number], model)
        if _is_complete(run, settings.training.steps):
            tell(f"task {number + 1} of {len(plan.tasks)}, {name}: complete")
        elif (run / "config.toml").exists():
            tell(f"task {number + 1} of {len(plan.tasks)}, {name}: resumes")
            train(None, run)
        else:
            tell(f"task {number + 1} of {len(plan.tasks)}, {name}:")
            path = folder / f"{run.name}.toml"
            write_whole(path, settings.to_toml())
            train(path, run)
        # Before other tasks train, this refuses a metric that validations lack.
        _cells(plan, read_metrics(run)[0], run)
        model = _last_weights(run, settings)
    return result(plan, folder)


def _settings(config: str, model: str) -> RunConfig:
    raw = tomllib.loads(config)
    if model:
        raw["model"] = {**raw.get("model", {}), "name": model}
    return make(raw)


def _is_complete(run: Path, steps: int) -> bool:
    if not (run / METRICS).is_file() or not checkpoint.complete(run / "checkpoints"):
        return False
    last = checkpoint.step_of(checkpoint.newest(run / "checkpoints"))
    return last >= steps and read_metrics(run)[-1]["step"] >= steps


def _last_weights(run: Path, settings: RunConfig) -> str:
    """The folder of the model that the next task starts from; adapters are merged into it."""
    last, whole = str(checkpoint.newest(run / "checkpoints")), run / "model"
    if not settings.model.lora_rank:
        return last
    if not whole.exists():
        unfinished = run / ".model"
        shutil.rmtree(unfinished, ignore_errors=True)
        load_model(settings, last).merged().save(unfinished)
        unfinished.rename(whole)
    return str(whole)


class Cell(NamedTuple):
    """An accuracy with its 95% interval over prompts."""

    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Its standard error."""
        return (self.high - self.low) / WIDTH


class Cost(NamedTuple):
    """The cost of a task: tokens that it sampled, seconds of its steps, peak memory so far, GiB."""

    tokens: float
    seconds: float
    memory: float


@dataclass(frozen=True)
class Result:
    """The result of a sequence. rows: of the start and each task, one cell a set, tasks first."""

    plan: Plan
    rows: tuple[tuple[Cell, ...], ...]
    costs: tuple[Cost, ...]

    @property
    def kept(self) -> Kept:
        """The numbers of its matrix."""
        size = len(self.plan.tasks)
        tasks = [row[:size] for row in self.rows]
        suites = [row[size:] for row in self.rows]
        return kept(
            [[cell.value for cell in row] for row in tasks[1:]],
            [cell.value for cell in tasks[0]],
            [float(np.mean([c.value for c in row])) for row in suites] if self.plan.suites else (),
            [[cell.error for cell in row] for row in tasks[1:]],
        )

    def to_json(self) -> str:
        """The text of result.json; a missing number is null."""
        numbers = {k: np.asarray(v).tolist() for k, v in dataclasses.asdict(self.kept).items()}
        whole = {
            "tasks": self.plan.tasks,
            "suites": self.plan.suites,
            "prompts": self.plan.prompts,
            "rows": self.rows,
            "costs": [cost._asdict() for cost in self.costs],
            **numbers,
        }
        return json.dumps(without_nan(whole), indent=1)


def result(plan: Plan, folder: Path) -> Result:
    """Reads the result from the runs. Raises UserError where a validation lacks the metric."""
    runs = [plan.folder_of(number, folder) for number in range(len(plan.tasks))]
    lines = [read_metrics(run) for run in runs]
    rows = [_cells(plan, lines[0][0], runs[0])]
    rows += [_cells(plan, each[-1], run) for each, run in zip(lines, runs, strict=True)]
    return Result(plan, tuple(rows), tuple(_cost(read_run(run)) for run in runs))


def _cells(plan: Plan, line: dict[str, Any], run: Path) -> tuple[Cell, ...]:
    found = []
    for name in plan.sets:
        key = f"eval/{name}/{plan.metric}"
        if key not in line:
            start = f"eval/{name}/"
            have = sorted(k.removeprefix(start) for k in line if k.startswith(start))
            known = ", ".join(k for k in have if not k.endswith(("/low", "/high"))) or "nothing"
            raise UserError(
                f"{run} has no {key} at step {line['step']}: --metric is one of {known}; resume "
                f"with `strop sequence --resume {run.parent} --metric NAME`"
            )
        nothing = float("nan")
        found.append(Cell(line[key], *(line.get(f"{key}/{k}", nothing) for k in ("low", "high"))))
    return tuple(found)


def _cost(run: Run) -> Cost:
    tokens, seconds = (float(axis(run, by)[1][-1]) for by in ("sampled", "seconds"))
    return Cost(tokens, seconds, float(run.series("perf/peak_mem_gb")[1].max(initial=0.0)))
