"""Writes a model in Hugging Face's layout, with its generation settings as they are."""

from pathlib import Path
from typing import Any

GENERATION = "generation_config.json"


def save_model(model: Any, folder: Path, **options: Any) -> None:
    """Write a model into a folder; options: those of transformers' `save_pretrained`.

    transformers refuses to save changed generation settings that contradict each other, such as a
    temperature of a model that answers greedily, and some published models have such settings.
    """
    own = getattr(model, "generation_config", None)
    if own is None:
        model.save_pretrained(folder, **options)
        return
    model.generation_config = type(own)()
    try:
        model.save_pretrained(folder, **options)
    finally:
        model.generation_config = own
    if (folder / GENERATION).exists():  # a model that a service holds writes none
        own.to_json_file(folder / GENERATION, keys_to_pop=["compile_config"])
