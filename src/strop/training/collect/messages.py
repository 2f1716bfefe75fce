"""Messages between the collector process and the trainer, and which parts of a method collect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from strop.batch.batch import Batch
from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.training.collect.in_flight import Plain

ALIVE = "alive"  # a heartbeat, sent when there is no other message


@dataclass(frozen=True)
class Begin:
    """What a collector process starts with: the state of its parts before the rollouts of `step`.

    folder: where the weights lie; the collector deletes it when the trainer is killed.
    between_tokens: whether new weights are loaded while rollouts are in flight. search: Python's
    module search path. drawn, held: the draws of later steps in `state` and their finished groups,
    both by step. store: folder and owner of the rollout files that parts keep.
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
    """A file with the trained weights of a version; the reader deletes it."""

    version: int
    path: str


@dataclass(frozen=True)
class Trained:
    """The batch of a step after training, for the collecting parts that learn from it."""

    step: int
    batch: Batch


@dataclass(frozen=True)
class Ended:
    """A group of a step whose rollouts have all ended; its rewards arrive with the step."""

    step: int
    group: Plain


@dataclass(frozen=True)
class Collected:
    """A step's curated batch and what the trainer needs to know about its collection.

    state: of the collecting parts after the step. trained: the last step whose trained batch they
    have learned from. waited, worked: idle seconds and all seconds since the previous batch. busy:
    seconds with work, without grading. drawn: the draws of later steps in this state. in_flight:
    the number of draws whose rollouts have not ended.
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
    in_flight: int


@dataclass(frozen=True)
class Broken:
    """The error that ended the process; kind: the class of an error that needs no traceback."""

    text: str
    kind: str = ""


STAGES = ("sampling", "rollout", "reward", "curation")


def is_collected(path: str) -> bool:
    """Returns whether a part belongs to a collecting stage."""
    return path.partition(".")[0] in STAGES


def learns(algorithm: Algorithm) -> bool:
    """Returns whether a collecting part learns from trained batches."""
    return any(hasattr(use.part, "update") for _, use in collected(algorithm))


def collected(algorithm: Algorithm) -> Iterator[tuple[str, Use]]:
    """Returns the parts of the collecting stages, with their paths."""
    return ((path, use) for path, use in algorithm.uses() if is_collected(path))
