"""`strop.compare` and `strop.sweep`: methods compared on one task, over seeds."""

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from strop.api import tables
from strop.api.arguments import checked
from strop.api.folders import numbered, path_of
from strop.api.inputs import (
    Data,
    Reward,
    files_of,
    sections_of,
    tidied,
    with_judges,
    with_parts,
)
from strop.api.messages import messages_in_python
from strop.api.options import HEADS, label_of, labelled, plain, settings_of_all
from strop.api.plot import Plot, plot_labelled
from strop.api.run import Run
from strop.api.tables import Table
from strop.comparison.carry_out import carry_out
from strop.comparison.plan import NAME, START, Candidate, Plan, Scoring, plan_of, read_plan
from strop.comparison.runs import Job
from strop.comparison.scores import Row
from strop.comparison.table import judged as judged_in
from strop.comparison.table import labels_of, lines, markdown, note
from strop.comparison.tuning import Tried, tried_settings, tuning_of
from strop.comparison.values import Spread, Values, combinations, is_range, label_of_values, spread
from strop.comparison.verdict import Compared
from strop.evaluation.at_k import usual_ks
from strop.method.shown import dotted
from strop.support.errors import UserError
from strop.support.loading import PICKLED, same_pickled
from strop.support.output import plain_console
from strop.support.writing import writing
from strop.training.record.run_folder import GIVEN

if TYPE_CHECKING:
    from strop.api.keywords import Options


