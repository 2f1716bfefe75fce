"""The run's model and its engine, made from the settings of a run."""

import shutil
from pathlib import Path
from typing import Any

import torch

from strop.engines.base import Engine
from strop.engines.open import EngineSettings
from strop.engines.weights_folder import FAILURES
from strop.head.head import check_head
from strop.method.engine_needs import check_whole
from strop.support import garbage_collection
from strop.support.errors import UserError, first_line
from strop.support.writing import check_room, writing
from strop.training.learner import adapters, models
from strop.training.learner.adapters import Lora
from strop.training.learner.models import Loaded
from strop.training.learner.policy import PASS_TOKENS
from strop.training.parallel.ranks import ALONE, Ranks
from strop.training.record import checkpoint
from strop.training.settings.config import RunConfig
from strop.training.settings.sections import ModelSettings


def device_of(name: str) -> str:
    """The device to train on; "auto" takes a GPU where there is one. Raises UserError."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.empty(0, device=name).device.type
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"model.device = {name!r} cannot be used here: {first_line(error)}"
        ) from error
    if kind not in PASS_TOKENS:
        raise UserError(
            f"model.device = {name!r}: strop trains on {' and '.join(PASS_TOKENS)} alone"
        )
    return name


def load_model(
    config: RunConfig, source: str = "", weights: bool = True, ranks: Ranks = ALONE,
    given: Loaded | None = None,
) -> Loaded:  # fmt: skip
    """The run's model and tokenizer; its head is checked. Raises UserError.

    source: a checkpoint of the run, or any model or adapter, to load in place of the start.
    weights: False loads only the sizes and the tokenizer. ranks: the processes of a run, each with
    a device of its own. given: the model, if it is in memory already.
    """
    settings = config.model
    if config.engine.trains:
        if given is not None or not ranks.alone:
            raise UserError(
                f"engine.kind={config.engine.kind} has the model elsewhere, for one process: give "
                "its name, and train with one"
            )
        return config.engine.load(config, source)
    names = config.roles.trained if config.roles.play else ()
    if names and not settings.lora_rank:
        raise UserError("roles.play trains adapters: give model.lora_rank, such as 16")
    name, lora, adapter = source or settings.name, None, ""
    if source not in ("", settings.name):
        names = _several(names, Path(source))
    if names and source not in ("", settings.name):
        name, adapter = settings.name, source
    elif source and adapters.is_adapter(source):
        adapter = source
        name = adapters.base_of(source) if settings.name == source else settings.name
    elif settings.lora_rank and (names or not source):
        lora = Lora(settings.lora_rank, settings.lora_alpha, settings.lora_targets)
    if not weights:
        tokenizer = models.tokenizer_of(name, settings.chat_template)
        return Loaded(models.skeleton(name), tokenizer, name)
    options: dict[str, Any] = {
        "device": ranks.device(device_of(settings.device)),
        "gradient_checkpointing": settings.gradient_checkpointing,
        "chat_template": settings.chat_template,
        "lora": lora,
        "adapter": adapter,
        "names": names,
        "frozen": config.roles.frozen if names else {},
        "onednn": settings.onednn,
        "use_liger_kernel": settings.use_liger_kernel,
        "seed": config.seed,
    }
    if given is not None:
        _check_own(settings, given)
        loaded = models.ready(given, **options)
    else:
        loaded = models.load(name, dtype=settings.dtype, attention=settings.attention, **options)
    garbage_collection.loaded()
    check_head(loaded.model)
    return loaded


def _check_own(settings: ModelSettings, given: Loaded) -> None:
    """Raise UserError for another dtype or attention than that of a model in memory."""
    own = {"dtype": str(given.model.dtype).removeprefix("torch."), "attention": given.attention}
    for name, value in own.items():
        if value is not None and value != getattr(settings, name):
            raise UserError(
                f"model.{name}={getattr(settings, name)}: the model that was given has {value}, "
                f"which it keeps; load it so, or leave model.{name} out"
            )


def _several(names: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """The names, where the folder is a checkpoint of these adapters; none for another model.

    Raises UserError for a checkpoint that has others.
    """
    missing = [name for name in names if not adapters.is_adapter(folder / name)]
    if missing and checkpoint.is_checkpoint(folder) and len(missing) < len(names):
        raise UserError(f"{folder} has no adapter {missing[0]!r}, which roles.play names")
    return () if missing else names


def open_engine(config: RunConfig, settings: EngineSettings, loaded: Loaded) -> Engine:
    """The run's engine, by its settings or others of the same kind. Raises UserError."""
    engine = settings.open(
        loaded.model if settings.needs_model else None,
        loaded.tokenizer,
        num_slots=config.training.num_slots,
        context_length=loaded.context,
    )
    check_whole(engine, settings.kind)
    return engine


def write_model(model: Loaded, folder: Path, page: str = "") -> None:
    """Write a model into a new folder, whole or not at all. page: its README, if any.

    Raises RunStopped on a full disk.
    """
    needed = model.num_bytes()
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    check_room(folder.parent, f"the model {folder.name}", needed)
    try:
        with writing(folder.parent, f"the model {folder.name}", needed, FAILURES):
            unfinished.mkdir(parents=True)
            model.save(unfinished)
            if page:
                (unfinished / "README.md").write_text(page, encoding="utf-8")
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
