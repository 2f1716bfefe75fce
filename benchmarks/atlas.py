"""Make the runs of the atlas: every recipe and grpo on paired seeds, one row of a CSV per run.

    python benchmarks/atlas.py four --out atlas [--recipes gspo,dapo] [--jobs 2] [--hours 6]

A regime (`REGIMES`) is a task, options and a number of steps and seeds. Runs go seed by seed over
all recipes, grpo first. The rows of docs/evidence/atlas/REGIME.csv record what is done: the same
command on any machine makes the missing rows. Runs are paired only within one kind of machine, so a
seed of a recipe is run where a row of grpo of that seed exists or is made too. The folder --out is
scratch. A run that fails is a row with its error (--again repeats those); rows whose settings
differ from the current ones do not count (except with --stale). With --hours no run starts after
that time; Ctrl-C saves what is running, and the same command with the same --out resumes it.
"""

import argparse
import csv
import dataclasses
import datetime
import hashlib
import json
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gemma
import numpy as np
import torch
from floor_settings import Setting, files, setting_of, teacher

from strop.api.options import settings_of
from strop.catalogue import catalogue
from strop.comparison.claims import shared_settings
from strop.comparison.plan import Candidate, Plan, Scoring, plan_of
from strop.comparison.runs import Children, Job, Stopped, train_and_score
from strop.comparison.scores import axis, collect
from strop.environments.countdown import puzzles
from strop.method import notation
from strop.report.run_folder import Run
from strop.support.about import VERSION
from strop.support.errors import RunStopped, UserError
from strop.support.stopping import interrupting
from strop.support.tables import read_rows, write_rows
from strop.support.writing import write_whole
from strop.training.record.versions import device_name
from strop.training.settings.config import RunConfig

ROWS = Path(__file__).parents[1] / "docs" / "evidence" / "atlas"
BASE = "grpo"
SCORES = {
    "pass@1": "pass@1", "pass@4": "pass@4", "pass@16": "pass@16",
    "length": "completions/mean_length", "entropy": "entropy", "entropy_late": "late/entropy",
    "ece": "ece", "auc": "auc", "sampled": "sampled", "trained": "trained", "seconds": "seconds",
}  # fmt: skip
# At every tenth of the steps, including step 0: validation, and tokens and reward up to there.
CURVES = ("curve", "sampled_at", "trained_at", "reward_at")
HEAD = (
    "recipe", "words", "baseline", "seed", "steps", "version", "fingerprint", "machine", "date",
    *SCORES, *CURVES, "error",
)  # fmt: skip
QUIET = ("training.rollouts_every=0", "training.inspect=0", "evaluation.k=[1]")
POINTS = 10
SCORING = Scoring(ks=(1, 4, 16))
# Words of "Differs once" that make a method visible in a few steps: at 5e-3 all policies collapse.
FOR_SHORT_RUNS = ("training.lr", "training.steps")
CANNOT = {
    "opsd": "read a solution (docs/DISTILLATION.md)",
    "reex_sql": "write SQL, whose measures it is paid for",
}
Row = dict[str, str]


@dataclass(frozen=True)
class Regime:
    """setting: a setting of claims.toml, or of a model in MODELS, whose options apply to all
    recipes; task: the task of the recipes that can be run. own: each recipe also has the words of
    its line "Differs once" or "In full once", except those in FOR_SHORT_RUNS.
    """

    setting: str
    steps: int = 100
    seeds: int = 10
    task: str = "countdown"
    own: bool = False
    takes_files: bool = True  # whether the rows of floor_settings belong to its task
    equal_updates: bool = False  # also run grpo with as many updates as a recipe has
    validation: tuple[int, int] = (128, 4)  # prompts, and answers each
    scoring: Scoring = SCORING  # of the held-out prompts, at the end


REGIMES = {
    "tiny": Regime("tiny"),
    "four": Regime("four", seeds=5),
    "own": Regime("tiny", own=True, seeds=5),
    "worked": Regime("worked", steps=40, seeds=5, takes_files=False, equal_updates=True,
                     validation=(64, 2), scoring=Scoring(ks=(1, 4, 16), prompts=256)),
    "own_worked": Regime("worked", steps=40, seeds=5, own=True, takes_files=False,
                         validation=(64, 2), scoring=Scoring(ks=(1, 4, 16), prompts=256)),
    "corridor": Regime("corridor", seeds=5, task="corridor"),
    "calculator": Regime("calculator", steps=60, seeds=5, task="calculator"),
    "kernel_timing": Regime("kernel_timing", steps=60, seeds=5, task="kernel_timing"),
    "gemma": Regime("gemma", steps=20, seeds=3, takes_files=False, validation=(32, 4),
                    scoring=Scoring(ks=(1, 4))),
}  # fmt: skip
MODELS = {"gemma": gemma}  # a module has OPTIONS, sections and files


