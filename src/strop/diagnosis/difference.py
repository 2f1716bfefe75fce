"""Compares two runs: whether they are the same and, if not, where they first differ and why.

Metrics are compared number by number, except those of time; rollouts and tokens are compared for
steps of which both runs stored them. The result names what differs earliest in the order of a step,
and every setting, version and fact about the machine in which the folders differ.
"""

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from strop.support.errors import UserError
from strop.support.files import flat, json_of, text_of
from strop.tracking.metrics_file import NAME, check_recorded, read_metrics
from strop.tracking.rollouts_file import read_table, rollouts_files
from strop.training.record.fingerprint import NAME as DATA
from strop.training.record.versions import read_environment

TIME = ("timing_s/", "perf/", "asynchronous/", "step_time")  # metrics that differ in any two runs
# Settings of a run that do not change its numbers.
IDLE = ("training.save_every", "training.checkpoint", "training.keep_", "training.rollouts_every",
        "training.inspect", "training.conflict_every", "training.process_timeout_seconds",
        "training.collector_timeout_seconds", "tracking.")  # fmt: skip
BESIDE = ("eval/", "conflict/")  # metrics of measurements that change nothing
# Settings of what a validation measures: where they differ, its metrics are not compared.
VALIDATED = ("evaluation.num_samples", "evaluation.max_prompts", "evaluation.reward",
             "data.validation_")  # fmt: skip
# Columns (of rollouts and tokens) and metrics that show each stage, in the order of a step.
STAGES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("sampling", ("uid", "draw", "prompt"), ("draw/", "data/epoch", "sources/")),
    ("rollout",
     ("id_T", "mask_T", "origin_T", "version_T", "turn_T", "text_T", "logp_behavior_T",
      "logp_sampler_T", "entropy_behavior_T", "completion", "exit", "truncated", "length", "turn",
      "parent_B", "fork_at_B"),
     ("completions/", "num_tokens", "episode/", "turns/", "exit/", "sampling/age")),
    ("reward", ("reward", "outcome_B", "scored"),
     ("reward", "groups/", "frac_reward_zero_std", "attempts/")),
    ("curation", ("row", "group_B", "rollout_uid_B"), ("num_rollouts", "data/", "replay/")),
    ("advantage", ("advantage",), ("advantage/",)),
    ("selection", ("selection/", "gradient", "denominator_T"), ("selection/",)),
    ("loss",
     ("logp_", "log_ratio_T", "last_log_ratio_T", "gate_T", "share_T", "weight_T", "clipped_T",
      "updates_T", "entropy_"),
     ("loss", "policy_loss", "objective/", "clip_ratio/", "ratio/", "entropy", "kl", "grad_norm",
      "learning_rate", "critic/", "sampling/")),
    ("validation", (), ("eval/",)),
)  # fmt: skip
OTHER = "elsewhere"
MOST = 8  # columns and metrics that are shown
ORDER = [name for name, _, _ in STAGES]


@dataclass(frozen=True)
class Part:
    """A metric or a column that differs in a step.

    first: where the first differing value is, as "rollout 3, token 5"; a, b: the values there.
    count: number of differing values; largest: their largest difference, None if not numbers.
    """

    stage: str
    name: str
    first: str
    a: Any
    b: Any
    count: int = 1
    largest: float | None = None

    def __str__(self) -> str:
        values = f"{_short(self.a)} and {_short(self.b)}"
        if not self.first:
            return f"{self.name}: {values}"
        far = "" if self.largest is None else f", {self.largest:.2g} apart at most"
        more = f" ({self.count} values{far})" if self.count > 1 else ""
        return f"{self.name}, {self.first}: {values}{more}"


