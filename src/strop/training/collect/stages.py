"""Selects the parts of a method that collect, and so run in the collector process."""

from collections.abc import Iterator

from strop.method.algorithm import Algorithm
from strop.method.part import Use

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
