"""The one loss kernel: terms and columns in, loss and adjoints of the current columns out.

    loss = - sum_terms coef * sum_t share_T * correction_T * objective_T

Minus the adjoint of `logp_T` is the token weight c_t (share of the average included). Everything
that depends on the whole update (shares, corrections, narrowed masks) is prepared once. The terms
may then run on all rows, on a micro-batch or on a chunk of tokens with the same result, as far as
their declared scope allows.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor

from strop.batch.batch import SIZES, Batch, SizeName, level_of
from strop.batch.columns import CURRENT, is_current
from strop.head.chunk import Distribution
from strop.method import part as parts
from strop.method.algorithm import trained_values
from strop.method.part import Selected, Term
from strop.method.schedule import Schedule
from strop.support.errors import UserError

SCOPES = ("token", "rollout", "update")


def scope_of(terms: Sequence[Term]) -> str:
    """The widest scope among the terms: whose current columns move a token's adjoint."""
    widest = 0
    for term in terms:
        for use in (term.ratio, term.objective):
            if use is not None:
                widest = max(widest, SCOPES.index(getattr(use.part, "scope", "token")))
    return SCOPES[widest]


def is_distribution(term: Term) -> bool:
    """Whether the term's objective needs the whole next-token distribution.

    A term that uses it only as a fallback, as in a padded call, does not need it.
    """
    reads = parts.reads(term.objective)
    return any(read.required and read.column.endswith("_TV") for read in reads)


def current_columns(terms: Sequence[Term]) -> tuple[str, ...]:
    """The current columns that the terms read, in a fixed order.

    The policy's, logp_T always among them, then the critic's for the terms that train it.
    """
    policys = [term for term in terms if term.learner == "policy"]
    wanted = set() if terms and not policys else {"logp_T"}
    for term in policys:
        wanted |= {read.column for _, use in term.uses() for read in parts.reads(use)}
    values = {name for term in terms for name in trained_values(term)}
    numbered = sorted(name for name in wanted if is_current(name) and name not in CURRENT)
    return (*(name for name in CURRENT if name in wanted), *numbered, *sorted(values))


@dataclass
class View:
    """Rows of a batch as a term sees them: float token columns are 0 outside `mask_T`.

    `rows` narrows the token table to a slice (a head chunk); other tables are passed whole.
    `current` overrides columns of the batch.
    """

    batch: Batch
    rows: slice = field(default_factory=lambda: slice(None))
    current: Mapping[str, Tensor] = field(default_factory=dict)
    _seen: dict[str, Tensor] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.current or name in self.batch

    @overload
    def __getitem__(self, name: SizeName) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, name: str) -> Tensor: ...
    def __getitem__(self, name: str) -> Tensor | int:
        if name in SIZES:
            return self.batch[name]
        if name not in self._seen:
            self._seen[name] = self._column(name)
        return self._seen[name]

    def _column(self, name: str) -> Tensor:
        column = self.current[name] if name in self.current else self.batch[name][self._rows(name)]
        if level_of(name) != "T" or name.endswith("_TV") or not column.is_floating_point():
            return column
        mask_T = self.batch["mask_T"][self.rows]
        return torch.where(mask_T, column, column.new_zeros(()))

    def _rows(self, name: str) -> slice | tuple[()]:
        return self.rows if level_of(name) == "T" else ()

    def with_columns(self, **columns: Tensor) -> "View":
        """Returns the same rows with further columns; it keeps the record of what was read."""
        kept = {name: value for name, value in self._seen.items() if name not in columns}
        return View(self.batch, self.rows, {**self.current, **columns}, kept)


@dataclass
class Tally:
    """What the terms reported over the rows of an update: losses, and metrics as (sum, weight)."""

    losses: dict[str, Tensor | float] = field(default_factory=dict)  # tensors, read once at the end
    sums: dict[str, list[Tensor | float]] = field(default_factory=dict)

    def add(self, name: str, total: Tensor | float, weight: Tensor | float) -> None:
        """Add a sum with its weight."""
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] = entry[0] + _wide(total)
        entry[1] = entry[1] + _wide(weight)

    def lose(self, name: str, loss: Tensor) -> None:
        """Add to a term's loss."""
        self.losses[name] = self.losses.get(name, 0.0) + _wide(loss)

    def means(self) -> dict[str, float]:
        """Returns sum / weight of every metric, or 0 without weight. This reads the tensors."""
        return {
            name: float(total) / counted if (counted := float(weight)) else 0.0
            for name, (total, weight) in self.sums.items()
        }


