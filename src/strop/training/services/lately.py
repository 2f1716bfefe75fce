"""Things that are made again when they are asked for, and kept for a while."""

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lately(Generic[K, V]):
    """Values by key; all are forgotten when their sizes would come to more than `most`.

    So a run of many steps does not fill the memory with what it has met once.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.values: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V], size: Callable[[V], int]) -> V:
        """The value of a key, made where it is not at hand."""
        if key in self.values:
            return self.values[key]
        value = make()
        new = size(value)
        if self.held + new > self.most:
            self.clear()
        self.held += new
        self.values[key] = value
        return value

    def clear(self) -> None:
        """Forget everything."""
        self.values.clear()
        self.held = 0