@dataclass(frozen=True)
class Cell:
    """A recipe in a regime, as it is run. baseline: words of the grpo that it is paired with.
    equal: words of the grpo that makes as many updates; empty: the baseline does.
    """

    recipe: str
    words: str
    baseline: str
    plan: Plan
    fingerprint: str
    model: str
    equal: str = ""


def cell_of(recipe: str, regime: Regime, folder: Path, baseline: str = "") -> Cell:
    """The recipe's cell. baseline: grpo in the words of another recipe. Raises UserError."""
    setting, own = setting_of(recipe, folder), [recipe]
    if recipe != BASE and setting.task != regime.task:
        raise UserError(f"its task in the laboratory is {setting.task} (floor_settings.py)")
    if recipe in CANNOT:
        raise UserError(f"the shipped models cannot {CANNOT[recipe]}")
    if setting.model and not regime.takes_files:
        raise UserError("its teacher has the tokens of tiny, and this model has others")
    # The verifier of worked answers itself logs the false steps that scope_recycle reads.
    is_fed = (recipe, regime.setting) == ("scope_recycle", "worked")
    if setting.data and not regime.takes_files and not is_fed:
        raise UserError("it reads rows with columns of their own, which this task has not")
    if regime.own and recipe != BASE:
        if regime.setting != "tiny" and not catalogue.model_of(recipe):
            raise UserError("it is itself with tiny, in the regime own")
        found = catalogue.find("recipe", recipe).regime
        words = found.words if found is not None else ()
        own = [word for word in words if _name(word) not in FOR_SHORT_RUNS]
        if own in ([], [recipe]):
            raise UserError("it names no options under which alone it is itself")
        if own[0] != recipe:
            setting = dataclasses.replace(setting, options={})  # they would overrule its parameters
    elif baseline:
        own = shlex.split(baseline)
    if setting.task != regime.task or not regime.takes_files:
        setting = Setting(recipe)  # the options of floor_settings are for short answers to puzzles
    return _cell(recipe, own, setting, regime, folder)


def _cell(recipe: str, own: list[str], setting: Setting, regime: Regime, folder: Path) -> Cell:
    if given_answers := notation.recipe(recipe).algorithms[0].rollout.part.given:
        setting.options["sampling.num_rollouts"] = len(given_answers)
    taken = {*setting.options, *map(_name, own[1:])}
    model = MODELS.get(regime.setting)
    shared = model.OPTIONS if model else shared_settings()[regime.setting]
    common = [word for word in shared if _name(word) not in taken]
    base = [word for word in shared if _name(word) not in {*map(_name, own[1:])}]
    words = [*own, *(f"{name}={value}" for name, value in setting.options.items())]
    every = regime.steps // POINTS
    given: dict[str, Any] = {"algorithm": setting.options, "data": setting.data,
                             "reward": setting.reward, "model": setting.model}  # fmt: skip
    given |= model.sections(folder) if model else {}
    prompts, answers = regime.validation
    options = [*common, *own[1:], *QUIET, f"evaluation.every={every}"]
    options += [f"evaluation.max_prompts={prompts}", f"evaluation.num_samples={answers}"]
    settings = settings_of([own[0], *options], {k: v for k, v in given.items() if v}, None)
    scored = (str(folder / "held_out.jsonl"),) if setting.data else ()
    scoring = dataclasses.replace(regime.scoring, files=scored)
    plan = plan_of(
        [Candidate(recipe, settings)], scoring, seeds=regime.seeds, steps=regime.steps
    )  # fmt: skip
    more = _more_updates(settings) if regime.equal_updates and recipe != BASE else []
    return Cell(
        recipe, shlex.join([*words, *common]), shlex.join([BASE, *own[1:], *base]), plan,
        fingerprint(settings, folder), settings.model.name,
        shlex.join([BASE, *own[1:], *more, *base]) if more else "",
    )  # fmt: skip


def _more_updates(settings: RunConfig) -> list[str]:
    """Words with which grpo makes as many updates a step; none where it does anyway, or cannot."""
    part = settings.build().algorithms[0].plan.part
    numbers = {name: getattr(part, name, 1) for name in ("num_epochs", "num_minibatches")}
    return [f"plan.{name}={number}" for name, number in numbers.items() if number > 1]


def _name(word: str) -> str:
    return word.partition("=")[0]


