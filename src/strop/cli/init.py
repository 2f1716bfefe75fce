"""`strop init` and `strop schema`: files to begin with."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from strop.assets import BEGINNINGS, SCHEMA
from strop.support.errors import UserError, nearest
from strop.support.stopping import explained
from strop.support.writing import writing

# Folders of `assets/init`, each with what it is for.
TASKS = {
    "math": "problems whose answer is compared as mathematics",
    "code": "programs that a sandbox tests",
    "reward": "your own reward function",
    "environment": "several turns with an environment of yours",
    "demonstrations": "supervised fine-tuning on given answers",
    "preferences": "pairs of a better and a worse answer",
}


def _offer(incomplete: str) -> list[tuple[str, str]]:
    return [(name, what) for name, what in TASKS.items() if name.startswith(incomplete)]


def init(
    task: Annotated[str, typer.Argument(help=f"{', '.join(TASKS)}.", autocompletion=_offer)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")] = Path("."),
) -> None:
    """Write a commented run.toml with data, and code where the task has some, to begin with.

    They run as they are, on the model that ships with strop; then put your own in their places.
    """
    if task not in TASKS:
        raise UserError(f"no kind of task {task!r}{nearest(task, TASKS)}; {_listed()}")
    files = sorted(path for path in (BEGINNINGS / task).iterdir() if path.is_file())
    for path in (*files, SCHEMA):
        if (out / path.name).exists() and path != SCHEMA:
            raise UserError(f"{out / path.name} is there already: give another folder with --out")
    kept = f"what it wrote is in {out}: remove that and give it again"
    with writing(out, "the files"), explained(lambda: kept):
        out.mkdir(parents=True, exist_ok=True)
        for path in (*files, SCHEMA):
            shutil.copyfile(path, out / path.name)
            print(f"wrote {out / path.name}")
    enter = "" if out == Path(".") else f"cd {out} && "
    print(f"Look into run.toml, then: {enter}strop train --config run.toml")


def schema(
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write it to this file.")] = None,
) -> None:
    """Print the JSON schema of a run's TOML file, with which editors complete and check it."""
    if out is None:
        print(SCHEMA.read_text(encoding="utf-8"), end="")
        return
    with writing(out.parent, out.name):
        shutil.copyfile(SCHEMA, out)
    print(f"wrote {out}; begin a run's file with the line: #:schema {out}")


def _listed() -> str:
    return "there are " + ", ".join(f"{name} ({what})" for name, what in TASKS.items())
