"""What a run measured: the costs of its stages, and the lengths of its answers.

    seconds of rollout = a ticks + b tokens drawn + c tokens seen + f tokens read
    seconds of refresh and update = u tokens + a constant

ticks: decode steps until the last answer ended; tokens seen: what all decode steps had in their
caches. f, where nothing measures it, is a forward pass: that of the refresh, else a third of an
update.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strop._files import text_of
from strop.errors import UserError
from strop.planning.course import Floats, Ints, Speed, begins
from strop.planning.fit import likeliest
from strop.planning.work import Costs, Work
from strop.report.about import flat, parsed
from strop.report.recorded import spread
from strop.training.metrics_file import is_number, read_metrics

WARM = 3  # first steps of a run, which load and compile
NEEDED = (
    "timing_s/rollout", "timing_s/update", "step_time", "num_tokens", "completions/mean_length",
    "completions/max_length", "data/rollouts_sampled", "data/rollouts_kept",
)  # fmt: skip
AGE = "sampling/age_steps"  # of tokens that an engine drew; there is none of given answers
OF_GROUP = re.compile(r"algorithm\.sampling\..*\.num_rollouts")
MOST_FILES = 100  # of rollouts, spread over the run
FORWARD = 1 / 3  # of an update
SHARES = np.full(3, 1 / 3)  # of a decode step's terms, before anything is measured
UNSURE = 0.15  # deviation of a share, from which it is said
NUM_DRAWN = 4096  # lengths of a distribution
P99 = 2.3263478740408408  # standard deviations


@dataclass(frozen=True)
class Measured:
    """What is known of a run.

    shares: of a, b and c in the seconds of decode steps; unsure: the deviation of each.
    """

    costs: Costs
    work: Work
    shares: Floats
    unsure: Floats

    @property
    def warning(self) -> str:
        """What to say where the terms of a decode step could not be told apart; else nothing."""
        if self.unsure[0] < UNSURE:
            return ""
        return (
            "The steps of the run are too much alike to tell what a decode step costs from what "
            "each row of it costs, so numbers for other sizes are rough. A run with fewer prompts "
            "beside it helps: strop plan RUN OTHER."
        )


@dataclass(frozen=True)
class _Run:
    """A run's folder: steps with numbers, settings, lengths of each recorded step by group."""

    folder: Path
    steps: list[dict[str, float]]
    settings: Mapping[str, int]  # those that are whole numbers
    groups: dict[int, list[Ints]]

    @property
    def slots(self) -> int:
        return int(self.settings.get("training.num_slots", 512))

    def mean(self, name: str) -> float:
        return float(np.mean([step.get(name, 0.0) for step in self.steps]))

    @property
    def prompt(self) -> float:
        """Tokens of one: those of all sequences without those of the answers."""
        whole = self.mean("tokens") / self.mean("data/rollouts_kept")
        return max(whole - self.mean("completions/mean_length"), 0.0)

    @property
    def size(self) -> int:
        """Answers to a prompt."""
        sizes = [len(group) for groups in self.groups.values() for group in groups]
        if sizes:
            return max(round(float(np.mean(sizes))), 1)
        given = [n for path, n in self.settings.items() if OF_GROUP.fullmatch(path)]
        return int(given[0]) if given else 1


def measure(folders: Sequence[Path], lengths: Sequence[float] = (), prompts: int = 0) -> Measured:
    """What the first run does, at the costs that all of them tell.

    lengths: mean and, as an option, 99th percentile of a log-normal distribution, in place of the
    run's own. prompts: of a step, in place of the run's. Raises UserError for what is no run, and
    for one that tells too little.
    """
    runs = [_read(folder) for folder in folders]
    first = runs[0]
    groups = [group for each in first.groups.values() for group in each]
    if lengths:
        groups = log_normal(lengths, first.size)
    if not groups:
        raise UserError(
            f"{first.folder} has recorded no rollouts, so the lengths of its answers are not known:"
            " give --lengths MEAN,P99, or train with training.rollouts_every above 0"
        )
    costs, shares, unsure = _costs(runs)
    sampled, kept = first.mean("data/rollouts_sampled"), first.mean("data/rollouts_kept")
    count = prompts or max(round(sampled / first.size), 1)
    work = Work(tuple(groups), count, first.prompt, kept / sampled, first.slots)
    return Measured(costs, work, shares, unsure)


