"""What the process that collects and the trainer tell each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strop.batch import Batch
from strop.training.under_way import Plain


@dataclass(frozen=True)
class Begin:
    """What a collecting process begins with: the state of its parts, before the rollouts of `step`.

    folder: of the weights, which a killed trainer leaves behind. between_tokens: whether new
    weights are taken while rollouts are under way. search: where Python looks for modules. drawn,
    held: what later steps had drawn in `state`, and groups that had ended, both by step. store:
    folder and owner of the files of rollouts that parts keep.
    """

    config: dict[str, Any]
    step: int
    state: dict[str, Any]
    max_staleness: int
    threads: int
    folder: str
    between_tokens: bool = True
    search: list[str] = field(default_factory=list)
    drawn: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    held: dict[int, list[Plain]] = field(default_factory=dict)
    store: tuple[str, dict[str, int]] | None = None


@dataclass(frozen=True)
class Weights:
    """A file with the trained weights of a version; who reads it deletes it."""

    version: int
    path: str


@dataclass(frozen=True)
class Trained:
    """The batch of a step after it has been trained on, for the parts that learn from it."""

    step: int
    batch: Batch


@dataclass(frozen=True)
class Ended:
    """A group of a step whose rollouts have all ended; its rewards come with the step."""

    step: int
    group: Plain


@dataclass(frozen=True)
class Collected:
    """A step's curated batch and what the step needs of its making.

    state: of the collecting parts after it; trained: the last step that they have seen trained.
    waited, worked: seconds without work, and of all, since the batch before; busy: with work, its
    rewards left out. drawn: what later
    steps have drawn in this state; under_way: draws whose rollouts have not ended.
    """

    step: int
    batch: Batch
    metrics: dict[str, float]
    seconds: dict[str, float]
    state: dict[str, Any]
    trained: int
    logged: dict[str, dict[int, Any]]
    spent: dict[str, float]
    failures: tuple[list[Any], list[Any]]  # of rewards, of requests
    waited: float
    worked: float
    busy: float
    drawn: dict[int, tuple[Any, ...]]
    under_way: int


@dataclass(frozen=True)
class Broken:
    """Why the process ends; user: for people, without a traceback."""

    text: str
    kind: str = ""
