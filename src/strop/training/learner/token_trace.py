"""Traces what happens to every token of a step, for `strop inspect`, without changing the step.

A step reports every part of the advantage chain and of the selection, and every update. The effect
of an update on a token is recomputed from the columns that the update has measured: the terms run
again over those columns, without a pass through the model and with separate random draws. One more
pass, over the kept rollouts, measures log-probabilities and entropies that the step does not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import KEPT_AT, Batch
from strop.method import part as parts
from strop.method.algorithm import advantage_of
from strop.method.chains import RngOf
from strop.method.part import Term, Use
from strop.training.learner import kernel
from strop.training.learner.kernel import Tally, View
from strop.training.learner.step_models import StepModels

ROW = "inspect:row_T"  # the token's row in the step's whole batch
MEASURED = {"logp_old_T": "logp_T", "entropy_old_T": "entropy_T"}
LEVELS = {"advantage_T": "", "advantage_K": "turn_T", "advantage_B": "rollout_T"}
MARKS = ("clip_ratio/region_mean", "clip_ratio/covariance_mean")  # a bound's own, 1 where it held


class Spectator:
    """Observes a step; the step is the same without it."""

    def after(self, stage: str, use: Use, batch: Batch) -> None:
        """Called when a part has written columns, or selected tokens."""

    def begin(self, batch: Batch, models: StepModels) -> None:
        """Called before the updates on this batch; its column `ROW` has its tokens' indices."""

    def pushed(self, compact: Batch, columns: Mapping[str, Tensor]) -> None:
        """Called when a pass of an update has measured columns on these policy tokens."""

    def updated(self, terms: Sequence[Term], prepared: Batch, rng_of: RngOf, number: int) -> None:
        """Called when all passes of a policy update are over."""


@dataclass
class Tokens(Spectator):
    """Collects columns [T] of a step's batch, and keeps them for at most `limit` rollouts.

    columns: by name, over the whole batch. rollouts_B: the rows that are kept, whole groups in
    order; a first group above the limit is cut. measured: columns of those rows alone.
    """

    limit: int
    columns: dict[str, Tensor] = field(default_factory=dict)
    rollouts_B: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    rows_T: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    measured: dict[str, Tensor] = field(default_factory=dict)

    def after(self, stage: str, use: Use, batch: Batch) -> None:
        """Keep the advantage, or the tokens with gradient, after a part."""
        if stage == "selection":
            self.columns[self._numbered("selection", use)] = batch["gradient_T"]
        written = [name for name in LEVELS if name in parts.writes(use)]
        if stage == "advantage" and written:
            key = LEVELS[written[0]]
            value = batch[written[0]].detach()
            self.columns[self._numbered("advantage", use)] = value[batch[key]] if key else value

    def _numbered(self, stage: str, use: Use) -> str:
        """The name of the next column of a stage: advantage/2 divide_by_group_std."""
        number = 1 + sum(name.startswith(f"{stage}/") for name in self.columns)
        return f"{stage}/{number} {use.label}"

    def begin(self, batch: Batch, models: StepModels) -> None:
        """Choose the rollouts and measure them before the updates."""
        self.rollouts_B = first_groups(batch["group_B"], batch.size("P"), self.limit)
        self.rows_T = segments.rows_of(batch["rollout_T"], self.rollouts_B, batch.size("B"))
        known = models.policy.current
        missing = {n: now for n, now in MEASURED.items() if n not in batch and now in known}
        if missing and self.rollouts_B.numel():
            with torch.random.fork_rng():
                taken = batch.take(self.rollouts_B)
                found = models.columns("current", taken, sorted(missing.values()))
            self.measured = {name: found[now] for name, now in missing.items()}
        size, device = batch.size("T"), batch["turn_T"].device
        for name in ("updates_T", "clipped_T"):
            self.columns[name] = torch.zeros(size, dtype=torch.int64, device=device)

    def pushed(self, compact: Batch, columns: Mapping[str, Tensor]) -> None:
        """Keep the columns that a pass has measured on the policy tokens of a micro-batch."""
        for name, value_T in columns.items():
            self._buffer(f"now:{name}", value_T)[compact[ROW]] = value_T.detach()

    def updated(self, terms: Sequence[Term], prepared: Batch, rng_of: RngOf, number: int) -> None:
        """Compute ratio, gate and weight of the tokens of a policy update."""
        terms = [term for term in terms if not kernel.is_distribution(term)]
        compact = prepared.narrow(prepared["mask_T"])
        if not terms or compact.size("T") == 0:
            return
        row_T, names = compact[ROW], kernel.current_columns(terms)
        now = {name: self.columns[f"now:{name}"][row_T] for name in names}
        fresh = {} if "logp_old_T" in compact else {"logp_old_T": now["logp_T"]}
        view = View(compact, current=fresh)
        found = _weights(terms, view, now, rng_of, number)
        main = next((term for term in terms if term.ratio is not None), terms[0])
        weight_T = found.get(f"weight/{main.name}", found["weight_T"])
        more, clipped_T = _bounded(main, view, now, weight_T, rng_of, number)
        found |= {**more, "logp_T": now["logp_T"]}
        inside_T = compact["update_T"]
        first_T = inside_T & (self.columns["updates_T"][row_T] == 0)
        for name, value_T in found.items():
            self._buffer(name, value_T)[row_T[first_T]] = value_T[first_T]
        last_T = self._buffer("last_log_ratio_T", found["log_ratio_T"])
        last_T[row_T[inside_T]] = found["log_ratio_T"][inside_T]
        self.columns["updates_T"][row_T[inside_T]] += 1
        self.columns["clipped_T"][row_T[inside_T & clipped_T]] += 1

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        """Returns the column of that name over the whole batch, NaN where it has no value."""
        if name not in self.columns:
            size = self.columns["updates_T"].shape[0]
            self.columns[name] = like.new_full((size,), float("nan"))
        return self.columns[name]

    def kept(self, batch: Batch) -> dict[str, Tensor]:
        """All token columns of the kept rollouts: from the batch, measured, and collected."""
        own = {
            name: column
            for name, column in batch.columns.items()
            if name.endswith("_T") and column.dim() == 1 and name not in (ROW, KEPT_AT)
        }
        gathered = {n: c for n, c in self.columns.items() if not n.startswith("now:")}
        if "advantage_T" in own and "advantage_T" in gathered:
            then_T = gathered["advantage_T"]
            gathered["advantage_T"] = torch.where(then_T.isnan(), own["advantage_T"], then_T)
        taken = {name: column[self.rows_T] for name, column in {**own, **gathered}.items()}
        return {**taken, **self.measured}


