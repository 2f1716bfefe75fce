"""What a tracker is, which there are, and how one is opened.

A new tracker is one file in this folder with a class over `Tracker`, and one line of `TRACKERS`.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from strop.support.errors import UserError

# kind, which is also the name of the package and the extra -> the class that speaks to it
TRACKERS = {
    "tensorboard": "strop.tracking.to_tensorboard:ToTensorboard",
    "wandb": "strop.tracking.to_wandb:ToWandb",
    "trackio": "strop.tracking.to_trackio:ToTrackio",
    "mlflow": "strop.tracking.to_mlflow:ToMlflow",
}


@dataclass(frozen=True)
class RunInfo:
    """What a tracker is told of a run when it begins, or goes on."""

    folder: Path  # the run's own, to write into
    project: str
    name: str
    config: Mapping[str, Any]  # settings and options by their full path
    text: str  # config.toml
    step: int = 0  # that is done; what a tracker has of later ones is no more
    id: str = ""  # that a tracker gave the run before it was broken off; empty: it is new


class Samples(NamedTuple):
    """Some rollouts of a step as a table."""

    columns: list[str]
    rows: list[list[Any]]


class Tracker:
    """A place that a run's numbers are written to; made with what it is told.

    Whatever it raises when it is made is the user's to mend. What it raises later costs the tracker
    alone. All calls but the first come from one other thread, in order.
    """

    def __init__(self, info: RunInfo) -> None:
        self.id = info.id  # what a run that goes on finds its place by

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """A step's metrics, finite ones."""
        raise NotImplementedError

    def samples(self, step: int, samples: Samples) -> None:
        """Some of a step's rollouts."""
        raise NotImplementedError

    def end(self, ok: bool) -> None:
        """Nothing more comes for now; ok: the run did not break off with an error."""
        raise NotImplementedError


def check(kinds: Iterable[str]) -> None:
    """Raise UserError for a tracker whose package is not installed, naming the extra with it."""
    for kind in kinds:
        if importlib.util.find_spec(kind) is None:
            raise UserError(
                f"tracking.to has {kind}, and the package {kind} is not installed: "
                f"pip install 'strop[{kind}]', or leave it out"
            )


def open_tracker(kind: str, info: RunInfo) -> Tracker:
    """The tracker. Raises UserError where it cannot be had."""
    module, _, name = TRACKERS[kind].partition(":")
    try:
        made: Tracker = getattr(importlib.import_module(module), name)(info)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a library's own: no key, no server, no room
        why = " ".join(str(error).split()) or "no reason is given"
        raise UserError(
            f"{kind} cannot be told of the run: {type(error).__name__}: {why}; mend it, or leave "
            f"{kind} out of tracking.to"
        ) from error
    return made
