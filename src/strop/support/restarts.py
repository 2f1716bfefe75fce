"""How often something that dies is restarted before the run stops."""

from strop.support.errors import RunStopped


class Restarts:
    """Counts the restarts of one thing.

    what: happened to it each time, such as "engine 2 was lost". allowed: restarts in a row, between
    which it did no work.
    """

    def __init__(self, what: str, allowed: int = 2) -> None:
        self.what, self.allowed = what, allowed
        self.in_a_row, self.total = 0, 0

    def worked(self) -> None:
        """It has done work since it was started: what happens next is the first in a row."""
        self.in_a_row = 0

    def count(self, why: str, advice: str = "") -> None:
        """Count one more. Raises RunStopped where it would be one too many in a row."""
        self.in_a_row, self.total = self.in_a_row + 1, self.total + 1
        if self.in_a_row > self.allowed:
            times = f" {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
            raise RunStopped(f"{self.what}{times} ({why}){advice}")