def _wide(value: Tensor | float) -> Tensor | float:
    """Detach and convert to float64 on the device; reading the value would block on the device."""
    return value.detach().double() if isinstance(value, Tensor) else value


def prepare(
    terms: Sequence[Term],
    batch: Batch,
    rng: torch.Generator | None = None,
    tally: Tally | None = None,
) -> Batch:
    """`batch` with each term's constants of this update as columns `<term>:rows_T`, `:share_T`.

    Shares are taken over the whole update, so a later split into micro-batches changes nothing. A
    term's `on` is a selection part, or anything that returns one mask for both.
    """
    for term in terms:
        gradient_T, denominator_T = rows_of(term.learner, batch)
        view = View(batch).with_columns(gradient_T=gradient_T, denominator_T=denominator_T)
        if term.on is not None:
            outcome = parts.call(term.on, view, rng=rng)
            on = outcome.value
            both = on if isinstance(on, Selected) else Selected(on, on, "")
            gradient_T, denominator_T = gradient_T & both[0], denominator_T & both[1]
            _tell(tally, outcome, gradient_T)
            view = view.with_columns(gradient_T=gradient_T, denominator_T=denominator_T)
        average = parts.call(term.average, view)
        _tell(tally, average, gradient_T)
        share_T = average.value
        if term.correction is not None:
            outcome = parts.call(term.correction, view)
            share_T = share_T * outcome.value.detach()
            _tell(tally, outcome, gradient_T)
        new = {f"{term.name}:rows_T": gradient_T, f"{term.name}:count_T": denominator_T}
        batch = batch.set(**new, **{f"{term.name}:share_T": share_T.detach()})
    return batch


