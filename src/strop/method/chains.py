"""How a chain of parts runs: each call with its state and its own draws, its metrics kept.

The step, the collector, the updates and the padded front door all run their parts through this.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from strop.batch.batch import Batch
from strop.catalogue.seams import PLACE_OF
from strop.method import part as parts
from strop.method.part import Result, Use
from strop.method.services import Services
from strop.support.errors import UserError

# What the draws of a strategy go by that samples independently while it does nothing of its own.
PLAIN_DRAWS = "rollout.sample_independently"
# (name, number) -> a fresh generator; equal arguments give equal draws
RngOf = Callable[[str, int], torch.Generator]


def number_of(seed: int, step: int, label: str, update: int = 0) -> int:
    """A 62-bit number that depends on all four, the same on every machine."""
    text = f"{seed}/{step}/{label}/{update}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2


def generators(seed: int, step: int) -> RngOf:
    """Random generators on the CPU that need no state: each is made anew from all four.

    So a checkpoint needs no generator's state: a resumed run draws what the unbroken one drew.
    """

    def of(label: str, update: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(number_of(seed, step, label, update))

    return of


# (stage, the part that has just run, the batch after it)
After = Callable[[str, Use, Batch], None]


@dataclass
class Chains:
    """Runs the parts of stages; `state` and `metrics` are filled as they run.

    state: by path, "advantage.track_success". services: what parts may ask for beside columns.
    after: is told of every part that has written columns or selected tokens.
    """

    rng_of: RngOf
    services: Services | None = None
    state: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    after: After | None = None

    def with_metrics(self, metrics: dict[str, float]) -> "Chains":
        """The same with another place for metrics; the state stays shared."""
        return Chains(self.rng_of, self.services, self.state, metrics, self.after)

    def state_of(self, stage: str, use: Use) -> Any:
        """The state of a part: what it had, its first one, or None where it keeps none."""
        path = f"{stage}.{use.label}"
        if path in self.state or not hasattr(use.part, "init"):
            return self.state.get(path)
        return use.part.init()

    def learn(self, uses: Iterable[tuple[str, Use]], batch: Batch, hook: str = "update") -> None:
        """The states of the parts that have an `update`, or `observe`, after it saw this batch.

        uses: with their paths, as `Algorithm.uses` gives them.
        """
        for path, use in uses:
            if hasattr(use.part, hook):
                before = self.state_of(path.split(".")[0], use)
                self.state[path] = parts.update(use, batch, before, hook)

    def tracked(self, sampling: Iterable[Use]) -> Any:
        """What the sampler that keeps track of prompts knows of them; None where none does."""
        for use in sampling:
            if hasattr(use.part, "view"):
                return use.part.view(self.state_of("sampling", use))
        return None

    def call(
        self, stage: str, use: Use, batch: Batch | None, number: int = 0, **handed: Any
    ) -> Result:
        """Call a part of a stage; `number` sets its draws apart, `handed` is what `seams` says."""
        path = f"{stage}.{use.label}"
        seed = path if PLACE_OF[stage].seeded_by_path else use.label
        if getattr(use.part, "acted", ()):  # so that what it does shows, and not another seed
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
        self.metrics.update(outcome.metrics)
        return outcome

    def write(self, stage: str, uses: Iterable[Use], batch: Batch, number: int = 0) -> Batch:
        """The batch with the columns of all parts of a chain, one after another."""
        for use in uses:
            batch = parts.write(batch, use, self.call(stage, use, batch, number))
            if self.after is not None:
                self.after(stage, use, batch)
        return batch

    def credit(self, uses: Iterable[Use], batch: Batch) -> Batch:
        """The batch after the advantage chain, which begins with the reward."""
        return self.write("advantage", uses, batch.set(advantage_B=batch["reward_B"]))

    def select(self, uses: Iterable[Use], batch: Batch) -> Batch:
        """The batch with gradient_T and denominator_T narrowed by every selection in turn.

        What each takes out of the gradient is told as a share of what there was at first.
        """
        whole = batch["gradient_T"].sum().clamp(min=1)
        for use in uses:
            chosen = self.call("selection", use, batch).value
            learnt_T = batch["gradient_T"] & chosen.gradient_T
            lost = (batch["gradient_T"] & ~learnt_T).sum() / whole
            self.metrics[f"selection/dropped/{chosen.reason}"] = float(lost)
            counted_T = batch["denominator_T"] & chosen.denominator_T
            batch = batch.set(gradient_T=learnt_T, denominator_T=counted_T)
            if self.after is not None:
                self.after("selection", use, batch)
        return batch

    def control(
        self, uses: Iterable[Use], batch: Batch, metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """The knobs that controls move, by their paths; the state has them afterwards.

        Raises UserError for one that is none of a part's `moves`.
        """
        moved: dict[str, float] = {}
        for use in uses:
            new = self.call("control", use, batch, metrics=metrics).value
            for knob in new:
                if knob not in use.part.moves:
                    raise UserError(f"{use.label} moves {knob}, which is none of its `moves`")
            moved |= new
        self.state["knobs"] = {**self.state.get("knobs", {}), **moved}
        return moved


def learnable(batch: Batch) -> Batch:
    """The batch with both masks on every token of the policy in a rollout that is scored or
    pending, before any selection.
    """
    learns_B = batch["scored_B"]
    if "pending_B" in batch:
        learns_B = learns_B | batch["pending_B"]
    learns_T = batch["mask_T"] & learns_B[batch["rollout_T"]]
    return batch.set(gradient_T=learns_T, denominator_T=learns_T)
