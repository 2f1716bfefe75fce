"""`strop export`: a checkpoint as one plain Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer

from strop.cli.waiting import loading


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
) -> None:
    """Write a model that everything which reads Hugging Face folders can load.

    Adapters are added into the weights. What training alone needs is left out.
    """
    loading(source)
    from strop.door.export import write

    write(source, folder, step, dtype, best)
    print(f"{source} is in {folder}")
