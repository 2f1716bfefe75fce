"""The plan of a comparison: methods with options, seeds, scoring; saved as plan.json."""

import dataclasses
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from strop.comparison.values import Values
from strop.support.errors import UserError, made_of_each
from strop.support.writing import write_whole, writing
from strop.training.record.run_folder import begin_folder
from strop.training.settings.config import RunConfig, make
from strop.training.settings.sections import FILES_ALONE
from strop.training.setup import load_prompts

NAME = "plan.json"
Made = TypeVar("Made")
YARDSTICKS = ("steps", "sampled", "trained")
START = "before training"  # the label of the model that the runs start from
K_OF = re.compile(r"(?:pass|maj|distinct)@(\d+)")
# Numbers of validation that are no scores, or that pass@1 has already.
NO_SCORE = re.compile(r"/(low|high|num_\w+)$|/(maj|distinct)@1$")


class Candidate(NamedTuple):
    """A method to compare, before it is in a plan."""

    label: str
    settings: RunConfig
    values: Values = ()  # set by a sweep or by tuning
    of: str = ""  # the method's label, for a setting that tuning tries


@dataclass(frozen=True)
class Entry:
    """One of the methods: its label, and its configuration as TOML, without seed.

    values: set by a sweep or tuning, as text by option. of: the method whose setting it is.
    """

    label: str
    config: str
    values: Values = ()
    of: str = ""

    @property
    def slug(self) -> str:
        """The label in the form of a prefix of a folder's name."""
        # So that 1 and -1, and .5 and 5, have folders of their own.
        label = re.sub(r"(?<=[=(\[,\s])-", "minus ", self.label)
        label = re.sub(r"(?<=[=(\[,\s])\.(?=\d)", "0.", label)
        plain = re.sub(r"[^A-Za-z0-9]+", "_", label).strip("_")
        if len(plain) <= 60 and plain:
            return plain
        return f"{plain[:50]}_{hashlib.blake2b(self.label.encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True)
class Scoring:
    """How runs are scored.

    at: steps whose checkpoints are scored (empty: the last); ks: of pass@k and maj@k; samples:
    answers a held-out prompt (0: the largest k); prompts: most held-out prompts (0: all); files:
    rows to score on in place of the held-out ones. by: the yardstick, equal steps, sampled tokens
    or trained tokens. target: a metric and the value until which tokens and seconds are counted.
    band: an entropy band in nats, for the share of steps inside it; by default each method's own.
    means: metrics whose mean over the steps is shown. start: whether to score the model before
    training, too.
    """

    at: tuple[int, ...] = ()
    ks: tuple[int, ...] = (1, 16)
    samples: int = 0
    prompts: int = 0
    files: tuple[str, ...] = ()
    by: str = "steps"
    target: tuple[str, float] | None = None
    band: tuple[float, float] | None = None
    means: tuple[str, ...] = ()
    start: bool = False

    def __post_init__(self) -> None:
        if self.by not in YARDSTICKS:
            raise UserError(f"--by {self.by}: the yardsticks are {', '.join(YARDSTICKS)}")
        if self.samples and max(self.ks) > self.samples:
            raise UserError(f"--k {max(self.ks)} needs at least as many --samples")
        if self.by != "steps" and (self.start or self.files or self.at):
            raise UserError(
                f"--by {self.by} takes the scores of validation, where all runs have spent as many "
                "tokens: leave --at, --score-on and --start out"
            )

    def resolved(self, steps: int) -> "Scoring":
        """The scoring of runs with `steps` steps: each scored step once, and the answers. Raises
        UserError for answers of held-out prompts where no checkpoint is scored on them.
        """
        own = Scoring(by=self.by)
        if self.by != "steps" and (self.ks, self.samples, self.prompts) != (
            own.ks, own.samples, own.prompts
        ):  # fmt: skip
            raise UserError(
                f"--by {self.by} takes the scores of validation: leave --k, --samples and "
                "--prompts out, and give evaluation.num_samples and evaluation.max_prompts"
            )
        last = (steps,) if self.by == "steps" else ()
        return replace(
            self, at=tuple(sorted(set(self.at))) or last, samples=self.samples or max(self.ks)
        )


@dataclass(frozen=True)
class Tuning:
    """How a setting of each method is chosen before methods are compared.

    seeds: of the tuning runs, which are not compared themselves; metric: a number of their
    validation, whose highest value chooses.
    """

    seeds: tuple[int, ...]
    metric: str = "pass@1"


