"""What ships in the package beside its code: models, the schema, claims."""

from importlib.resources import files
from pathlib import Path

# name of the model -> (folder here, task that it was made for)
SHIPPED = {
    "tiny": ("tiny_countdown", "countdown"),
    "tiny-worked": ("tiny_worked_countdown", "worked_countdown"),
}
SCHEMA = Path(str(files("strop.assets") / "run.schema.json"))  # of a run's TOML file


def model_folder(name: str) -> Path:
    """Folder of a shipped model: weights, configuration and tokenizer."""
    return Path(str(files("strop.assets") / SHIPPED[name][0]))


def task_of(name: str) -> str:
    """The task that a model is trained on where nothing else is said: its own, or Countdown."""
    return SHIPPED.get(name, SHIPPED["tiny"])[1]
