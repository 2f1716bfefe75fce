"""One grader for several processes: the first runs it and broadcasts its grades."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from strop.environments.tasks import RewardSpec
from strop.rewards.grader import Grader, Grades
from strop.training.parallel.ranks import Ranks

Make = Callable[..., Grader]


class SharedGrader(Grader):
    """A grader that all processes call alike; its results and errors reach all of them."""

    def __init__(
        self, ranks: Ranks, specs: Sequence[RewardSpec], make: Make, **options: Any
    ) -> None:
        self.ranks = ranks
        self.inner: Grader | None = None

        def start() -> tuple[RewardSpec, ...]:
            self.inner = make(specs, **options)
            return self.inner.specs

        self.specs = ranks.from_first(start)

    @property
    def _grader(self) -> Grader:
        assert self.inner is not None, "the first process has the grader"
        return self.inner

    def check(self, columns: Iterable[str]) -> None:
        """Raise UserError when a reward needs a parameter that is none of these columns."""
        self.ranks.from_first(lambda: self._grader.check(columns))

    def grade(self, *rollouts: Any, **more: Any) -> Grades:
        """Score rollouts under every reward, in the first process."""
        return self.ranks.from_first(lambda: self._grader.grade(*rollouts, **more))

    def close(self) -> None:
        """End the worker processes."""
        if self.inner is not None:
            self.inner.close()


def shared_grader(
    ranks: Ranks, specs: Sequence[RewardSpec], make: Make = Grader, **options: Any
) -> Grader:
    """Returns the grader of a run in one or several processes. Raises UserError as `Grader` does.

    make: constructs the grader in the first process.
    """
    return make(specs, **options) if ranks.alone else SharedGrader(ranks, specs, make, **options)
