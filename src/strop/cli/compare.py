"""`strop compare`: compares methods on the same prompts and seeds."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.api.folders import numbered
from strop.cli import completing
from strop.cli.numbers import numbers
from strop.cli.train import Data, Model, Reward, Task, Validation, sections
from strop.cli.waiting import loading
from strop.support.errors import UserError, made_of_each
from strop.support.output import plain_console
from strop.support.stopping import explained

if TYPE_CHECKING:
    from strop.comparison.plan import Plan, Tuning

# label, words, the values of a sweep or of tuning, and the method whose setting it is
Methods = Sequence[tuple[str, list[str], Any, str]]


@dataclass(frozen=True)
class Written:
    """The options that `strop compare` and `strop sweep` have in common, as the user wrote them."""

    seeds: Annotated[int, typer.Option(min=1, help="Runs of each; 5 or more for a verdict.")] = 5
    steps: Annotated[int, typer.Option(min=0, help="Steps of a run; 0: as configured.")] = 0
    at: Annotated[str, typer.Option(help="Steps whose weights are scored; default: the last.")] = ""
    k: Annotated[
        str,
        typer.Option(
            help="Comma-separated k of pass@k and maj@k; default: 1,16, or 1 and --samples where "
            "these are fewer."
        ),
    ] = ""
    samples: Annotated[int, typer.Option(min=0, help="Held-out answers; 0: the largest k.")] = 0
    prompts: Annotated[int, typer.Option(min=0, help="Most held-out prompts; 0: all.")] = 0
    score_on: Annotated[
        list[str] | None,
        typer.Option(help="Score on the rows of a file, not the held-out ones; repeatable."),
    ] = None
    baseline: Annotated[
        str, typer.Option(help="Method that the others are compared with; default: the first.")
    ] = ""
    by: Annotated[
        str, typer.Option(help="Yardstick: equal `steps`, or tokens `sampled` or `trained` on.")
    ] = "steps"
    target: Annotated[
        str,
        typer.Option(help="METRIC=VALUE of validation, such as pass@1=0.5: tokens and time to it."),
    ] = ""
    band: Annotated[
        str, typer.Option(help="LOW,HIGH in nats: share of the steps with that entropy.")
    ] = ""
    mean: Annotated[
        list[str] | None,
        typer.Option(help="Show the mean over the steps of a number of metrics.jsonl; repeatable."),
    ] = None
    start: Annotated[bool, typer.Option(help="Score the model before training, too.")] = False
    model: Model = ""
    task: Task = ""
    data: Data = None
    validation: Validation = None
    reward: Reward = None

    def settings(self, words: Sequence[str]) -> Any:
        """The configuration of a method: a recipe or a .toml file, followed by options."""
        from strop.api.options import settings_of
        from strop.training.settings.assignments import split

        given = sections(self.model, self.task, self.data, self.validation, self.reward)
        (method,), options = split(words)
        if method.endswith(".toml"):
            return settings_of(options, given, Path(method))
        return settings_of([method, *options], given)

    def plan(self, methods: Methods, swept: str = "", tuning: "Tuning | None" = None) -> "Plan":
        """The plan of a comparison of methods. Raises UserError."""
        from strop.comparison.plan import Candidate, Scoring, plan_of
        from strop.evaluation.at_k import usual_ks

        scoring = Scoring(
            at=numbers("--at", self.at, int, 1) if self.at else (),
            ks=numbers("--k", self.k, int, 1) if self.k else usual_ks(16, self.samples),
            samples=self.samples,
            prompts=self.prompts,
            files=tuple(self.score_on or ()),
            by=self.by,
            target=_target(self.target),
            band=_band(self.band),
            means=tuple(self.mean or ()),
            start=self.start,
        )
        made = made_of_each([(label, words) for label, words, *_ in methods], self.settings)
        found = [
            Candidate(label, settings, values, of)
            for settings, (label, _, values, of) in zip(made, methods, strict=True)
        ]
        return plan_of(
            found, scoring, seeds=self.seeds, steps=self.steps, baseline=self.baseline,
            swept=swept, tuning=tuning,
        )  # fmt: skip


def with_written(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of `Written` as options in place of its parameter `written`."""
    fields = dataclasses.fields(Written)
    options = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in fields
    ]

    def called(**given: Any) -> None:
        command(written=Written(**{each.name: given.pop(each.name) for each in fields}), **given)

    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        own = each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += options if each.name == "written" else [own]
    called.__doc__ = command.__doc__
    called.__annotations__ = {}
    vars(called)["__signature__"] = inspect.Signature(parameters)
    return called


Jobs = Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one a core, on a GPU one.")]
Out = Annotated[Path | None, typer.Option(help="Folder; default: comparisons/N.")]