def rows_of(learner: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """The tokens [T] that a learner's terms start from: with gradient, and counting in averages.

    The policy's are those that selection kept; a critic's are all scored policy tokens of the
    update.
    """
    if learner == "policy":
        return batch["gradient_T"], batch["denominator_T"]
    rows_T = batch["mask_T"]
    if "scored_B" in batch:
        rows_T = rows_T & batch["scored_B"][batch["rollout_T"]]
    if "update_T" in batch:
        rows_T = rows_T & batch["update_T"]
    return rows_T, rows_T


def objective_of(
    term: Term, view: View, tally: Tally | None, **special: Any
) -> tuple[View, parts.Result]:
    """Returns the objective on a prepared `view`, and the view with the term's log_ratio_T."""
    rows_T = view[f"{term.name}:rows_T"]
    view = view.with_columns(gradient_T=rows_T, denominator_T=view[f"{term.name}:count_T"])
    if term.ratio is not None:
        ratio = parts.call(term.ratio, view)
        _tell(tally, ratio, rows_T)
        view = view.with_columns(log_ratio_T=ratio.value)
    return view, parts.call(term.objective, view, **special)


def term_loss(term: Term, view: View, tally: Tally, **special: Any) -> Tensor:
    """The term's loss over the rows of a prepared `view` [], differentiable in current columns."""
    rows_T = view[f"{term.name}:rows_T"]
    view, outcome = objective_of(term, view, tally, **special)
    objective_T = torch.where(rows_T, outcome.value, outcome.value.new_zeros(()))
    weight_T = torch.where(rows_T, view[f"{term.name}:share_T"], 0).to(objective_T.dtype)
    loss = -number_of(term) * (weight_T * objective_T).sum()
    _tell(tally, outcome, rows_T)
    tally.lose(term.name, loss)
    return loss


def token_parts(term: Term, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
    """Returns the values of the term's parts for each token [T], for inspection.

    `share` is without the correction, which is `weights`; further entries are its metrics.
    """
    bare = dataclasses.replace(term, correction=None)
    view = View(prepare([bare], batch, rng))
    found = {
        "kept": view[f"{term.name}:rows_T"], "counted": view[f"{term.name}:count_T"],
        "share": view[f"{term.name}:share_T"],
    }  # fmt: skip
    ones_T = torch.ones_like(found["share"])
    view, outcome = objective_of(term, view, None, rng=rng)
    found["weights"] = parts.call(term.correction, view).value if term.correction else ones_T
    found["objective"] = outcome.value
    if term.ratio is not None:
        found["log_ratio"] = view["log_ratio_T"]
    shape = ones_T.shape
    metrics = {
        k: v for k, v in outcome.metrics.items() if isinstance(v, Tensor) and v.shape == shape
    }
    return {**metrics, **found}


def _tell(tally: Tally | None, outcome: parts.Result, rows_T: Tensor) -> None:
    """Add a part's metrics, numbers or one per token, over the term's rows."""
    if tally is None:
        return
    for name, value_T in outcome.metrics.items():
        if isinstance(value_T, bool | int | float):
            detached_T = torch.full((), value_T, device=rows_T.device)  # a copy would block
        else:
            detached_T = torch.as_tensor(value_T, device=rows_T.device).detach()
        tally.add(name, torch.where(rows_T, detached_T, 0).sum(), rows_T.sum())


def adjoints(
    terms: Sequence[Term], view: View, columns: Mapping[str, Tensor], tally: Tally, **special: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss [] and dL/d(column) [T] for every current column, on the rows of `view`.

    `columns` are detached values of the current columns on those rows. Distribution terms are left
    to the head (`distribution_objective`).
    """
    leaves = {name: value.detach().requires_grad_() for name, value in columns.items()}
    view = View(view.batch, view.rows, {**view.current, **leaves})
    with torch.enable_grad():
        plain = [term for term in terms if not is_distribution(term)]
        losses = [term_loss(term, view, tally, **special) for term in plain]
        _check_gradients(plain, losses)
        loss = torch.stack(losses).sum() if losses else next(iter(leaves.values())).sum() * 0
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    filled = {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), grads, strict=True)
    }
    return loss.detach(), filled


def _check_gradients(terms: Sequence[Term], losses: Sequence[Tensor]) -> None:
    """Raise UserError for a term whose loss no weight can move."""
    for term, loss in zip(terms, losses, strict=True):
        if not loss.requires_grad:
            raise UserError(
                f"term {term.name}: the objective of {term.objective.label} has no gradient, so it "
                "would train nothing: compute it from log_ratio_T, logp_T or another column of the "
                "current model, without detach(), item() or no_grad() on the way"
            )


def number_of(term: Term) -> float:
    """The term's coefficient in this step."""
    assert not isinstance(term.coef, Schedule), "schedules become numbers before a step"
    return term.coef


def distributions(
    terms: Sequence[Term], view: View, metrics: dict[str, Tensor]
) -> dict[str, Distribution]:
    """The head's columns for the terms that need the whole next-token distribution.

    Named `distribution:<term>`; `distribution_adjoints` gives their factors. A pass fills `metrics`
    with the terms' metrics on all rows, as columns `metric:<term>:<name>`.
    """
    return {
        f"distribution:{t.name}": _distribution(t, view, metrics)
        for t in terms
        if is_distribution(t)
    }


def _distribution(term: Term, view: View, metrics: dict[str, Tensor]) -> Distribution:
    reads = [read.column for read in parts.reads(term.objective) if read.column.endswith("_TV")]

    def objective(rows: slice, logq_TV: Tensor, **others: Tensor) -> Tensor:
        here = View(view.batch, rows, {"logq_TV": logq_TV, **others})
        outcome = parts.call(term.objective, here)
        for name, value_T in outcome.metrics.items():
            empty_T = logq_TV.new_zeros(view.batch["mask_T"].shape[0])
            column_T = metrics.setdefault(f"metric:{term.name}:{name}", empty_T)
            column_T[rows] = torch.as_tensor(value_T).detach().to(column_T)
        return outcome.value

    return Distribution(objective, tuple(name for name in reads if name != "logq_TV"))


def distribution_adjoints(terms: Sequence[Term], view: View) -> dict[str, Tensor]:
    """dL/d(column) [rows] of every column of `distributions`: -coef * share within the rows."""
    found = {}
    for term in terms:
        if is_distribution(term):
            rows_T = view[f"{term.name}:rows_T"]
            share_T = torch.where(rows_T, view[f"{term.name}:share_T"], 0)
            found[f"distribution:{term.name}"] = -number_of(term) * share_T
    return found