@dataclass(frozen=True)
class Difference:
    """The differences of two runs.

    steps: number of common steps. step: the first step in which a number differs, None without one.
    metrics, columns: what differs in that step, in the order of stages; looked_at: the last step up
    to it whose stored rollouts were compared, to which `columns` belongs.
    causes, idle: differing settings, versions and facts about the machine; idle ones change no
    number.
    """

    names: tuple[str, str]
    steps: int
    lengths: tuple[int, int]
    step: int | None
    metrics: tuple[Part, ...]
    columns: tuple[Part, ...]
    looked_at: int | None
    causes: tuple[str, ...]
    idle: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether everything that both runs recorded is equal, bit for bit."""
        return self.step is None and not self.columns

    @property
    def parts(self) -> tuple[Part, ...]:
        """What differs in the first step that shows a difference."""
        early = self.columns and self.looked_at != self.step  # the rollouts of an earlier step
        return self.columns if early else (*self.columns, *self.metrics)

    @property
    def stage(self) -> str:
        """The earliest stage of the step that shows a difference; empty when none does."""
        return min((part.stage for part in self.parts), key=_rank, default="")

    @property
    def lines(self) -> tuple[str, ...]:
        """The whole result in sentences, the verdict first."""
        return (self._verdict(), *self._shown(), *self._why())

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _verdict(self) -> str:
        a, b = self.names
        if self.same:
            kept = (
                f", and rollouts and tokens up to step {self.looked_at}" if self.looked_at else ""
            )
            more = "" if self.lengths[0] == self.lengths[1] else (
                f" {self.names[self.lengths[1] > self.lengths[0]]} continues to step "
                f"{max(self.lengths)}."
            )  # fmt: skip
            unlike = _validate_otherwise(self.causes)
            beside = " and of validations (their settings differ)" * unlike
            return (
                f"{a} and {b} are the same, bit for bit: all metrics of {self.steps} steps except "
                f"those of time{beside}{kept}.{more}"
            )
        step = self.looked_at if self.columns else self.step
        tokens = {part.name for part in self.columns}
        rounding = "logp_behavior_T" in tokens and not tokens & {"id_T", "prompt"}
        return f"{a} and {b} part in step {step}, stage {self.stage}" + (
            ": every token is the same, their log-probabilities are not." if rounding else "."
        )

    def _shown(self) -> Iterator[str]:
        """What differs at the earliest stage, and how many differences follow in the step."""
        early = [part for part in self.parts if part.stage == self.stage]
        yield from (f"  {part}" for part in early[:MOST])
        later = sorted({part.stage for part in self.parts} - {self.stage}, key=_rank)
        if rest := len(self.parts) - len(early[:MOST]):
            also = f", at the stages {', '.join(later)}" if later else ""
            yield f"  and {rest} more columns and metrics{also}"
        if self.columns or self.same:
            return
        if self.looked_at == self.step:
            yield f"  All kept rollouts and tokens of step {self.step} are the same."
        elif self.stage != "validation":  # of whose answers no run keeps any
            yield (
                f"  To see which token, both have to keep the rollouts of step {self.step} "
                "(training.rollouts_every=1)."
            )

    def _why(self) -> Iterator[str]:
        if self.causes:
            yield "The folders differ in:"
            yield from (f"  {cause}" for cause in self.causes)
        elif not self.same:
            yield (
                "Nothing else that the folders record differs. They do not record the code of "
                "rewards, environments and parts from outside, the weights in a model's folder, "
                "and the order of nondeterministic operations on a GPU."
            )
        if self.idle:
            yield "They also differ in settings that change no number of a step:"
            yield from (f"  {cause}" for cause in self.idle)


def difference(a: Path, b: Path) -> Difference:
    """Compare the folders of two runs, which may still be running.

    Raises UserError for a folder that is not a run, for damaged files, and for runs without a
    common step.
    """
    lines = _steps(a), _steps(b)
    common = sorted(lines[0].keys() & lines[1].keys())
    if not any(common):
        raise UserError(f"{a} and {b} have no step in common: each needs at least one")
    causes, idle = _causes(a, b)
    without = ("eval/",) if _validate_otherwise(causes) else ()
    step, metrics = _first_metrics(common, *lines, without)
    looked_at, columns = _first_columns(a, b, step)
    return Difference(
        (str(a), str(b)), sum(number > 0 for number in common),
        (max(lines[0]), max(lines[1])), step, metrics, columns, looked_at, causes, idle,
    )  # fmt: skip


def _validate_otherwise(causes: Iterable[str]) -> bool:
    """Whether a setting is among the causes with which validations measure something else."""
    return any(cause.startswith(VALIDATED) for cause in causes)


def _steps(folder: Path) -> dict[int, dict[str, Any]]:
    """The numbers of each step except those of time; a step written twice merges both lines."""
    found: dict[int, dict[str, Any]] = {}
    for line in read_metrics(folder):
        values = {k: v for k, v in line.items() if k != "step" and not k.startswith(TIME)}
        found.setdefault(line["step"], {}).update(values)
    if not found:
        raise UserError(f"{folder} has no step yet: {folder / NAME} is empty")
    return found


def _first_metrics(
    common: list[int],
    a: Mapping[int, Mapping[str, Any]],
    b: Mapping[int, Mapping[str, Any]],
    without: tuple[str, ...],
) -> tuple[int | None, tuple[Part, ...]]:
    """The first common step in which a number differs, with the numbers that do.

    A number that only one run has counts as a difference, unless only this run made a validation or
    measured conflicts of terms (`training.conflict_every`). without: beginnings of metrics that
    are not compared.
    """
    for step in common:
        left, right = a[step], b[step]
        alone = {k for k in left.keys() ^ right.keys() if not k.startswith(BESIDE)}
        unequal = {k for k in left.keys() & right.keys() if left[k] != right[k]} | alone
        if unequal := {k for k in unequal if not k.startswith(without)}:
            parts = (
                Part(_stage(k, metric=True), k, "", left.get(k), right.get(k),
                     largest=_distance(left.get(k), right.get(k)))
                for k in unequal
            )  # fmt: skip
            return step, tuple(sorted(parts, key=lambda part: (_rank(part.stage), part.name)))
    return None, ()


def _first_columns(a: Path, b: Path, step: int | None) -> tuple[int | None, tuple[Part, ...]]:
    """The first stored step up to `step` whose rollouts or tokens differ, with the columns that do;
    if none differ, the last step that was compared.
    """
    both = {path.name for path in rollouts_files(a)} & {path.name for path in rollouts_files(b)}
    steps = sorted(int(name.removeprefix("step-").removesuffix(".parquet")) for name in both)
    last = None
    for number in steps:
        if step is not None and number > step:
            break
        last = number
        if parts := tuple(_unequal_columns(a, b, number)):
            return number, tuple(sorted(parts, key=lambda part: _rank(part.stage)))
    return last, ()


def _unequal_columns(a: Path, b: Path, number: int) -> Iterator[Part]:
    """The differing columns of a step's rollouts, then of their tokens."""
    name = f"step-{number:06d}.parquet"
    for kind in ("rollouts", "tokens"):
        if not ((a / kind / name).is_file() and (b / kind / name).is_file()):
            continue
        left, right = read_table(a / kind / name), read_table(b / kind / name)
        if len(left) != len(right):
            yield Part("curation", f"{kind} kept", "", len(left), len(right))
        for column in left.column_names:
            if column in right.column_names:
                pair = (left[column].combine_chunks(), right[column].combine_chunks())
                if part := _unequal(column, *pair):
                    yield part


