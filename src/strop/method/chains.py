"""Runs chains of parts: each call gets its part's state and its own generator, and is logged.

The step, the collector, the updates and the padded calls all run their parts through this module.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import torch

from strop.batch.batch import Batch
from strop.catalogue.seams import PLACE_OF
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.part import LR, OUTSIDE, Result, Use
from strop.method.services import Services
from strop.support.errors import UserError

# The seed path of strategies that sample independently while they do nothing of their own.
PLAIN_DRAWS = "rollout.sample_independently"
# (name, number) -> a new generator; equal arguments give equal draws
RngOf = Callable[[str, int], torch.Generator]


def number_of(seed: int, step: int, label: str, update: int = 0) -> int:
    """A 62-bit number that depends on all four arguments and is the same on every machine."""
    text = f"{seed}/{step}/{label}/{update}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2


def generators(seed: int, step: int) -> RngOf:
    """Random generators on the CPU without saved state: each is made from its four numbers.

    So a checkpoint holds no generator's state: a resumed run draws what the unbroken one drew.
    """

    def of(label: str, update: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(number_of(seed, step, label, update))

    return of


# (stage, the part that has just run, the batch after it)
After = Callable[[str, Use, Batch], None]


@dataclass
class Chains:
    """Runs the parts of stages; `state` and `metrics` are filled as they run.

    state: by path, "advantage.track_success". services: the services that parts may request.
    after: called after every part that has written columns or selected tokens. metrics_by: the part
    that gave each metric.
    """

    rng_of: RngOf
    services: Services | None = None
    state: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    after: After | None = None
    metrics_by: dict[str, Use] = field(default_factory=dict)

    def with_metrics(self, metrics: dict[str, float]) -> "Chains":
        """Return the same with another place for metrics; the state stays shared."""
        return Chains(self.rng_of, self.services, self.state, metrics, self.after, self.metrics_by)

    def state_of(self, stage: str, use: Use) -> Any:
        """The state of a part: the saved one, its initial one, or None where it keeps none."""
        path = f"{stage}.{use.label}"
        if path in self.state or not hasattr(use.part, "init"):
            return self.state.get(path)
        return use.part.init()

    def learn(self, uses: Iterable[tuple[str, Use]], batch: Batch, hook: str = "update") -> None:
        """Update the states of the parts that have the hook `update`, or `observe`, by this batch.

        uses: parts with their paths, as `Algorithm.uses` gives them.
        """
        for path, use in uses:
            if hasattr(use.part, hook):
                before = self.state_of(path.split(".")[0], use)
                self.state[path] = parts.update(use, batch, before, hook)

    def tracked(self, sampling: Iterable[Use]) -> Any:
        """The view of prompts by the sampler that tracks them; None where none does."""
        for use in sampling:
            if hasattr(use.part, "view"):
                return use.part.view(self.state_of("sampling", use))
        return None

    def call(
        self, stage: str, use: Use, batch: Batch | None, number: int = 0, **handed: Any
    ) -> Result:
        """Call a part of a stage; each `number` has its own draws. handed: arguments by `seams`."""
        path = f"{stage}.{use.label}"
        seed = path if PLACE_OF[stage].seeded_by_path else use.label
        if getattr(use.part, "acted", ()):  # so that runs differ by its effect, not by the seed
            seed = PLAIN_DRAWS
        outcome = parts.call(
            use,
            batch,
            state=self.state_of(stage, use),
            rng=self.rng_of(seed, number),
            services=self.services,
            **handed,
        )
        if outcome.state is not None:
            self.state[path] = outcome.state
        self.metrics.update(plain_numbers(f"part {use.label}", outcome.metrics))
        for name in outcome.metrics:
            other = self.metrics_by.setdefault(name, use)
            if type(other.part) is not type(use.part):
                raise UserError(
                    f"the parts {other.label} and {use.label} both give the metric {name}, and one "
                    "would replace the other: give them names of their own"
                )
        return outcome

    def write(self, stage: str, uses: Iterable[Use], batch: Batch, number: int = 0) -> Batch:
        """Run all parts of a chain in order and return the batch with their columns."""
        for use in uses:
            batch = parts.write(batch, use, self.call(stage, use, batch, number))
            if self.after is not None:
                self.after(stage, use, batch)
        return batch

    def credit(self, uses: Iterable[Use], batch: Batch) -> Batch:
        """Run the advantage chain, which starts from the reward, and return the batch."""
        return self.write("advantage", uses, batch.set(advantage_B=batch["reward_B"]))

    def first_not_finite(self, uses: Iterable[Use], batch: Batch) -> str:
        """Run the advantage chain again, and say which of its parts is the first to give a number
        that is not finite; empty where none does.
        """
        if not batch["reward_B"].isfinite().all():
            return "reward_B is not finite before the advantage chain"
        batch = batch.set(advantage_B=batch["reward_B"])
        for use in uses:
            batch = self.write("advantage", [use], batch)
            for name in parts.writes(use):
                if not batch[name].isfinite().all():
                    return f"advantage: {use.label} is the first part whose {name} is not finite"
        return ""

    def select(self, uses: Iterable[Use], batch: Batch) -> Batch:
        """Narrow gradient_T and denominator_T by every selection in turn and return the batch.

        Logs how many tokens each removes from the gradient, as a share of the tokens at first.
        """
        whole, dropped = batch["gradient_T"].sum().clamp(min=1), dict[str, float]()
        for use in uses:
            chosen = self.call("selection", use, batch).value
            learnt_T = batch["gradient_T"] & chosen.gradient_T
            lost = (batch["gradient_T"] & ~learnt_T).sum() / whole
            name = f"selection/dropped/{chosen.reason}"  # two parts may give one reason
            dropped[name] = dropped.get(name, 0.0) + float(lost)
            counted_T = batch["denominator_T"] & chosen.denominator_T
            batch = batch.set(gradient_T=learnt_T, denominator_T=counted_T)
            if self.after is not None:
                self.after("selection", use, batch)
        self.metrics |= dropped
        return batch

    def control(
        self,
        algorithm: Algorithm,
        batch: Batch,
        metrics: Mapping[str, float],
        outside: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Run the controls and return the knobs that they move, by path; the state saves them.

        algorithm: as it was in this step; outside: what the knobs outside it were, by default as
        far as the state has them. Raises UserError for a knob that is not among its part's `moves`.
        """
        moved = dict[str, float]()
        had = {**self.state.get("knobs", {}), **(outside or {}), **algorithm.paths()}
        for use in algorithm.control:
            knobs = {path: had[path] for path in use.part.moves if path in had}
            if len(knobs) < len(use.part.moves) and "knobs" in _names(use):
                lacking = next(path for path in use.part.moves if path not in had)
                raise UserError(f"{use.label} reads {lacking}, which only a run has")
            seen = MappingProxyType(metrics)  # what a step logs is no control's to change
            new = self.call("control", use, batch, metrics=seen, knobs=knobs).value
            _check_moved(use, new, algorithm, moved)
            moved |= new
        self.state["knobs"] = {**self.state.get("knobs", {}), **moved}
        return moved