@dataclass(frozen=True)
class Plan:
    """A whole comparison. swept: for a sweep, the method whose options' values are compared.
    tuning: the entries are settings, of which one for each method is chosen and compared.
    """

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    steps: int
    scoring: Scoring
    baseline: str
    swept: str = ""
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        labels = [entry.label for entry in self.entries]
        slugs = [entry.slug for entry in self.entries]
        for i, slug in enumerate(slugs):
            if slug in slugs[:i]:
                raise UserError(
                    f"{labels[i]} stands twice, or too like {labels[slugs.index(slug)]}: give each "
                    "method once, with options that differ"
                )
        if self.baseline not in labels:
            raise UserError(
                f"--baseline {self.baseline} is none of the methods: {', '.join(labels)}"
            )
        if START in labels:
            raise UserError(f"a method cannot be called {START!r}: rename its file")
        for step in self.scoring.at:
            if not 0 < step <= self.steps:
                raise UserError(f"--at {step}: the runs have steps 1 to {self.steps}")
        self._check_validations()
        if self.scoring.start:
            self._check_one_start()

    def _check_validations(self) -> None:
        """Raise UserError where a token yardstick, a target or tuning lacks validation scores."""
        asking = {f"--by {self.scoring.by}": ""} if self.scoring.by != "steps" else {}
        if self.scoring.target is not None:
            asking["--target"] = self.scoring.target[0]
        if self.tuning is not None:
            asking["--tune-by"] = self.tuning.metric
            if self.scoring.by != "steps" and NO_SCORE.search(f"/{self.tuning.metric}"):
                raise UserError(
                    f"--tune-by {self.tuning.metric}: --by {self.scoring.by} has no counts, no "
                    "bounds of intervals, no maj@1 and no distinct@1: give a score such as pass@1"
                )
        for entry in self.entries if asking else ():
            evaluation = make(_raw(entry)).evaluation
            for option, metric in asking.items():
                if not evaluation.every:
                    raise UserError(
                        f"{option} needs validations, {entry.label} has none: give "
                        "evaluation.every=10"
                    )
                wanted = K_OF.fullmatch(metric)
                if wanted and int(wanted[1]) not in evaluation.ks:
                    known = ", ".join(map(str, evaluation.ks))
                    raise UserError(
                        f"{option} {metric}: validations of {entry.label} have k of {known}; give "
                        "another one, or evaluation.num_samples"
                    )

    def _check_one_start(self) -> None:
        """Raise UserError unless all runs start from one model on one task."""
        for section in ("model", "data", "reward"):
            if len({repr(_raw(entry).get(section)) for entry in self.entries}) > 1:
                raise UserError(f"--start scores one model on one task; the [{section}] differ")

    @property
    def num_runs(self) -> int:
        """The number of runs of all stages."""
        if self.tuning is None:
            return len(self.entries) * len(self.seeds)
        methods = len({entry.of for entry in self.entries})
        return len(self.entries) * len(self.tuning.seeds) + methods * len(self.seeds)

    def to_json(self) -> str:
        """The text of plan.json."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def extends(self, known: "Plan") -> bool:
        """Whether this is the same comparison with the same methods and seeds, or more."""
        return (
            {*known.entries} <= {*self.entries}
            and {*known.seeds} <= {*self.seeds}
            and replace(known, entries=self.entries, seeds=self.seeds) == self
        )

    def keep(self, folder: Path) -> None:
        """Write the plan into its folder, also over a plan that it extends. Raises UserError."""
        path = folder / NAME
        with writing(folder, "the comparison"):
            if not path.exists():
                begin_folder(folder)
                (folder / "runs").mkdir()
            elif (known := read_plan(folder)) == self:
                return
            elif not self.extends(known):
                raise UserError(
                    f"{folder} holds another comparison (it differs in "
                    f"{', '.join(differences(known, self))}), and methods and seeds can only be "
                    f"added: give another --out, or resume it: `strop compare --resume {folder}`"
                )
            for entry in self.entries:
                write_whole(folder / "runs" / f"{entry.slug}.toml", entry.config)
            write_whole(path, self.to_json())


def differences(known: Plan, wanted: Plan) -> list[str]:
    """Names of the differences between two plans."""

    def parts(plan: Plan) -> dict[str, Any]:
        found = {field.name: getattr(plan, field.name) for field in dataclasses.fields(Plan)}
        scoring = found.pop("scoring")
        found |= {field.name: getattr(scoring, field.name) for field in dataclasses.fields(Scoring)}
        labels = tuple(entry.label for entry in found.pop("entries"))
        configs = tuple(entry.config for entry in plan.entries)
        return {"methods": labels, "settings": configs, **found}

    ours, theirs = parts(known), parts(wanted)
    return [name for name in ours if ours[name] != theirs[name]]


def read_plan(folder: Path) -> Plan:
    """The plan of a comparison's folder. Raises UserError where there is none."""

    def plan(raw: dict[str, Any]) -> Plan:
        entries = tuple(Entry(**entry) for entry in raw.pop("entries"))
        tuning = Tuning(**found) if (found := raw.pop("tuning", None)) else None
        return Plan(entries=entries, scoring=Scoring(**raw.pop("scoring")), tuning=tuning, **raw)

    return read_as(plan, folder / NAME, "comparison")


