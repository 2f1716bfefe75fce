"""Computes what another method would have done in a step, from the rows of that step.

Nothing is sampled, scored or passed through a model again. The other method's curation, probes,
advantages and masks are computed from the same rollouts; its terms run over the columns that the
updates have measured. Two methods are equal in a step where they draw and keep the same rollouts
and give every column of every update the same adjoint, which determines the gradient. A method
that cannot be computed so counts as different.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import REFRESHED
from strop.catalogue.seams import SERVICES
from strop.method import part as parts
from strop.method.algorithm import Algorithm, advantage_of, around_refresh, wanted_columns
from strop.method.chains import Chains, RngOf, learnable
from strop.method.part import Curated, Term, Update, Use
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.support.errors import UserError
from strop.training.learner import kernel
from strop.training.learner.kernel import Tally, View
from strop.training.learner.step_models import StepModels, spread
from strop.training.learner.token_trace import ROW, Spectator
from strop.training.learner.update import has_gradient, rows_of_update, terms_of

TOLERANCE = 1e-5  # of the largest adjoint
ASKS_FOR_NONE = SERVICES - {"texts"}  # services that would sample, score or write


class Unequal(Exception):
    """The other method differs, or cannot be computed from these rows. args: the stage."""


Passes = list[tuple[Tensor, Mapping[str, Tensor]]]  # rows of tokens, the columns measured on them


@dataclass
class SameRows(Spectator):
    """Records a step's rows while it runs, and then compares methods on them.

    rng_of, state, services, pool: those that the step started with.
    """

    rng_of: RngOf
    state: Mapping[str, Any]
    services: Any
    pool: Sequence[int]
    rewarded: list[tuple[str, Batch]] = field(default_factory=list)  # after each reward part
    trained: Batch | None = None  # the batch of the updates
    passes: Passes = field(default_factory=list)  # of the current update
    updates: dict[int, Passes] = field(default_factory=dict)  # of each update of the policy
    own: list[tuple[Update, dict[str, Tensor]]] = field(default_factory=list)  # see `learns`

    # -- during the step ------------------------------------------------------------------------

    def after(self, stage: str, use: Use, batch: Batch) -> None:
        """Keep the rollouts as each reward part has left them."""
        if stage == "reward":
            self.rewarded.append((use.label, batch))

    def begin(self, batch: Batch, models: StepModels) -> None:
        """Keep the batch that is trained on."""
        self.trained = batch

    def pushed(self, compact: Batch, columns: Mapping[str, Tensor]) -> None:
        """Keep the columns that a pass has measured."""
        measured = {name: column.detach() for name, column in columns.items()}
        self.passes.append((compact[ROW], measured))

    def updated(self, terms: Sequence[Term], prepared: Batch, rng_of: RngOf, number: int) -> None:
        """Assign the passes since the last update to this one."""
        self.updates[number], self.passes = self.passes, []

    # -- after the step -------------------------------------------------------------------------

    def learns(self, own: Algorithm) -> bool:
        """Whether the step's method gave any token a gradient; False where that is not known.

        Call this before any comparison.
        """
        try:
            batch = self._trained()
            for number, update in enumerate(self._plan(own, batch)):
                self.own.append((update, self._adjoints(own, batch, update, number)))
        except Unequal:
            return False
        return any(bool(each.any()) for _, adjoints in self.own for each in adjoints.values())

    def first_difference(
        self, own: Algorithm, other: Algorithm, metrics: Mapping[str, float]
    ) -> str:
        """The stage from which another method differs from the step's own; empty: it does not.

        metrics: those of the step.
        """
        try:
            self._compare(own, other, metrics)
        except Unequal as difference:
            return str(difference)
        except UserError:  # a part of the other lacks a column
            return "columns"
        return ""

    def _compare(self, own: Algorithm, other: Algorithm, metrics: Mapping[str, float]) -> None:
        if _critics(own) != _critics(other):
            raise Unequal("terms")
        if own.rates != other.rates:
            raise Unequal("rates")
        if around_refresh(own)[0] != around_refresh(other)[0]:  # the reference reads other prompts
            raise Unequal("probes")
        self._compare_draws(own, other, metrics)
        chains = self._chains(own, other)
        theirs = self._credited(own, other, self._curated(own, other, chains), chains)
        updates = self._plan(other, theirs)
        if len(updates) != len(self.own):
            raise Unequal("plan")
        for number, ((update, a), its) in enumerate(zip(self.own, updates, strict=True)):
            if not torch.equal(update.tokens_T, its.tokens_T):
                raise Unequal("plan")
            b = self._adjoints(other, theirs, its, number)
            for name in sorted({*a, *b}):
                if _differ(a.get(name), b.get(name)):
                    raise Unequal("loss" if number == 0 else f"loss of update {number + 1}")

    def _chains(self, own: Algorithm, other: Algorithm) -> Chains:
        """Chains of the other method, in which parts that both methods have keep their state."""
        mine, theirs = dict(own.uses()), dict(other.uses())
        same = {path: s for path, s in self.state.items() if mine.get(path) == theirs.get(path)}
        return Chains(self.rng_of, self.services, same)

    def _trained(self) -> Batch:
        if self.trained is None:
            raise Unequal("loss")
        return self.trained

    # -- stages 1 to 4 --------------------------------------------------------------------------

    def _compare_draws(
        self, own: Algorithm, other: Algorithm, metrics: Mapping[str, float]
    ) -> None:
        """Whether the other method would have drawn these rollouts."""
        mine, theirs = own.rollout, other.rollout
        if mine != theirs:
            alike = mine.part.sampling() == theirs.part.sampling()
            if not (alike and _rests(mine, metrics) and _rests(theirs, {})):
                raise Unequal("rollout")
        if own.sampling == other.sampling:
            return
        batch = self._whole(own)
        chains = self._chains(own, other)
        handed = {"pool": self.pool, "num_wanted": None, "tracked": chains.tracked(other.sampling)}
        draws: tuple[parts.Draw, ...] = ()
        for use in _computable("sampling", other.sampling):
            draws = chains.call("sampling", use, None, 0, draws=draws, **handed).value
        sizes = segments.count(batch["group_B"], batch.size("P")).tolist()
        drawn = sorted(zip(batch["uid_P"].tolist(), sizes, strict=True))
        if drawn != sorted((draw.uid, draw.num_rollouts) for draw in draws):
            raise Unequal("sampling")

    def _whole(self, own: Algorithm) -> Batch:
        """All rollouts of the step, where they were drawn in one round in this process."""
        if len(self.rewarded) != len(own.reward) or not self.rewarded:
            raise Unequal("curation")
        return self.rewarded[-1][1]

    def _curated(self, own: Algorithm, other: Algorithm, chains: Chains) -> Batch:
        """The rows that the other method keeps. Raises Unequal if they are not the step's own, in
        its order.
        """
        mine = self._trained()
        if (own.reward, own.curation) == (other.reward, other.curation):
            written = {name for use in own.probes for name in parts.writes(use)}
            written |= {name for use in own.advantage for name in parts.writes(use)}
            return Batch({k: v for k, v in mine.columns.items() if k not in written - REFRESHED})
        batch = self._whole(own)
        pairs = zip(own.reward, other.reward, strict=False)
        same = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])
        if same < len(own.reward):
            if same == 0:
                raise Unequal("reward")
            batch = self.rewarded[same - 1][1]
        batch = chains.write("reward", _computable("reward", other.reward[same:]), batch)
        for use in _computable("curation", other.curation):
            curated: Curated = chains.call("curation", use, batch).value
            if curated.ask or curated.add is not None:
                raise Unequal("curation")
            batch = batch.keep(curated.keep_B)
        if not torch.equal(batch["rollout_uid_B"], mine["rollout_uid_B"].to(batch["group_B"])):
            raise Unequal("curation")
        refreshed = {k: v for k, v in mine.columns.items() if k in REFRESHED or k == ROW}
        return batch.to(mine["group_B"].device).set(**refreshed)

    # -- stages 5 to 8 --------------------------------------------------------------------------

    def _credited(self, own: Algorithm, other: Algorithm, batch: Batch, chains: Chains) -> Batch:
        """The rows with the other method's advantages and masks."""
        if wanted_columns(other) - batch.columns.keys():
            raise Unequal("columns")
        if (own.reward, own.probes) == (other.reward, other.probes):
            written = {name for use in own.probes for name in parts.writes(use)}
            batch = batch.set(**{name: self._trained()[name] for name in written})
        else:
            batch = chains.write("probes", _computable("probes", other.probes), batch)
        batch = chains.credit(_computable("advantage", other.advantage), batch)
        return chains.select(other.selection, learnable(batch))

    def _plan(self, algorithm: Algorithm, batch: Batch) -> list[Update]:
        """The updates of a plan that needs no measured columns."""
        plan = algorithm.plan
        assert plan is not None, "a method has a plan"
        if not hasattr(plan.part, "num_updates"):
            raise Unequal("plan")
        found = list(Chains(self.rng_of).call("plan", plan, batch).value)
        if any(update.before or update.after for update in found):
            raise Unequal("plan")
        return found

    def _adjoints(
        self, algorithm: Algorithm, batch: Batch, update: Update, number: int
    ) -> dict[str, Tensor]:
        """dL/d(column) [T] of the policy's columns in an update, 0 for tokens without."""
        terms = [term for term in terms_of(algorithm, update) if term.learner == "policy"]
        chosen = rows_of_update(batch, update)
        if not terms or not bool(chosen["gradient_T"].any()):
            return {}
        prepared = kernel.prepare(terms, chosen, self.rng_of("terms", number))
        if any(advantage_of(term) not in ("", *prepared.columns) for term in terms):
            raise Unequal("columns")
        compact = prepared.keep(has_gradient(terms, prepared))
        compact = compact.narrow(compact["mask_T"])
        row_T, size = compact[ROW], batch.size("T")
        if not row_T.numel():
            return {}
        now = {
            name: self._measured(number, name, batch)[row_T]
            for name in kernel.current_columns(terms)
        }
        fresh = {} if "logp_old_T" in compact else {"logp_old_T": now["logp_T"]}
        view = View(compact, current=fresh)
        rng = self.rng_of("objective", number)
        _, found = kernel.adjoints(terms, view, now, Tally(), rng=rng)
        for term in terms:
            if kernel.is_distribution(term):
                share_T = kernel.distribution_adjoints([term], view)[f"distribution:{term.name}"]
                found[repr(term.objective)] = share_T
        return {name: spread(value, row_T, size) for name, value in found.items()}

    def _measured(self, number: int, name: str, batch: Batch) -> Tensor:
        """A column [T] as the passes of an update have measured it.

        Tokens without a pass have the earlier log-probability; other columns are 0 there.
        """
        passes = self.updates.get(number, [])
        known = [(rows, columns[name]) for rows, columns in passes if name in columns]
        if not known:
            raise Unequal("columns")
        before = "logp_old_T" if "logp_old_T" in batch else "logp_behavior_T"
        if name == "logp_T" and before in batch:
            full = batch[before].to(known[0][1].dtype, copy=True).nan_to_num()
        else:
            full = known[0][1].new_zeros(batch.size("T"))
        for rows, values in known:
            full[rows] = values
        return full