def _unequal(name: str, a: pa.Array, b: pa.Array) -> Part | None:
    """Where two columns first differ; None when they are equal over their common length."""
    number = min(len(a), len(b))
    a, b = a.slice(0, number), b.slice(0, number)
    if a.equals(b):
        return None
    if pa.types.is_list(a.type):
        return _unequal_lists(name, a, b)
    left, right = a.to_pylist(), b.to_pylist()
    rows = [row for row in range(number) if not _equal(left[row], right[row])]
    if not rows:
        return None
    apart = [x for row in rows if (x := _distance(left[row], right[row])) is not None]
    first = rows[0]
    largest = max(apart, default=None)
    return Part(_stage(name), name, f"rollout {first}", left[first], right[first], len(rows),
                largest)  # fmt: skip


def _unequal_lists(name: str, a: pa.Array, b: pa.Array) -> Part | None:
    """The same for a column of tokens or turns, over the rollouts that both have."""
    unit = "turn" if name.endswith("_K") else "token"
    first, count, largest = None, 0, None
    for row, (left, right) in enumerate(zip(a, b, strict=True)):
        one, other = left.as_py() or [], right.as_py() or []
        for place in range(max(len(one), len(other))):
            x, y = (each[place] if place < len(each) else None for each in (one, other))
            if _equal(x, y):
                continue
            count += 1
            first = first or (f"rollout {row}, {unit} {place}", x, y)
            if (far := _distance(x, y)) is not None:
                largest = max(far, largest or 0.0)
    return Part(_stage(name), name, *first, count, largest) if first else None


def _equal(x: Any, y: Any) -> bool:
    return x == y or (x != x and y != y)  # two NaNs count as equal


def _distance(x: Any, y: Any) -> float | None:
    """The distance of two finite floats; None for other values."""
    if type(x) is not float or type(y) is not float:
        return None
    return abs(x - y) if math.isfinite(x) and math.isfinite(y) else None


def _stage(name: str, metric: bool = False) -> str:
    """The stage whose list has the longest prefix of the column's or metric's name."""
    fits = [
        (len(start), stage)
        for stage, columns, metrics in STAGES
        for start in (metrics if metric else columns)
        if name.startswith(start)
    ]
    return max(fits, default=(0, OTHER))[1]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _rank(stage: str) -> int:
    return ORDER.index(stage) if stage in ORDER else len(ORDER)


def _causes(a: Path, b: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How the folders differ beside their numbers: what may change these, and what cannot."""
    pairs = zip(_settings(a), _settings(b), strict=True)
    names = ("", "data: ", "environment: ")
    causes: list[str] = []
    idle: list[str] = []
    for kind, (left, right) in zip(names, pairs, strict=True):
        for key in sorted(left.keys() | right.keys()):
            one, other = left.get(key), right.get(key)
            if one != other:
                one, other = ("none" if each is None else each for each in (one, other))
                place = idle if not kind and key.startswith(IDLE) else causes
                place.append(f"{kind}{key}: {one} in the first, {other} in the second")
    return tuple(causes), tuple(idle)


def _settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A run's configuration, its data, and the versions and machine of its starts."""
    path = folder / "config.toml"
    check_recorded(folder, path.name)
    try:
        config = dict(flat(tomllib.loads(text_of(path, "the configuration"))))
        data = json_of((folder / DATA).read_bytes()) if (folder / DATA).is_file() else {}
    except ValueError as error:
        raise UserError(f"a file of {folder} is damaged: {error}") from error
    starts = read_environment(folder)
    machine = {k: v for k, v in (starts[0] if starts else {}).items() if k != "begun"}
    for number, start in enumerate(starts[1:], 2):
        for key, value in start.items():
            if key not in ("begun", *machine) or machine.get(key) != value:
                machine[f"start {number}, {key}"] = value
        machine.pop(f"start {number}, begun", None)
    return config, dict(data) if isinstance(data, dict) else {}, machine