@dataclass(frozen=True)
class Comparison:
    """Methods compared: a table of scores with intervals and differences, and the runs."""

    folder: Path
    plan: Plan
    rows: tuple[Row, ...]  # one for each scored checkpoint
    tried: tuple[Tried, ...] = ()  # settings among which tuning has chosen
    notes: tuple[str, ...] = ()  # what readers of the numbers have to know

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The runs of every method, by its label, in the order of their seeds."""
        return {
            entry.label: [
                Run(Job(entry, seed, self.folder).folder, trust_files=True)
                for seed in self.plan.seeds
            ]
            for entry in self.plan.entries
        }

    @property
    def scores(self) -> Table:
        """One row for each scored checkpoint: method, seed, step and every score; the first row is
        the model before training, if it was scored, without a seed.
        """
        before = [{"method": START, "seed": None, "step": 0, **row.found}
                  for row in self.rows if row.label == START]  # fmt: skip
        return tables.of_rows(
            before[:1]
            + [{"method": row.label, "seed": row.seed, "step": row.step, **row.found}
               for row in self.rows if row.label != START]
        )  # fmt: skip

    @property
    def table(self) -> Table:
        """One row for each metric and method: mean over seeds with its interval, the difference
        from the baseline with its interval, p and p adjusted by Holm, and the verdict.
        """
        return tables.of_rows(
            [
                {"step": step, **_row(each)}
                for step, compared in judged_in(self.plan, self.rows).items()
                for each in compared
            ]
        )

    @property
    def tuning(self) -> Table:
        """One row for each setting that was tried: its validation score over the tuning runs, and
        for the chosen setting also its score in the compared runs.
        """
        return tables.of_rows(
            [
                {"method": each.of, "setting": each.label, "chosen": each.chosen,
                 "score": each.score.value, "again": each.again.value if each.again else None}
                for each in self.tried
            ]
        )  # fmt: skip

    @property
    def page(self) -> Path:
        """The page with curves, tables and verdicts."""
        return self.folder / "compare.html"

    def plot(self, *names: str) -> Plot:
        """Curves of all runs, one colour for each method; `names` as in `Run.plot`."""
        folders = {label: [run.folder for run in runs] for label, runs in self.runs.items()}
        return plot_labelled(folders, names)

    def __repr__(self) -> str:
        return markdown(self.plan, self.rows, self.notes, self.tried)

    def _repr_html_(self) -> str:
        labels = labels_of(self.plan)
        whole = [
            tables.as_html(
                f"after step {step}" if step else "at equal tokens",
                [[name, *cells] for name, cells in lines(self.plan, compared)],
                ["", *labels],
            )
            for step, compared in judged_in(self.plan, self.rows).items()
        ]
        return "".join([*whole, *(f"<p>{escape(n)}</p>" for n in (note(self.plan), *self.notes))])


@dataclass(frozen=True)
class Swept:
    """A method with several values of its options, as `sweep` passes it to `compare`."""

    method: str
    # label, method with options, values as text, and the method that it is a setting of
    entries: tuple[tuple[str, Any, Values, str], ...]

    def candidates(
        self, given: Mapping[str, Any], options: Mapping[str, Any], folder: Path
    ) -> list[Candidate]:
        """The entries with their settings; the caller's own parts are written to the folder.

        given, options: as in `settings_of_all`; ranges among the options are not settings yet.
        """
        named = [(label, method) for label, method, *_ in self.entries]
        fixed = {name: value for name, value in options.items() if not _is_range(name, value)}
        found = settings_of_all(named, given, fixed)
        return [
            Candidate(label, with_parts(settings, folder), values, of)
            for (label, settings), (*_, values, of) in zip(found, self.entries, strict=True)
        ]


@checked
def compare(
    methods: Any,
    *,
    seeds: int = 5,
    steps: int = 0,
    at: Sequence[int] | int = (),
    k: Sequence[int] | int | None = None,
    samples: int = 0,
    prompts: int = 0,
    score_on: Any = None,
    baseline: str = "",
    by: str = "steps",
    target: tuple[str, float] | None = None,
    band: tuple[float, float] | None = None,
    mean: Sequence[str] | str = (),
    score_start: bool = False,
    tune: int = 0,
    tune_seeds: int = 1,
    tune_by: str = "pass@1",
    model: Any = None,
    tokenizer: Any = None,
    data: Data | None = None,
    validation: Data | None = None,
    reward: Reward | None = None,
    task: str | type = "",
    jobs: int = 0,
    out: str | Path | None = None,
    progress: bool = True,
    **options: "Unpack[Options]",
) -> Comparison:
    """Train every method with every seed, score the weights, and judge which scores differ.

    methods: recipes in one line or methods of `strop.recipe`, in a list, or in a dict by label;
    one with its own options is a pair, `("grpo", {"loss_clip_high": 0.3})`. tune: the number of
    settings of each to try inside ranges, `loss_clip_high="0.2..0.4"`. Other arguments: those of
    `strop compare` and `strop.train`. Runs are processes of one thread. The same call with the
    same `out` resumes, with more methods or seeds. Raises UserError, RunStopped, KeyboardInterrupt.
    """
    k = usual_ks(16, samples) if k is None and type(samples) is int else k
    at, k, mean = _several(at), _several(k), _several(mean)
    counts = {"seeds": seeds, "steps": steps, "samples": samples, "prompts": prompts, "jobs": jobs,
              "tune": tune, "tune_seeds": tune_seeds}  # fmt: skip
    _check(counts, at, k, mean, target, band)
    folder = path_of(out, "out") if out is not None else numbered(Path("comparisons"))
    with messages_in_python(), _given_kept(folder, out is None) as before:
        swept = methods if isinstance(methods, Swept) else _settings_of(methods, options, tune)
        given, _ = sections_of(folder / GIVEN, model, tokenizer, data, validation, reward, task)
        candidates = swept.candidates(given, with_judges(options, folder / GIVEN), folder / GIVEN)
        files = files_of(score_on, folder / GIVEN / "score_on.jsonl")
        _check_same(before, folder / GIVEN)
        scoring = Scoring(
            at=at, ks=k, samples=samples, prompts=prompts, files=files, by=by, target=target,
            band=band, means=mean, start=score_start,
        )  # fmt: skip
        plan = plan_of(
            candidates, scoring, seeds=seeds, steps=steps, baseline=baseline,
            swept=swept.method, tuning=tuning_of(tune, tune_seeds, tune_by),
        )  # fmt: skip
        plan.keep(folder)
    return _carried_out(plan, folder, jobs, progress)


@checked
def sweep(method: Any, values: Mapping[str, Any], *, draws: int = 0, **options: Any) -> Comparison:
    """Train a method with every value of an option, or every combination of several.

    method: as `strop.train` takes it. values: by the option's name, its values in a list, or as
    `strop sweep` takes them: `"log(1e-5, 1e-3, 5)"`, `"random(0.1, 0.4, 8)"`. draws: the seed of
    random values. All other arguments are those of `strop.compare`. Raises as `compare`.
    """
    if not isinstance(values, Mapping) or not values or not all(isinstance(n, str) for n in values):
        raise UserError(
            f"values is {values!r}: give a dict of what is swept, such as "
            '{"training_lr": [1e-4, 1e-3]}'
        )
    if options.get("tune"):
        raise UserError("a sweep shows every value: leave tune out, or give compare the method")
    if ranges := [f"{name}={value}" for name, value in options.items() if _is_range(name, value)]:
        raise UserError(
            f"{ranges[0]} is a range, in which compare tunes a method: give it one value, or sweep "
            "several"
        )
    found = [_spread(dotted(name, HEADS), given, draws) for name, given in values.items()]
    rows = combinations(found, (dotted(name, HEADS) for name in options))
    entries = tuple((label_of_values(row), (method, dict(row)), row, "") for row in rows)
    return compare(Swept(_name_of(method), entries), **options)


@checked
def resume_comparison(folder: str | Path, jobs: int = 0, progress: bool = True) -> Comparison:
    """Resume the comparison in a folder, or read one that is done. Raises as `compare`."""
    place = path_of(folder, "folder")
    return _carried_out(read_plan(place), place, jobs, progress)


def _carried_out(plan: Plan, folder: Path, jobs: int, progress: bool) -> Comparison:
    console = plain_console(soft_wrap=True, quiet=not progress)
    with messages_in_python():
        found = carry_out(plan, folder, jobs, console)
        found.check(f"make the same call with out={str(folder)!r}")
    return Comparison(folder, found.plan, found.rows, found.tried, found.notes)


def _settings_of(methods: Any, options: Mapping[str, Any], tune: int) -> Swept:
    """Methods that are given one by one, or `tune` settings of each."""
    found = []
    for label, method in labelled(methods, "compare"):
        plain, own = method if isinstance(method, tuple) else (method, {})
        ranges = [
            f"{dotted(k, HEADS)}={v}" for k, v in {**options, **own}.items() if _is_range(k, v)
        ]
        own = {k: v for k, v in own.items() if not _is_range(k, v)}
        of = " ".join(word for word in label.split(" ") if not is_range(word))
        for setting, values in tried_settings(of, ranges, tune):
            found.append((setting, (plain, {**own, **dict(values)}), values, of if tune else ""))
    return Swept("", tuple(found))


def _is_range(name: str, value: Any) -> bool:
    return isinstance(value, str) and is_range(f"{name}={value}")


def _spread(name: str, given: Any, draws: int) -> Spread:
    """The values of an option. Raises UserError."""
    if isinstance(given, str):
        found = spread(f"{name}={given}", draws)
        if found is None:
            raise UserError(
                f"{name} has one value, {given!r}: give several in a list, `log(LOW,HIGH,COUNT)` "
                "or `random(LOW,HIGH,COUNT)`"
            )
        return found
    if not isinstance(given, Iterable) or not (texts := [str(plain(each)) for each in given]):
        raise UserError(f"{name} is {given!r}: give its values in a list")
    return Spread(name, tuple(dict.fromkeys(texts)), False)


def _name_of(method: Any) -> str:
    """The method's name in tables; `the method` where it has none."""
    try:
        return label_of(method)
    except UserError:
        return "the method"


