"""`strop export`: a checkpoint as one plain Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.waiting import loading
from strop.support.errors import UserError
from strop.support.stopping import explained


def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL", help="Run folder, adapter, model folder or name, GGUF file."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Folder to write; it must not exist.")],
    step: Annotated[int, typer.Option(help="Checkpoint of the run; 0: the newest.")] = 0,
    best: Annotated[bool, typer.Option(help="The best checkpoint, by `training.best`.")] = False,
    dtype: Annotated[str, typer.Option(help="Number type; default: the run's.")] = "",
    push: Annotated[
        str, typer.Option(help="USER/MODEL on the Hugging Face hub: send it there, with its page.")
    ] = "",
    private: Annotated[bool, typer.Option(help="With --push: make it a private one.")] = False,
    dry_run: Annotated[
        bool, typer.Option(help="With --push: show what would be sent, and send nothing.")
    ] = False,
) -> None:
    """Write a model that any reader of Hugging Face folders can load.

    Adapters are merged into the weights, and state that only training needs is left out.
    """
    if not push and (private or dry_run):
        raise UserError("--private and --dry-run go with --push USER/MODEL: leave them out")
    from strop.api import hub

    if push:
        hub.check_name(push)
    if push and not dry_run:
        hub.check_token()
    loading(source)
    from strop.api.export import write

    write(source, folder, step, dtype, best, push)
    print(f"{source} is in {folder}")
    if push and dry_run:
        _show(folder, push, private)
    elif push:
        again = f"the model is in {folder}. Send it with: hf upload {push} {folder}"
        with explained(lambda: again):
            print(f"sent to {hub.send(folder, push, private)}")


def _show(folder: Path, name: str, private: bool) -> None:
    """Print what would be sent: the files, then the page."""
    from strop.api.hub import listing

    print(f"would be sent to {name} ({'private' if private else 'public'}):")
    for path, size in listing(folder):
        print(f"  {size:>14,} bytes  {path}")
    print(f"\n{(folder / 'README.md').read_text(encoding='utf-8')}")
