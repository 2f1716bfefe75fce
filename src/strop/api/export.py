"""`strop.export`: a checkpoint as one plain Hugging Face folder."""

from pathlib import Path

from strop.api import hub
from strop.api.arguments import checked
from strop.api.card import card
from strop.api.folders import path_of
from strop.api.inference import checkpoint_of
from strop.api.messages import messages_in_python
from strop.api.run import Run
from strop.support.errors import UserError
from strop.training.loading import load_model, write_model
from strop.training.record.checkpoint import step_of


@checked
def export(
    source: Run | str | Path,
    folder: str | Path,
    *,
    step: int = 0,
    best: bool = False,
    dtype: str = "",
    push: str = "",
    private: bool = False,
) -> Path:
    """Write a model that any reader of Hugging Face folders can load; returns its folder.

    Adapters are merged into the weights, and state that only training needs is left out. source:
    a run, a run's folder, or a model's folder or name. folder: a new one. step: of the checkpoint
    (0: the newest); best: its best checkpoint by training.best. dtype: of the weights; empty: the
    run's. push: USER/MODEL on the Hugging Face hub, where it is sent with a page about the run;
    private: only people whom you allow can see it there. Raises UserError.
    """
    if isinstance(source, Run):
        source.keep()
        source = source.folder
    elif not isinstance(source, str | Path):
        raise UserError(
            f"source is {type(source).__name__}: give a run, a folder or a model's name; a model "
            "that is loaded writes itself with save_pretrained"
        )
    if private and not push:
        raise UserError("private goes with push='USER/MODEL': leave it out")
    place = path_of(folder, "folder")
    with messages_in_python():
        if push:
            hub.check_name(push)
            hub.check_token()
        write(str(source), place, step, dtype, best, push)
        if push:
            hub.send(place, push, private)
    return place


def write(
    source: str, folder: Path, step: int, dtype: str, best: bool = False, name: str = ""
) -> None:
    """Write the model of a run's checkpoint, or a model, into a new folder. Raises UserError.

    name: on a hub; with a name, a model card is written beside the model.
    """
    if folder.exists():
        raise UserError(f"{folder} exists: give the name of a new folder")
    settings, model = checkpoint_of(source, step, best=best)
    if dtype:
        chosen = settings.model.model_copy(update={"dtype": dtype})
        settings = settings.model_copy(update={"model": chosen})
    run = Path(source) if (Path(source) / "config.toml").is_file() else None
    taken = step_of(Path(model)) if run is not None else 0
    page = card(name, settings, run, taken) if name else ""
    merged = load_model(settings, model).merged()
    write_model(merged, folder, page)
