"""`strop export`: a checkpoint as one plain Hugging Face folder."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from strop.cli.waiting import loading
from strop.errors import UserError


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
    from safetensors import SafetensorError

    from strop._writing import check_room, writing
    from strop.door.evaluating import checkpoint_of
    from strop.training.setup import load_model

    if folder.exists():
        raise UserError(f"{folder} exists: give the name of a new folder")
    settings, model = checkpoint_of(source, step, best=best)
    if dtype:
        chosen = settings.model.model_copy(update={"dtype": dtype})
        settings = settings.model_copy(update={"model": chosen})
    merged = load_model(settings, model).merged()
    needed = merged.num_bytes()
    check_room(folder.parent, f"the model {folder.name}", needed)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    failures = (OSError, RuntimeError, SafetensorError)
    try:
        with writing(folder.parent, f"the model {folder.name}", needed, failures):
            unfinished.mkdir(parents=True)
            merged.save(unfinished)
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"{source} is in {folder}")