def read_as(made: Callable[[dict[str, Any]], Made], path: Path, what: str) -> Made:
    """What is made of the JSON of a file, with tuples in place of lists. Raises UserError."""
    try:
        return made(_tuples(json.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a {what}: it has no {path.name}") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a plan that this version wrote: {error}") from error


def _tuples(value: Any) -> Any:
    """Converts JSON's lists to tuples."""
    if isinstance(value, list):
        return tuple(_tuples(each) for each in value)
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return value


def _raw(entry: Entry) -> dict[str, Any]:
    return tomllib.loads(entry.config)


def plan_of(
    candidates: Sequence[Candidate],
    scoring: Scoring,
    *,
    seeds: int,
    steps: int = 0,
    baseline: str = "",
    swept: str = "",
    tuning: Tuning | None = None,
) -> Plan:
    """The plan of a comparison; steps 0: those of the first method. Raises UserError."""
    steps = steps or candidates[0].settings.training.steps
    scoring = scoring.resolved(steps)
    for label, settings, *_ in candidates:
        if settings.training.patience:
            raise UserError(
                f"{label}: training.patience={settings.training.patience} would end some runs "
                "early, and all runs of a comparison have equal steps: leave it out"
            )
    _check_scored(candidates, scoring)
    named = [(each.label, each) for each in candidates]
    entries = made_of_each(named, lambda each: _entry(each, steps, scoring.at))
    baseline = baseline or entries[0].label
    return Plan(tuple(entries), tuple(range(seeds)), steps, scoring, baseline, swept, tuning)


def _check_scored(candidates: Sequence[Candidate], scoring: Scoring) -> None:
    """Raise UserError where there are no rows to score on, or other ones for each method, before
    any run trains.
    """
    seen, judged = [], dict[str, list[str]]()  # label -> its held-out prompts
    alike = all(each.settings.data == candidates[0].settings.data for each in candidates)
    for label, settings, *_ in candidates if scoring.by == "steps" else ():
        data = settings.data
        if scoring.files:
            alone = {**FILES_ALONE, "task": "", "task_config": {}, "files": scoring.files}
            data = data.model_copy(update=alone)
        source = data.environment() if not scoring.files else None
        if source is not None and not source.holds_out:
            raise UserError(
                f"{label}: {source.name} has no held-out episodes to score on: name a file for "
                "them in data.task_config"
            )
        if data in seen or (not data.files and (alike or source is not None)):
            continue  # shipped tasks hold prompts out, and no file could replace episodes
        seen.append(data)
        task = load_prompts(data, settings.reward, needs_reward=False)
        if not (task.train if scoring.files else task.heldout):
            raise UserError(
                f"{label}: its data has no held-out rows to score on: give --score-on FILE, or "
                "data.heldout_size, the number of rows to hold out from training (those of "
                "data.validation_size are others: they are looked at while it trains)"
            )
        judged[label] = [repr(each.prompt) for each in task.heldout]
        first = next(iter(judged))
        if not scoring.files and judged[label] != judged[first]:
            raise UserError(
                f"{first} and {label} hold out other rows, and methods are compared on the same: "
                "give them equal data, or --score-on FILE"
            )


def _entry(candidate: Candidate, steps: int, scored: tuple[int, ...]) -> Entry:
    """A method of the comparison: its settings with the plan's steps and checkpoints.

    Every scored step gets a checkpoint; all other files of the runs are written as configured.
    """
    every = math.gcd(*scored) if scored else steps
    settings = candidate.settings
    training = settings.training.model_copy(
        update={"steps": steps, "save_every": every, "keep_checkpoints": steps // every + 1}
    )
    whole = settings.model_copy(update={"training": training, "seed": 0}).complete()
    return Entry(candidate.label, whole.to_toml(), candidate.values, candidate.of)