def fingerprint(settings: RunConfig, folder: Path) -> str:
    """Eight characters that identify all settings other than defaults, and the method's numbers."""
    whole = settings.complete().model_dump(exclude_defaults=True)
    text = json.dumps(whole, sort_keys=True, default=str).replace(str(folder), "")
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def cells_of(
    recipes: Sequence[str], regime: Regime, folder: Path
) -> tuple[list[Cell], dict[str, str]]:
    """The cells of every recipe that can be run in the regime, grpo first; why others cannot."""
    bases, cells, left = dict[str, Cell](), [], dict[str, str]()
    for recipe in recipes:
        if recipe == BASE:
            continue
        try:
            cell = cell_of(recipe, regime, folder)
            for words in filter(None, (cell.baseline, cell.equal)):
                if words not in bases:
                    bases[words] = cell_of(BASE, regime, folder, words)
            model = bases[cell.baseline].model
            if cell.model != model:
                raise UserError(f"it needs the model {cell.model}, and {BASE} has {model} here")
            cells.append(cell)
        except UserError as error:
            left[recipe] = str(error).splitlines()[0]
    return [*bases.values(), *cells], left


def missing(
    cells: Sequence[Cell], seeds: int, rows: Sequence[Row], machine: str, again: bool, stale: bool
) -> list[tuple[Cell, int]]:
    """The runs to make on this machine, seed by seed; a baseline only for seeds that need it.

    A recipe's seed is done if one kind of machine has rows of it and its baseline, or if it failed.
    """
    prints = {cell.words: cell.fingerprint for cell in cells}
    there = {
        (row["words"], int(row["seed"]), row["machine"]): row for row in rows
        if stale or row["fingerprint"] == prints.get(row["words"])
    }  # fmt: skip
    machines = {key[2] for key in there} | {machine}
    done = {key for key, row in there.items() if not row["error"]}
    failed = set() if again else {key[:2] for key, row in there.items() if row["error"]}
    found = []
    for seed in range(seeds):
        wanted = [
            cell for cell in cells
            if cell.recipe != BASE and (cell.words, seed) not in failed and not any(
                (cell.words, seed, m) in done and (cell.baseline, seed, m) in done for m in machines
            )
        ]  # fmt: skip
        baselines = {cell.baseline for cell in wanted}
        baselines |= {
            cell.equal for cell in cells
            if cell.equal and (cell in wanted or (cell.words, seed, machine) in done)
        }  # fmt: skip
        wanted += [cell for cell in cells if cell.recipe == BASE and cell.words in baselines]
        wanted.sort(key=lambda cell: cell.recipe != BASE)
        found += [(c, seed) for c in wanted if (c.words, seed, machine) not in done]
    return found