def numbered(batch: Batch) -> Batch:
    """The batch with the indices of its tokens as the column `ROW`."""
    return batch.set(**{ROW: torch.arange(batch.size("T"), device=batch["turn_T"].device)})


def first_groups(group_B: Tensor, num_groups: int, limit: int) -> Tensor:
    """Rows of the rollouts of the first groups, as many whole ones as `limit` rollouts allow.

    A first group that is larger is cut. The rows come group by group, in order within each.
    """
    size_P = segments.count(group_B, num_groups)
    whole = int((size_P.cumsum(0) <= limit).sum())
    order_B = torch.argsort(group_B, stable=True)
    return order_B[: int(size_P[:whole].sum())] if whole else order_B[:limit]


def _weights(
    terms: Sequence[Term], view: View, now: Mapping[str, Tensor], rng_of: RngOf, number: int
) -> dict[str, Tensor]:
    """Minus the adjoint of logp_T: of all terms together and, if there are several, of each."""

    def weight_of(some: Sequence[Term]) -> Tensor:
        rng = rng_of("objective", number)
        return -kernel.adjoints(some, view, now, Tally(), rng=rng)[1]["logp_T"]

    each = {f"weight/{term.name}": weight_of([term]) for term in terms if len(terms) > 1}
    return {"weight_T": weight_of(terms), **each}


def _bounded(
    term: Term, view: View, now: Mapping[str, Tensor], weight_T: Tensor, rng_of: RngOf, number: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Advantage, ratio, share, gate and coefficient (where it is not 1) of a term, and the tokens
    [T] that its bound clipped.

    gate = weight / (coef * share * advantage * ratio), the factor that the bound leaves; NaN where
    one of the four is 0, and for a bound that reads no advantage of tokens.
    """
    with torch.no_grad():
        rng = rng_of("objective", number)
        seen, outcome = kernel.objective_of(
            term, View(view.batch, current={**view.current, **now}), None, rng=rng
        )
        rows_T, like_T = seen[f"{term.name}:rows_T"], now["logp_T"]
        share_T = torch.where(rows_T, seen[f"{term.name}:share_T"], 0).to(like_T.dtype)
        log_ratio_T = seen["log_ratio_T"] if term.ratio is not None else torch.zeros_like(like_T)
        column = advantage_of(term)
        advantage_T = seen[column].to(like_T.dtype) if column else like_T.new_full((), float("nan"))
        coef = kernel.number_of(term)
        free_T = coef * share_T * advantage_T * log_ratio_T.exp()
        gate_T = torch.where(free_T != 0, weight_T / free_T, float("nan"))
        clipped_T = gate_T == 0
        for name in MARKS:
            if name in outcome.metrics:
                clipped_T = clipped_T | (rows_T & (torch.as_tensor(outcome.metrics[name]) > 0))
    found = {"share_T": share_T, "log_ratio_T": log_ratio_T, "gate_T": gate_T}
    if coef != 1:
        found["coef_T"] = torch.full_like(gate_T, coef)
    return {**found, "advantage_T": advantage_T.expand_as(like_T)}, clipped_T
