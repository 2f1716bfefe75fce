"""`strop.compare`: methods beside each other, over seeds, on one task."""

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from strop.comparison.plan import NAME, Plan, Scoring, read_plan
from strop.comparison.runs import Job
from strop.comparison.scores import Row
from strop.comparison.table import judged as judged_in
from strop.comparison.table import labels_of, lines, markdown, note, one_run
from strop.comparison.values import Values
from strop.comparison.verdict import Compared
from strop.door import tables
from strop.door.comparing import carry_out, plan_of
from strop.door.folders import numbered
from strop.door.given import files_of
from strop.door.html import numbers
from strop.door.methods import labelled, settings_of_all
from strop.door.plot import Plot, plot
from strop.door.run import Run
from strop.door.sections import check_not_given, sections_of
from strop.door.tables import Table
from strop.door.told import told_in_python
from strop.errors import RunStopped, UserError
from strop.training.record import GIVEN


@dataclass(frozen=True)
class Comparison:
    """Methods beside each other: a table of scores with intervals and differences, and the runs."""

    folder: Path
    plan: Plan
    rows: tuple[Row, ...]  # one a scored checkpoint

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
        """A row a run and scored checkpoint: method, seed, step and every score."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.found))
        head = ("method", "seed", "step", *names)
        found = [dict(zip(head, one_run(row, names), strict=True)) for row in self.rows]
        return tables.of_rows([{k: _number(k, v) for k, v in row.items()} for row in found])

    @property
    def table(self) -> Table:
        """A row a metric and method: mean over seeds with its interval, the difference from the
        baseline with its own, and what they decide.
        """
        return tables.of_rows(
            [
                {"step": step, **_row(each)}
                for step, compared in judged_in(self.plan, self.rows).items()
                for each in compared
            ]
        )

    @property
    def page(self) -> Path:
        """The page with curves, tables and verdicts."""
        return self.folder / "compare.html"

    def plot(self, *names: str) -> Plot:
        """Curves of all runs, a colour a method; `names` as in `Run.plot`."""
        return plot([run.folder for runs in self.runs.values() for run in runs], names)

    def __repr__(self) -> str:
        return markdown(self.plan, self.rows)

    def _repr_html_(self) -> str:
        labels = labels_of(self.plan)
        whole = [
            numbers(
                f"after step {step}" if step else "at equal tokens",
                [[name, *cells] for name, cells in lines(self.plan, compared)],
                ["", *labels],
            )
            for step, compared in judged_in(self.plan, self.rows).items()
        ]
        return "".join(whole) + f"<p>{note(self.plan)}</p>"


@dataclass(frozen=True)
class Swept:
    """A method with several values of its options, as `compare` takes them from `strop.sweep`."""

    method: str
    entries: tuple[tuple[str, Any, Values], ...]  # label, method with options, values as text

    @property
    def named(self) -> list[tuple[str, Any]]:
        """Label and method of each."""
        return [(label, method) for label, method, _ in self.entries]

    def with_values(self, found: Sequence[tuple[str, Any]]) -> list[tuple[str, Any, Values]]:
        """Label and settings, with the values that they are of; none where nothing is swept."""
        values = [values for *_, values in self.entries] or [()] * len(found)
        return [(*each, own) for each, own in zip(found, values, strict=True)]


def compare(
    methods: Any,
    *,
    seeds: int = 5,
    steps: int = 0,
    at: Sequence[int] | int = (),
    k: Sequence[int] | int = (1, 16),
    samples: int = 0,
    prompts: int = 0,
    score_on: Any = None,
    baseline: str = "",
    by: str = "steps",
    target: tuple[str, float] | None = None,
    band: tuple[float, float] | None = None,
    mean: Sequence[str] | str = (),
    score_start: bool = False,
    model: Any = None,
    tokenizer: Any = None,
    data: Any = None,
    validation: Any = None,
    reward: Any = None,
    task: str = "",
    jobs: int = 0,
    out: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> Comparison:
    """Train every method with every seed, score the weights, and say what differs and what not.

    methods: recipes in one line or methods of `strop.recipe`, in a list, or in a dict by label;
    one with options of its own is a pair, `("grpo", {"loss_clip_high": 0.3})`. The other arguments
    are those of `strop compare` and `strop.train`. One process a run, with one thread. The same
    call with the same `out` goes on. Raises UserError, RunStopped where a run failed, and
    KeyboardInterrupt after Ctrl-C, with every run saved.
    """
    asked = {"at": _several(at), "k": _several(k), "mean": _several(mean)}
    _check({"seeds": seeds, "steps": steps, "samples": samples, "prompts": prompts, "jobs": jobs},
           asked, target, band)  # fmt: skip
    swept = methods if isinstance(methods, Swept) else Swept("", ())
    named = swept.named or labelled(methods, "compare")
    folder = Path(out) if out is not None else numbered(Path("comparisons"))
    rows = _rows_there(folder)
    try:
        with told_in_python():
            given, _ = sections_of(folder / GIVEN, model, tokenizer, data, validation, reward, task)
            found = settings_of_all(named, given, options)
            steps = steps or found[0][1].training.steps
            at = tuple(sorted(set(asked["at"]))) or ((steps,) if by == "steps" else ())
            on = files_of(score_on, folder / GIVEN / "score_on.jsonl")
            _check_same(rows)
            ks = asked["k"]
            scoring = Scoring(at, ks, samples or max(ks), prompts, on, by, target, band,
                              asked["mean"], score_start)  # fmt: skip
            plan = plan_of(swept.with_values(found), seeds, steps, scoring, baseline, swept.method)
            plan.keep(folder)
    except BaseException:
        _tidy(folder, out is None)
        raise
    return _carried_out(plan, folder, jobs, progress)


def resume_comparison(folder: str | Path, jobs: int = 0, progress: bool = True) -> Comparison:
    """Go on with the comparison in a folder, or read one that is done. Raises as `compare`."""
    return _carried_out(read_plan(Path(folder)), Path(folder), jobs, progress)


def _carried_out(plan: Plan, folder: Path, jobs: int, progress: bool) -> Comparison:
    console = Console(highlight=False, soft_wrap=True, quiet=not progress)
    found = carry_out(plan, folder, jobs, console)
    if found.failures:
        raise RunStopped(
            f"{len(found.failures)} of {found.num_runs} runs failed; the first: "
            f"{found.failures[0]}. Mend the cause and make the same call with out={str(folder)!r}"
        )
    return Comparison(folder, plan, found.rows)


def _several(values: Any) -> tuple[Any, ...]:
    """Values of which one may stand alone."""
    return (values,) if isinstance(values, int | str) else tuple(values)


def _check(
    counts: Mapping[str, Any], asked: Mapping[str, tuple[Any, ...]], target: Any, band: Any
) -> None:
    """Raise UserError for what would show after all runs alone, or train nothing."""
    for name, value in counts.items():
        least = int(name == "seeds")
        if type(value) is not int or value < least:
            raise UserError(f"{name} is {value!r}: give a whole number of at least {least}")
    for name in ("at", "k"):
        values = asked[name]
        if any(type(x) is not int or x < 1 for x in values) or (name == "k" and not values):
            raise UserError(f"{name} is {values!r}: give whole numbers of at least 1")
    if not all(isinstance(name, str) for name in asked["mean"]):
        raise UserError(f"mean is {asked['mean']!r}: give names of numbers")
    if target is not None and not (_is_pair(target, str) and isinstance(target[1], int | float)):
        raise UserError(f"target is {target!r}: give a pair, such as ('pass@1', 0.5)")
    if band is not None and not (_is_pair(band, int | float) and band[0] <= band[1]):
        raise UserError(f"band is {band!r}: give a pair, such as (0.3, 0.4), the lower edge first")


def _is_pair(value: Any, first: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], first)


def _rows_there(folder: Path) -> dict[Path, bytes]:
    """The rows that the comparison in a folder was begun with; none where there is none.

    Raises UserError where something else lies in their place.
    """
    if (folder / NAME).exists():
        return {path: path.read_bytes() for path in (folder / GIVEN).glob("*.jsonl")}
    with told_in_python():
        check_not_given(folder)
    return {}


def _check_same(rows: Mapping[Path, bytes]) -> None:
    """Raise UserError where a call gives other rows than the comparison was begun with."""
    other = [path for path, before in rows.items() if path.read_bytes() != before]
    for path in other:
        path.write_bytes(rows[path])
    if other:
        raise UserError(
            f"{other[0].parent.parent} was begun with other rows ({other[0].stem}): give another "
            "folder with --out"
        )


def _tidy(folder: Path, made: bool) -> None:
    """Take away what was written for a comparison that did not begin."""
    if not (folder / NAME).exists():
        shutil.rmtree(folder / GIVEN, ignore_errors=True)
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            with contextlib.suppress(OSError):  # it holds comparisons before it
                folder.parent.rmdir()


def _number(name: str, text: str) -> Any:
    if name == "method":
        return text
    return None if text == "" else int(text) if name in ("seed", "step") else float(text)


def _row(found: Compared) -> dict[str, Any]:
    row = {"metric": found.metric, "method": found.label, "mean": found.mean.value,
           "low": found.mean.low, "high": found.mean.high}  # fmt: skip
    if found.difference is not None:
        low, high = found.difference.low, found.difference.high
        row |= {"difference": found.difference.value, "difference_low": low,
                "difference_high": high, "verdict": found.verdict}  # fmt: skip
    return row