def _several(values: Any) -> tuple[Any, ...]:
    """The values as a tuple; a single value, valid or not, may stand without a list."""
    several = isinstance(values, Iterable) and not isinstance(values, str)
    return tuple(values) if several else (values,)


def _check(counts: Mapping[str, Any], at: Any, k: Any, mean: Any, target: Any, band: Any) -> None:
    """Raise UserError for mistakes that would show only after all runs, or that train nothing."""
    for name, value in counts.items():
        least = int(name in ("seeds", "tune_seeds"))
        if type(value) is not int or value < least:
            raise UserError(f"{name} is {value!r}: give a whole number of at least {least}")
    for name, values in (("at", at), ("k", k)):
        if any(type(x) is not int or x < 1 for x in values) or (name == "k" and not values):
            raise UserError(f"{name} is {values!r}: give whole numbers of at least 1")
    if not all(isinstance(name, str) for name in mean):
        raise UserError(f"mean is {mean!r}: give names of numbers")
    if target is not None and not (_is_pair(target, str) and isinstance(target[1], int | float)):
        raise UserError(f"target is {target!r}: give a pair, such as ('pass@1', 0.5)")
    numbers = _is_pair(band, int | float) and isinstance(band[1], int | float)
    if band is not None and not (numbers and band[0] <= band[1]):
        raise UserError(f"band is {band!r}: give a pair, such as (0.3, 0.4), the lower edge first")


