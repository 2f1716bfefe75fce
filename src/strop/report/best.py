"""The best step of a recorded run by `training.best`, and whether it ended for want of another."""

from typing import Any, NamedTuple

import numpy as np

from strop.report.about import parsed
from strop.report.run_folder import Run


class Best(NamedTuple):
    """The number by which steps are compared, the best of them, and validations since then."""

    name: str
    step: int
    value: float
    since: int
    patience: int

    @property
    def ended_early(self) -> bool:
        """Whether as many validations brought nothing better as the run waits for."""
        return 0 < self.patience <= self.since


def best_of(run: Run) -> Best | None:
    """The best step, the first of equal ones; None where a run keeps none, or has none yet."""
    training: Any = parsed(run.config).get("training")
    training = training if isinstance(training, dict) else {}
    name, patience = str(training.get("best", "")), training.get("patience")
    steps, values = run.series(name)
    steps, values = steps[steps > 0], values[steps > 0]
    if not len(steps):
        return None
    at = int(np.argmax(-values if training.get("best_is") == "lowest" else values))
    validated = {
        int(s) for key in run.numbers if key.startswith("eval/") for s in run.series(key)[0]
    }
    since = sum(step > steps[at] for step in validated)
    wait = patience if type(patience) is int else 0
    return Best(name, int(steps[at]), float(values[at]), since, wait)
