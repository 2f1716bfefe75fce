"""Log values of a step's rollouts, in addition to their columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RunLog:
    """Columns of the rollout table, by rollout; the next step's first value discards them."""

    step: int = 0
    logged: dict[str, dict[int, Any]] = field(default_factory=dict)
    _logged_at: int = 0  # step of what is in `logged`

    def log_rollouts(self, name: str, values: Mapping[int, Any]) -> None:
        """Keep a column, by rollout, until the next step."""
        if self._logged_at != self.step:
            self.logged, self._logged_at = {}, self.step
        self.logged.setdefault(name, {}).update(values)

    def turn_to(self, step: int, logged: dict[str, dict[int, Any]]) -> None:
        """Write this step's columns into this table from now on."""
        self.step = self._logged_at = step
        self.logged = logged