def head_of(cell: Cell, seed: int, machine: str) -> Row:
    """The columns of a row that describe its run."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {
        "recipe": cell.recipe, "words": cell.words, "baseline": cell.baseline, "seed": str(seed),
        "steps": str(cell.plan.steps), "version": VERSION, "fingerprint": cell.fingerprint,
        "machine": machine, "date": today,
    }  # fmt: skip


def numbers(found: Mapping[str, float], run: Run, steps: int) -> Row:
    """A run's final scores, and its curves at every tenth of the steps."""
    at = np.arange(0, steps + 1, steps // POINTS)
    course = {"curve": run.series("eval/validation/pass@1"), "reward_at": run.series("reward")}
    course |= {f"{by}_at": axis(run, by) for by in ("sampled", "trained")}
    row = {name: f"{found[key]:.6g}" for name, key in SCORES.items() if key in found}
    for name, (steps_S, values_S) in course.items():
        known = dict(zip(steps_S.tolist(), values_S.tolist(), strict=True))
        if name in ("sampled_at", "trained_at"):
            known = {0: 0, **known}
        row[name] = " ".join(f"{known[n]:.5g}" if n in known else "-" for n in at.tolist())
    return row


def write_config(cell: Cell, root: Path) -> None:
    """Write the configuration from which all seeds of a cell start, also at the same time."""
    (entry,) = cell.plan.entries
    folder = root / cell.fingerprint / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{entry.slug}.toml", entry.config)


def run_cell(cell: Cell, seed: int, root: Path, machine: str, children: Children) -> Row | None:
    """Trains and scores a run; returns its row, or None if it was stopped or killed."""
    (entry,) = cell.plan.entries
    job = Job(entry, seed, root / cell.fingerprint)
    row = head_of(cell, seed, machine)
    try:
        train_and_score(cell.plan, job, children)
        rows, runs = collect(cell.plan, [job])
    except Stopped:
        return None
    except (RunStopped, UserError) as error:
        why = str(error).splitlines()[0]
        # A process that ended without a message was killed, which says nothing about the recipe.
        return None if children.stopping or why.startswith("exit code") else row | {"error": why}
    shutil.rmtree(job.folder)
    return row | numbers(rows[0].found, runs[entry.label][seed], cell.plan.steps)


@dataclass
class RowFile:
    """The CSV of a regime: a row is appended as its run ends."""

    path: Path
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def add(self, row: Row) -> None:
        """Append one whole line."""
        with self.lock, self.path.open("a", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, HEAD, restval="", lineterminator="\n")
            if not file.tell():
                table.writeheader()
            table.writerow(row)


def run_all(
    todo: Sequence[tuple[Cell, int]], file: RowFile, root: Path, jobs: int, hours: float
) -> None:
    """Make the missing rows until the time is over; Ctrl-C saves the runs in progress."""
    started, children, waiting = time.monotonic(), Children(), iter(todo)
    machine, done, lock = machine_here(), list[Row](), threading.Lock()
    for cell in {cell.fingerprint: cell for cell, _ in todo}.values():
        write_config(cell, root)

    def next_one() -> Iterator[tuple[Cell, int]]:
        while not hours or time.monotonic() - started < 3600 * hours:
            with lock:
                found = next(waiting, None)
            if found is None or children.stopping:
                return
            yield found

    def worker() -> None:
        for cell, seed in next_one():
            row = run_cell(cell, seed, root, machine, children)
            if row is None:
                print(f"ended without a row: {cell.words} seed {seed}", flush=True)
                continue
            file.add(row)
            done.append(row)
            left = (time.monotonic() - started) / len(done) * (len(todo) - len(done)) / 3600
            said = f"failed: {row['error']}" if row.get("error") else f"pass@1 {row['pass@1']}"
            print(f"{len(done)} of {len(todo)}: {cell.words} seed {seed}: {said}; "
                  f"about {left:.1f} h left", flush=True)  # fmt: skip

    with interrupting(), ThreadPoolExecutor(jobs) as pool:
        working = [pool.submit(worker) for _ in range(jobs)]
        try:
            wait(working)
        except KeyboardInterrupt:
            print("stopping: the runs finish their step and save", flush=True)
            children.stop()
            raise
        for each in working:
            each.result()


def machine_here() -> str:
    """The kind of this machine; runs are paired within one kind."""
    return f"{device_name(torch.device('cpu'))}, torch {torch.__version__}"


def main(arguments: Sequence[str]) -> int:
    """Make the missing rows of a regime."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("regime", choices=REGIMES)
    parser.add_argument("--out", type=Path, default=Path("atlas"), help="scratch folder")
    parser.add_argument("--recipes", help="separated by commas; default: all that can be run")
    parser.add_argument("--seeds", type=int, help="in place of the regime's own number")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--again", action="store_true", help="repeat runs that failed")
    parser.add_argument("--stale", action="store_true", help="also count rows of other settings")
    asked = parser.parse_args(arguments)
    regime, inputs = REGIMES[asked.regime], asked.out.resolve() / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    files(inputs)
    if regime.setting in MODELS:
        MODELS[regime.setting].files(inputs)
    held_out = "".join(json.dumps(row) + "\n" for row in puzzles("held_out"))
    (inputs / "held_out.jsonl").write_text(held_out, encoding="utf-8")
    names = [entry.name for entry in catalogue.recipes()]
    chosen = asked.recipes.split(",") if asked.recipes else names
    for name in chosen:
        catalogue.find("recipe", name)
    cells, left = cells_of(chosen, regime, inputs)
    ROWS.mkdir(parents=True, exist_ok=True)
    file = RowFile(ROWS / f"{asked.regime}.csv")
    rows = read_rows(file.path)
    todo = missing(cells, asked.seeds or regime.seeds, rows, machine_here(), asked.again,
                   asked.stale)  # fmt: skip
    for name, why in left.items():
        print(f"left out: {name}: {why}")
    if not asked.recipes:
        keep_left(asked.regime, left)
    print(f"{len(todo)} runs to make of {len(cells)} methods", flush=True)
    if any(setting_of(cell.recipe, inputs).model for cell, _ in todo):
        teacher(inputs)
    run_all(todo, file, asked.out.resolve() / asked.regime, asked.jobs, asked.hours)
    return 0


def keep_left(regime: str, left: Mapping[str, str]) -> None:
    """Write which recipes a regime leaves out, and why; lines of other regimes stay."""
    path = ROWS / "left_out.csv"
    rows = [row for row in read_rows(path) if row["regime"] != regime]
    rows += [{"regime": regime, "recipe": name, "why": why} for name, why in left.items()]
    write_rows(path, ("regime", "recipe", "why"), rows)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except UserError as mistake:
        sys.exit(f"error: {mistake}")
