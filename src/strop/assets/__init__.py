"""The tiny model that ships in the package, and where it lies."""

from importlib.resources import files
from pathlib import Path


def tiny_model_path() -> Path:
    """Folder of the tiny Countdown model: weights, configuration and tokenizer."""
    return Path(str(files("strop.assets") / "tiny_countdown"))