@with_written
def compare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD METHOD... [OPTION=VALUE]...",
            help="A METHOD is a recipe in one line, or a .toml file. An option is for all methods; "
            "put those of one method with it in quotes: 'rloo training.lr=1e-3'.",
            autocompletion=completing.methods,
        ),
    ] = None,
    *,
    tune: Annotated[
        int,
        typer.Option(
            min=0,
            help="Settings of each method to try, inside ranges such as training.lr=1e-4..1e-3,log "
            "or loss.clip_high=0.2..0.4; the best on validation is compared. 0: none.",
        ),
    ] = 0,
    tune_seeds: Annotated[int, typer.Option(min=1, help="Runs of each setting that choose.")] = 1,
    tune_by: Annotated[
        str, typer.Option(help="Number of the last validation whose highest value chooses.")
    ] = "pass@1",
    written: Written,
    jobs: Jobs = 0,
    out: Out = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the comparison in this folder.")
    ] = None,
) -> None:
    """Train every method with every seed, score the weights, and judge which scores differ.

    Each run is a process with one thread. Ctrl-C saves all runs; the same command, or --resume,
    resumes them, also after a crash. Writes compare.html, table.md and scores.csv.
    """
    from strop.comparison.plan import read_plan
    from strop.comparison.tuning import tuning_of

    if resume is not None:
        own = written == Written() and (tune, tune_seeds, tune_by) == (0, 1, "pass@1")
        if arguments or out is not None or not own:
            raise UserError("--resume takes the folder's own plan: leave all but --jobs out")
        _carry_out(read_plan(resume), resume, jobs)
        return
    loading("methods, data and rewards")
    model = written.model or _needed(arguments or [])
    tuning = tuning_of(tune, tune_seeds, tune_by)
    methods = methods_of(arguments or [], tune)
    plan = dataclasses.replace(written, model=model).plan(methods, tuning=tuning)
    begin(plan, out, jobs)


def _needed(arguments: Sequence[str]) -> str:
    """The shipped model that one of the recipes needs: all are then compared on that model."""
    from strop.catalogue.catalogue import model_of
    from strop.training.settings.assignments import split

    methods, _ = split(arguments)
    if any(text.endswith(".toml") for text in methods):  # files name their models themselves
        return ""
    return next(filter(None, map(model_of, methods)), "")


def methods_of(arguments: Sequence[str], tune: int = 0) -> Methods:
    """Label and words of every method, or of `tune` settings of each. Raises UserError where there
    is no method, and for an option between two methods, which could belong to one or to all.
    """
    from strop.comparison.tuning import split_ranges, tried_settings
    from strop.training.settings.assignments import ASSIGNMENT

    is_option = [ASSIGNMENT.match(text) is not None for text in arguments]
    if all(is_option):
        raise UserError("name the methods to compare, such as `strop compare grpo rloo`")
    first = is_option.index(False)
    last = len(arguments) - is_option[::-1].index(False)
    for number in range(first, last):
        if is_option[number]:
            method, option = arguments[number - 1], arguments[number]
            raise UserError(
                f"{option} stands between two methods: write '{method} {option}' in quotes if it "
                "belongs to that method, or put it at the end if it applies to all"
            )
    ranges, common = split_ranges([*arguments[:first], *arguments[last:]])
    found: list[tuple[str, list[str], Any, str]] = []
    for text in arguments[first:last]:
        method, *own = _words(text)
        its_ranges, own = split_ranges(own)
        name = Path(method).stem if method.endswith(".toml") else method
        of = " ".join([name, *own])
        for label, values in tried_settings(of, [*ranges, *its_ranges], tune):
            set_to = [f"{name}={value}" for name, value in values]
            found.append((label, [method, *common, *own, *set_to], values, of if tune else ""))
    return found


def _words(text: str) -> list[str]:
    """A method and its own options: `grpo(clip=0.1) seed=3` is `grpo(clip=0.1)` and `seed=3`."""
    from strop.comparison.values import pieces_of
    from strop.training.settings.assignments import ASSIGNMENT

    whole = text.strip()
    return pieces_of(
        whole, lambda at: whole[at].isspace() and ASSIGNMENT.match(whole[at:].lstrip())
    )


def begin(plan: "Plan", out: Path | None, jobs: int) -> None:
    """Carry out a comparison in `out`, or in a free folder; an existing one is resumed."""
    folder = out or numbered(Path("comparisons"))
    plan.keep(folder)
    _carry_out(plan, folder, jobs)


def _carry_out(plan: "Plan", folder: Path, workers: int) -> None:
    """Do everything that remains of a comparison, then print its table."""
    from strop.comparison.carry_out import carry_out
    from strop.comparison.runs import COMPLETE
    from strop.comparison.table import markdown

    def kept() -> str:
        done = len(list(folder.glob(f"runs/*/{COMPLETE}")))
        return (
            f"{done} of {plan.num_runs} runs are done, and what the others saved stays. "
            f"Resume with: strop compare --resume {folder}"
        )

    with explained(kept):
        found = carry_out(plan, folder, workers, plain_console(soft_wrap=True))
    if found.rows:
        print(markdown(found.plan, found.rows, found.notes, found.tried))
    for line in found.failures:
        plain_console(stderr=True, soft_wrap=True).print(f"failed: {line}", markup=False)
    found.check(f"resume with: strop compare --resume {folder}")
    print(f"wrote {folder / 'compare.html'}, {folder / 'table.md'}, {folder / 'scores.csv'}")


def _target(text: str) -> tuple[str, float] | None:
    if not text:
        return None
    metric, _, value = text.partition("=")
    try:
        return metric.strip(), float(value)
    except ValueError:
        raise UserError(f"--target takes METRIC=VALUE, such as pass@1=0.5, not {text!r}") from None


def _band(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    found = numbers("--band", text, float)
    if len(found) != 2 or not found[0] <= found[1]:
        raise UserError(
            f"--band {text}: give LOW,HIGH, such as 0.3,0.4; the lower edge comes first"
        )
    return found[0], found[1]
