"""A model that a script has loaded: trained in its place, kept in the run's folder as it was."""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from strop._writing import check_room, writing
from strop.errors import UserError
from strop.training.models import DTYPES, Loaded, load, tokenizer_of


def model_of(model: Any, tokenizer: Any, folder: Path) -> tuple[dict[str, Any], Loaded | None]:
    """The settings of a model by its name, or of one in memory and that one itself.

    folder: where the second is saved, so that its run goes on from files alone. Raises UserError.
    """
    if model is None or isinstance(model, str | Path):
        name = str(model or "")
        if tokenizer is None:
            return ({"name": name} if name else {}), None
        _check_tokenizer(tokenizer)
        found = Loaded(load(name or "tiny").model, tokenizer, name)
    else:
        found = in_memory(model, tokenizer)
    check_room(folder.parent, "the model that was given", found.num_bytes())
    with writing(folder.parent, "the model that was given", found.num_bytes(), (OSError,)):
        found.save(folder)
    found.model.name_or_path = str(folder)
    settings = {"name": str(folder), **_facts(found.model)}
    return settings, dataclasses.replace(found, source=str(folder))


def in_memory(model: Any, tokenizer: Any) -> Loaded:
    """A model that is loaded, with its tokenizer, or that of where it is from. Raises UserError."""
    checked = _checked(model)
    name = str(getattr(model, "name_or_path", "") or "")
    if tokenizer is None and not name:
        raise UserError("the model does not say where it is from: give its tokenizer, tokenizer=")
    if tokenizer is not None:
        _check_tokenizer(tokenizer)
    return Loaded(checked, tokenizer_of(name) if tokenizer is None else tokenizer, name)


def _facts(model: Any) -> dict[str, str]:
    """What the settings say of a model that is loaded."""
    settings = {"dtype": _dtype(model), "device": str(model.device)}
    if isinstance(attention := getattr(model.config, "_attn_implementation", None), str):
        settings["attention"] = attention
    return settings


def _checked(model: Any) -> nn.Module:
    """A causal model of transformers. Raises UserError for all else."""
    if hasattr(model, "peft_config"):
        raise UserError(
            "model has adapters already: give the model without them, strop adds its own with "
            "model.lora_rank; or merge them first with merge_and_unload()"
        )
    needed = ("config", "save_pretrained", "get_output_embeddings")
    if not isinstance(model, nn.Module) or not all(hasattr(model, name) for name in needed):
        raise UserError(
            f"model is {type(model).__name__}: give a name, a folder, or a causal model that "
            "transformers has loaded"
        )
    return model


def _check_tokenizer(tokenizer: Any) -> None:
    """Raise UserError for what is no tokenizer of transformers."""
    if not all(hasattr(tokenizer, name) for name in ("save_pretrained", "encode", "decode")):
        raise UserError(
            f"tokenizer is {type(tokenizer).__name__}: give one that transformers has loaded"
        )


def _dtype(model: Any) -> str:
    """The settings' name for the model's numbers. Raises UserError."""
    found: torch.dtype = model.dtype
    for name, dtype in DTYPES.items():
        if dtype == found:
            return name
    raise UserError(f"the model's numbers are {found}: load it as one of {', '.join(DTYPES)}")