def _critics(algorithm: Algorithm) -> tuple[Term, ...]:
    return tuple(term for term in algorithm.terms if term.learner != "policy")


def _rests(use: Use, metrics: Mapping[str, float]) -> bool:
    """Whether a strategy has drawn as `sample_independently` does.

    metrics: the part's `acted` names the metrics that are above 0 where it has drawn otherwise.
    """
    if isinstance(use.part, SampleIndependently):
        return True
    acted: tuple[str, ...] = getattr(use.part, "acted", ())
    return bool(acted and metrics) and not any(metrics.get(name, 0.0) for name in acted)


def _computable(stage: str, uses: Sequence[Use]) -> Sequence[Use]:
    """Returns the uses. Raises Unequal where one of them would sample, score or write again."""
    for use in uses:
        if ASKS_FOR_NONE & {parameter.name for parameter in parts.parameters(use.part)}:
            raise Unequal(stage)
    return uses


def _differ(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two columns differ by more than rounding; None: 0 everywhere."""
    given = [each.double() for each in (one, other) if each is not None]
    largest = max(float(each.abs().amax()) if each.numel() else 0.0 for each in given)
    gap = given[0] - given[1] if len(given) == 2 else given[0]
    return bool(gap.numel()) and not float(gap.abs().amax()) <= TOLERANCE * largest
