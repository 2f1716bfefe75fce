"""Defines trackers, lists them, and opens them.

A new tracker is one file in this folder with a subclass of `Tracker`, and one line of `TRACKERS`.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from strop.support.errors import UserError

# kind, which is also the name of the package and the extra -> the class that uses it
TRACKERS = {
    "tensorboard": "strop.tracking.to_tensorboard:ToTensorboard",
    "wandb": "strop.tracking.to_wandb:ToWandb",
    "trackio": "strop.tracking.to_trackio:ToTrackio",
    "mlflow": "strop.tracking.to_mlflow:ToMlflow",
}


@dataclass(frozen=True)
class RunInfo:
    """What a tracker receives about a run when it starts or resumes."""

    folder: Path  # of the run, to write into
    project: str
    name: str
    config: Mapping[str, Any]  # settings and options by their full path
    text: str  # config.toml
    step: int = 0  # the last step done; a tracker's data of later steps are void
    id: str = ""  # the id that the tracker gave the run when it started; empty: it is new


class Samples(NamedTuple):
    """Some rollouts of a step as a table."""

    columns: list[str]
    rows: list[list[Any]]


class Tracker:
    """A destination of a run's numbers, constructed with a RunInfo.

    An error in its constructor is for the user to fix. Later errors stop only the tracker. All
    calls except the constructor come from one other thread, in order.
    """

    def __init__(self, info: RunInfo) -> None:
        self.id = info.id  # by which a resumed run finds its earlier data

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Log a step's finite metrics."""
        raise NotImplementedError

    def samples(self, step: int, samples: Samples) -> None:
        """Log some of a step's rollouts."""
        raise NotImplementedError

    def end(self, ok: bool) -> None:
        """Finish for now; ok: the run did not end with an error."""
        raise NotImplementedError


def check(kinds: Iterable[str]) -> None:
    """Raise UserError for a tracker whose package is not installed, naming its extra."""
    for kind in kinds:
        if importlib.util.find_spec(kind) is None:
            raise UserError(
                f"tracking.to has {kind}, and the package {kind} is not installed: "
                f"pip install 'strop[{kind}]', or leave it out"
            )


def open_tracker(kind: str, info: RunInfo) -> Tracker:
    """Open the tracker. Raises UserError when this fails."""
    module, _, name = TRACKERS[kind].partition(":")
    try:
        return getattr(importlib.import_module(module), name)(info)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # any error of the library: no key, server or space
        why = " ".join(str(error).split()) or "no reason is given"
        raise UserError(
            f"{kind} cannot log the run: {type(error).__name__}: {why}; fix it, or leave {kind} "
            "out of tracking.to"
        ) from error
