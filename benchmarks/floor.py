"""Do recipes learn? 60 steps of the shipped model, and a floor that success must reach.

    python benchmarks/floor.py --out floor [--recipes grpo,hpt] [--steps 60] [--seed 0]
        [--page docs/evidence/every_recipe_learns.md]

Trains the recipes that the atlas does not have in its regime `tiny` one after the other in this
process, each on 16 prompts with 8 answers a step, in the setting that `floor_settings.py` gives it;
--recipes names any recipes of the catalogue in their place. Success is the task's measure
(pass@1, except for recordings) on prompts that are never trained on, before and after, with the
same draws. A recipe learns if success rises by at least the task's margin. The numbers go into
OUT/floor.csv, one line per recipe as it ends; recipes that have a line are not repeated. With
--page the page's table is written from that file. The exit code is 1 if one of these recipes stays
below its floor.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from floor_settings import TASKS, files, setting_of, teacher

from strop.catalogue import catalogue
from strop.evaluation.run import validator
from strop.support.errors import RunStopped, UserError
from strop.support.tables import read_rows, write_rows
from strop.training import loop
from strop.training.settings import config

ATLAS = Path(__file__).parents[1] / "docs/evidence/atlas/tiny.csv"
HEAD = ("recipe", "task", "options", "before", "after", "floor", "learns", "entropy", "seconds")


class Course(loop.Watcher):
    """Records the metrics of a run."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def step(self, run: Any, metrics: dict[str, float]) -> None:
        self.lines.append(metrics)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)


def trained(
    raw: dict[str, Any], folder: Path, course: Course | None = None
) -> list[dict[str, float]]:
    """The metrics of a run, from its first validation to its last step."""
    run, course = loop.start(config.make(raw), folder), course or Course()
    try:
        settings = run.config.evaluation
        loop.go(run, course, validator(settings.num_samples, settings.ks, run.config.seed))
    finally:
        run.close()
    if not run.finished:
        raise SystemExit(f"stopped at step {run.done}")
    return course.lines


def row_of(recipe: str, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Train a recipe; returns its line of the table."""
    setting = setting_of(recipe, folder)
    if setting.model:
        teacher(folder)
    started = time.perf_counter()
    lines = trained(setting.raw(steps, seed), folder / "run")
    seconds = time.perf_counter() - started
    task = TASKS[setting.task]
    before, after = (line[f"eval/validation/{task.measure}"] for line in (lines[0], lines[-1]))
    floor = before + task.margin
    numbers = {"before": before, "after": after, "floor": floor}
    entropy = lines[-1].get("entropy")
    return {
        "recipe": recipe, "task": setting.task, "options": setting.shown,
        **{name: f"{value:.3f}" for name, value in numbers.items()},
        "learns": "yes" if after >= floor else "no",
        "entropy": "" if entropy is None else f"{entropy:.3f}", "seconds": f"{seconds:.0f}",
    }  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]], head: Sequence[str] = HEAD) -> None:
    """Write all lines, sorted by recipe."""
    write_rows(path, head, sorted(rows, key=lambda row: row["recipe"]))


def write_page(page: Path, rows: list[dict[str, Any]], head: Sequence[str] = HEAD) -> None:
    """Replace the table of the page, which begins with its heading row, by these lines."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("| recipe |"))
    last = next((n for n, line in enumerate(lines) if n > first and not line), len(lines))
    table = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for row in rows:
        code = {name: f"`{row[name]}`" for name in ("recipe", "options") if row.get(name)}
        table.append(f"| {' | '.join({**row, **code}[name] for name in head)} |")
    page.write_text("\n".join([*lines[:first], *table, *lines[last:]]) + "\n", encoding="utf-8")


def add(path: Path, row: dict[str, Any], head: Sequence[str] = HEAD) -> None:
    """Write and print the line of a recipe."""
    write(path, [*read_rows(path), row], head)
    print(", ".join(f"{key} {row[key]}" for key in head), flush=True)


def asked(about: str, steps: int) -> argparse.Namespace:
    """The command line of a benchmark with one line per recipe; makes the output folder."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", help="only these, separated by commas; repeats their lines")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="write the table of this page")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def chosen(recipes: str, path: Path, every: Iterable[str], head: Sequence[str] = HEAD) -> list[str]:
    """The recipes of --recipes, whose lines are deleted, or all of them."""
    if not recipes:
        return list(every)
    names = recipes.split(",")
    write(path, [row for row in read_rows(path) if row["recipe"] not in names], head)
    return names


def not_in_the_atlas() -> list[str]:
    """The recipes that the atlas does not compare on the puzzles of its regime `tiny`."""
    known = {row["recipe"] for row in read_rows(ATLAS)}
    return [entry.name for entry in catalogue.recipes() if entry.name not in known]


def main() -> None:
    """Train the recipes that have no line yet."""
    options = asked(__doc__, steps=60)
    path = options.out / "floor.csv"
    names = chosen(options.recipes, path, not_in_the_atlas())
    for name in names:
        if name not in {row["recipe"] for row in read_rows(path)}:
            one(name, path, options)
    rows = read_rows(path)
    if options.page:
        write_page(options.page, rows)
    missing = [name for name in names if name not in {row["recipe"] for row in rows}]
    low = [row["recipe"] for row in rows if row["recipe"] in names and row["learns"] != "yes"]
    print(f"{len(rows)} recipes; below the floor: {', '.join(low) or 'none'}; "
          f"did not run: {', '.join(missing) or 'none'}")  # fmt: skip
    sys.exit(1 if low or missing else 0)


def one(name: str, path: Path, options: argparse.Namespace) -> None:
    """Train one recipe and write its line; print the error of a run that cannot be made."""
    folder = Path(tempfile.mkdtemp(dir=options.out))
    try:
        files(folder)
        row = row_of(name, folder, options.steps, options.seed)
        add(path, row)
    except (UserError, RunStopped) as error:
        print(f"{name}: {error}", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