def log_normal(lengths: Sequence[float], size: int) -> list[Ints]:
    """Groups of answers whose lengths have this mean and 99th percentile; one length without it."""
    mean, high = lengths[0], lengths[-1]
    most = np.exp(P99**2 / 2)
    if not 1 <= mean <= high < most * mean:
        raise UserError(
            f"--lengths {','.join(f'{each:g}' for each in lengths)}: the mean must be 1 or more, "
            f"the 99th percentile at least the mean and less than {most:.0f} times as long"
        )
    sigma = P99 - np.sqrt(P99**2 - 2 * np.log(high / mean))
    drawn = np.random.default_rng(0).standard_normal(NUM_DRAWN // size * size or size)
    found = np.exp(np.log(mean) - sigma**2 / 2 + sigma * drawn)
    return list(np.maximum(found.round(), 1).astype(np.int64).reshape(-1, size))


def _read(folder: Path) -> _Run:
    lines = [line for line in read_metrics(folder) if line["step"] > 0]
    if any("partial/groups_left" in line for line in lines):
        raise UserError(
            f"{folder} put long answers off from step to step, so its steps do not tell what one "
            "costs: give a run that waits for them, such as one of grpo; --spare plans the other"
        )
    if any("asynchronous/collector_idle" in line for line in lines):
        raise UserError(
            f"{folder} drew answers of several steps at once (training.max_staleness), so that its "
            "steps do not tell what one costs: give a run without; --staleness plans the other"
        )
    before = 0.0
    for line in lines:
        so_far = line["num_tokens"] if is_number(line.get("num_tokens")) else before
        before, line["tokens"] = so_far, so_far - before
    steps = [line for line in lines[min(WARM, len(lines) // 4) :] if _drew(line)]
    if not steps:
        raise UserError(
            f"{folder} has no step in which answers were drawn and timed: give a run of a method "
            "that samples, with a step at least"
        )
    path = folder / "config.toml"
    raw = parsed(text_of(path, "the configuration")) if path.is_file() else {}
    settings = {name: value for name, value in flat(raw) if type(value) is int and value > 0}
    return _Run(folder, steps, settings, _groups(folder))


def _drew(line: Mapping[str, Any]) -> bool:
    """Whether an engine drew the step's tokens, and all of it was measured."""
    numbers = [line.get(name, 0) for name in (*NEEDED, "tokens")]
    return AGE in line and all(is_number(number) and number > 0 for number in numbers)


def _groups(folder: Path) -> dict[int, list[Ints]]:
    """The lengths of the answers to each prompt, by recorded step."""
    found: dict[int, list[Ints]] = {}
    for path in spread(sorted((folder / "rollouts").glob("step-*.parquet")), MOST_FILES):
        try:
            columns = pq.read_table(path, columns=["step", "uid", "draw", "length"]).to_pydict()
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} cannot be read: remove it to go on without it") from error
        groups: dict[tuple[int, int], list[int]] = {}
        for uid, draw, length in zip(*(columns[n] for n in ("uid", "draw", "length")), strict=True):
            groups.setdefault((uid, draw), []).append(max(int(length), 1))
        if groups:
            found[columns["step"][0]] = [np.array(group) for group in groups.values()]
    return found


def _costs(runs: Sequence[_Run]) -> tuple[Costs, Floats, Floats]:
    """Costs, and the shares of a decode step's terms with their deviations."""
    steps = [step for run in runs for step in run.steps]

    def total(name: str) -> float:
        return sum(step.get(name, 0.0) for step in steps)

    tokens = total("tokens")
    read = total("timing_s/refresh") / tokens
    if read < FORWARD * total("timing_s/update") / tokens / 10:  # nothing was refreshed
        read = FORWARD * total("timing_s/update") / tokens
    terms = np.array([row for run in runs for row in _decoded(run, read)])
    if not len(terms):
        raise UserError(
            f"{runs[0].folder} has recorded no rollouts and draws more of them than the engine has "
            "slots, so its decode steps are not known: train with training.rollouts_every above 0"
        )
    (step, row, cached), shares, unsure = likeliest(terms[:, 1:], terms[:, 0], SHARES)
    trained = np.array([[s["tokens"], 1.0] for s in steps])
    seconds = np.array([s["timing_s/update"] + s.get("timing_s/refresh", 0.0) for s in steps])
    (token, constant), _, _ = likeliest(trained, seconds, np.array([1.0, 0.0]))
    stages = sum(map(total, ("timing_s/update", "timing_s/refresh")))
    beside = "timing_s/waiting"  # where it is, another process drew and graded
    for name in ("timing_s/rollout", "timing_s/reward"):
        stages += sum(each.get(name, 0.0) for each in steps if beside not in each)
    rest = max(total("step_time") - stages - total(beside), 0.0) / len(steps)
    reward = total("timing_s/reward") / total("data/rollouts_sampled")
    speed = Speed(float(step), float(row), float(cached), read)
    return Costs(speed, reward, float(token), float(constant) + rest), shares, unsure


def _decoded(run: _Run, read: float) -> list[tuple[float, ...]]:
    """Seconds of decode steps, ticks, tokens drawn, tokens seen; of each step that tells them."""
    groups = [group for each in run.groups.values() for group in each]
    known = np.concatenate(groups).astype(float) if groups else np.ones(1)
    uneven = float((known**2).mean() / known.mean() ** 2)
    found: list[tuple[float, ...]] = []
    for step in run.steps:
        count, mean = step["data/rollouts_sampled"], step["completions/mean_length"]
        if step["step"] in run.groups:
            own = np.concatenate(run.groups[int(step["step"])])
            ticks = int((begins(np.zeros(len(own), np.int64), own, run.slots) + own).max())
            mean, square = own.mean(), (own.astype(float) ** 2).mean()
        elif count <= run.slots:
            ticks, square = int(step["completions/max_length"]), uneven * mean**2
        else:
            continue
        seen = run.prompt * mean + (square - mean) / 2
        seconds = step["timing_s/rollout"] - read * count * run.prompt / run.size
        found.append(
            (max(seconds, step["timing_s/rollout"] / 10), ticks, count * mean, count * seen)
        )
    return found
