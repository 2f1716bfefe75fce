"""Pass the values of a metric in the steps so far to a part of the next step."""

from collections.abc import Mapping
from dataclasses import dataclass

from strop.method.part import Result, require_one_of


@dataclass(frozen=True)
class CarryMetricForward:
    """A part that compares a number, such as entropy, with its past finds that past in an option.

        first: the metric at the first step, where the option is below 0, else the option
        last: that of the step before
        mean: the mean of all steps so far

    The knob is set from the second step on; before that it is the part's own.

    Reads: metrics (the one named by `metric`), the knob `path`, state.   Writes: the knob `path`.
    Source: arXiv 2509.22576, algorithm 1 (the mean of the entropies so far).
    Differs from the source: no; its average over tokens is that of the metric.
    Nearest part: accumulate_entropy_error, which adds up distances from a target.
    Edges: the state (sum, count) and the knob are in the checkpoint, so a restart loses nothing; a
    step without the metric leaves them as they are.
    """

    # Knob that is set. Default: ours (the part in the recipe epo).
    path: str = "terms.entropy.objective.past"
    # What is carried. Default: ours (the step's mean over policy tokens, nats).
    metric: str = "entropy"
    # "mean", "first" or "last". Default: paper (cumulative mean).
    keep: str = "mean"

    def __post_init__(self) -> None:
        require_one_of(self, "keep", ("mean", "first", "last"))

    @property
    def needs(self) -> frozenset[str]:
        """The step's entropy comes from the engine."""
        return frozenset({"entropy"}) if self.metric == "entropy" else frozenset()

    @property
    def follows(self) -> tuple[str, ...]:
        """The metric that is carried."""
        return (self.metric,)

    @property
    def moves(self) -> tuple[str, ...]:
        """The knob that is set."""
        return (self.path,)

    def init(self) -> dict[str, float]:
        """The initial state: no step has been counted."""
        return {"sum": 0.0, "count": 0.0}

    def __call__(
        self, metrics: Mapping[str, float], state: Mapping[str, float], knobs: Mapping[str, float]
    ) -> Result:
        if self.metric not in metrics:
            return Result({}, dict(state))
        now = float(metrics[self.metric])
        total, count = state["sum"] + now, state["count"] + 1
        own = knobs[self.path]
        first = own if state["count"] or own >= 0 else now
        carried = {"mean": total / count, "first": first, "last": now}[self.keep]
        new = {"sum": total, "count": count}
        return Result({self.path: carried}, new, {"entropy_control/carried": carried})
