"""A cache of values that can be made again."""

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lately(Generic[K, V]):
    """Values by key; all are discarded when their total size would exceed `most`.

    So a long run does not fill the memory with values that it used once.
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self.values: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V], size: Callable[[V], int]) -> V:
        """Returns the value of a key; makes it when it is not cached."""
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
        """Discard all values."""
        self.values.clear()
        self.held = 0