def _is_pair(value: Any, first: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], first)


@contextlib.contextmanager
def _given_kept(folder: Path, made: bool) -> Iterator[Path]:
    """Inside, a call writes its arguments into the folder; those of a comparison there stay.

    Yields the folder of a copy of these. On an error, those of a comparison that has not started
    are removed. Raises UserError where other files are in their place.
    """
    given = folder / GIVEN
    if not (folder / NAME).exists():
        with tidied(folder, NAME, made):
            yield given
        return
    before, copy = folder / f"{GIVEN}.before", folder / f"{GIVEN}.copy"
    with writing(folder, "the arguments"):
        shutil.rmtree(copy, ignore_errors=True)
        if not before.exists():  # else a killed call left it, and `given` may be that call's
            shutil.copytree(given, copy) if given.exists() else copy.mkdir()
            copy.rename(before)
    try:
        yield before
    except BaseException:
        shutil.rmtree(given, ignore_errors=True)
        raise
    finally:
        if any(before.iterdir()):
            shutil.copytree(before, given, dirs_exist_ok=True)
        before.rename(copy)  # or a kill would leave a part of it, which the next call would believe
        shutil.rmtree(copy)


def _check_same(before: Path, given: Path) -> None:
    """Raise UserError where a call gives other rows, code or a model than the comparison was
    started with.
    """
    for path in sorted(before.rglob("*")):
        now = given / path.relative_to(before)
        if now.is_file() and not _same(path.read_bytes(), now.read_bytes(), path.suffix):
            kind = {".jsonl": "rows", PICKLED: "code"}.get(path.suffix, "files")
            raise UserError(
                f"{given.parent} was started with other {kind} ({path.stem}): give another folder "
                "with --out"
            )


def _same(before: bytes, now: bytes, suffix: str) -> bool:
    return same_pickled(before, now) if suffix == PICKLED else before == now


def _row(found: Compared) -> dict[str, Any]:
    row = {"metric": found.metric, "method": found.label, "mean": found.mean.value,
           "low": found.mean.low, "high": found.mean.high}  # fmt: skip
    if found.difference is not None:
        low, high = found.difference.low, found.difference.high
        row |= {"difference": found.difference.value, "difference_low": low,
                "difference_high": high, "p": found.p, "p_adjusted": found.adjusted,
                "verdict": found.verdict, "resolves": found.resolves,
                "resolves_on_other_prompts": found.elsewhere}  # fmt: skip
    return row