def _check_moved(use: Use, new: object, algorithm: Algorithm, moved: Mapping[str, float]) -> None:
    """Raise UserError, which names the control, for knobs that the next step could not take.

    moved: what the controls before it have set.
    """
    if not isinstance(new, Mapping):
        raise UserError(
            f"control: {use.label} returned {type(new).__name__}: return a dict of the options "
            "that it sets, {path: number}, or an empty one"
        )
    for knob, value in new.items():
        if knob not in use.part.moves:
            raise UserError(f"{use.label} moves {knob}, which is not among its `moves`")
        numbers = value if isinstance(value, tuple) else (value,)
        wrong = [each for each in numbers if not isinstance(each, Real) or math.isnan(each)]
        if wrong or (knob == LR and not 0 <= value < math.inf):
            least = " of at least 0" if knob == LR else ", such as float(value)"
            raise UserError(f"control: {use.label} sets {knob} to {value!r}: give a number{least}")
    inside = {k: v for k, v in {**moved, **new}.items() if k not in OUTSIDE}
    try:
        algorithm.with_knobs(inside)
    except UserError as error:
        raise UserError(f"control: {use.label} sets {', '.join(new)}: {error}") from error


def _names(use: Use) -> set[str]:
    """The parameters of the part's call."""
    return {parameter.name for parameter in parts.parameters(use.part)}


def plain_numbers(who: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a part or a strategy as Python's own numbers, which all files can hold.

    Raises UserError, which begins with `who`, for one that is no number.
    """
    for name, value in metrics.items():
        if not isinstance(value, Real):
            raise UserError(
                f"{who} gives the metric {name} as {type(value).__name__}: give a number, such as "
                "float(value)"
            )
    return {
        name: int(value) if isinstance(value, Integral) else float(value)
        for name, value in metrics.items()
    }


def learnable(batch: Batch) -> Batch:
    """The batch with both masks on every token of the policy in a rollout that is scored or
    pending, before any selection.
    """
    learns_B = batch["scored_B"]
    if "pending_B" in batch:
        learns_B = learns_B | batch["pending_B"]
    learns_T = batch["mask_T"] & learns_B[batch["rollout_T"]]
    return batch.set(gradient_T=learns_T, denominator_T=learns_T)
