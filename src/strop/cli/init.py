"""`strop init` and `strop schema`: files to start from."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from strop.assets import SCHEMA
from strop.support.errors import UserError, nearest
from strop.support.stopping import explained
from strop.support.writing import writing

TEMPLATES = Path(__file__).with_name("templates")
# Its folders, each with its purpose.
TASKS = {
    "math": "problems whose answer is compared as mathematics",
    "code": "programs that a sandbox tests",
    "reward": "your own reward function",
    "environment": "several turns with your own environment",
    "demonstrations": "supervised fine-tuning on given answers",
    "preferences": "pairs of a better and a worse answer",
}


def _offer(incomplete: str) -> list[tuple[str, str]]:
    return [(name, what) for name, what in TASKS.items() if name.startswith(incomplete)]


def init(
    task: Annotated[str, typer.Argument(help=f"{', '.join(TASKS)}.", autocompletion=_offer)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the files.")] = Path("."),
) -> None:
    """Write a commented run.toml to start from, with data, and code where the task has some.

    They run unchanged, on the model that ships with strop; then replace them by your own.
    """
    if task not in TASKS:
        listed = ", ".join(f"{name} ({what})" for name, what in TASKS.items())
        raise UserError(f"no kind of task {task!r}{nearest(task, TASKS)}; there are {listed}")
    files = sorted(path for path in (TEMPLATES / task).iterdir() if path.is_file())
    for path in (*files, SCHEMA):
        if (out / path.name).exists() and path != SCHEMA:
            raise UserError(f"{out / path.name} already exists: give another folder with --out")
    kept = f"some files are in {out}: remove them and run the command again"
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
    print(f"wrote {out}; start a run's file with the line: #:schema {out}")
