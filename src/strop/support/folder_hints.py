"""Hints for a folder that was given in place of the run or the model inside it."""

from pathlib import Path


def run_inside(folder: Path) -> str:
    """The words `, such as RUN` for the first run in a folder, as of a comparison, or none."""
    metrics = (each for at in ("*", "*/*") for each in folder.glob(f"{at}/metrics.jsonl"))
    return _such_as(sorted(each.parent for each in metrics)[:1])


def model_inside(folder: Path) -> str:
    """The words `, such as FOLDER` for the newest checkpoint in a run's folder, or none."""
    places = (each for at in ("step-*", "checkpoints/step-*") for each in folder.glob(at))
    return _such_as(sorted(places)[-1:])


def _such_as(found: list[Path]) -> str:
    return f", such as {found[0]}" if found else ""
