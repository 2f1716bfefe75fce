"""Stage 8, the update: a plan's optimiser steps, each measured where it must be, then applied.

An update is prepared once over its rows (shares, corrections, masks); then, by its widest scope:

- token:   one pass; each head chunk requests the adjoints of its own tokens;
- rollout: a micro-batch (whole rollouts) is measured and applied over the same hidden states;
- update:  all micro-batches are measured first, the terms run once on the flat columns, then every
           micro-batch is pushed with its slice of the adjoints.

The result is the same however the rows are split.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import slow_value
from strop.head.chunk import Head
from strop.method import part as parts
from strop.method.algorithm import Algorithm, advantage_of
from strop.method.chains import Chains, RngOf, plain_numbers
from strop.method.part import LEARNERS, Term, Update, Updates, Use
from strop.support.errors import RunStopped, UserError
from strop.training.learner import kernel
from strop.training.learner.critic import ROW, Critic, CriticInPass
from strop.training.learner.kernel import Tally, View
from strop.training.learner.policy import AdjointsOf, Policy
from strop.training.learner.routing import MISMATCH
from strop.training.learner.step_metrics import (
    compare_with_sampler,
    critic_metrics,
    effective_share,
)
from strop.training.learner.step_models import StepModels, refresh, spread
from strop.training.learner.token_trace import Spectator, numbered
from strop.training.parallel.ranks import Ranks


@dataclass
class GatheredColumns:
    """The columns that the passes of all processes have measured on the policy tokens of a batch.

    Every process then computes the same losses and metrics from them.
    """

    batch: Batch
    columns: dict[str, Tensor] = field(default_factory=dict)

    def put(self, columns: Mapping[str, Tensor], rows: Tensor, counts: bool) -> None:
        """Keep what a pass of this process has measured at these rows of tokens."""
        for name, value in columns.items():
            if name not in self.columns:
                self.columns[name] = value.new_zeros(self.batch.size("T"))
            if counts:
                self.columns[name][rows] = value.detach()

    def all(self, ranks: Ranks) -> tuple[Batch, dict[str, Tensor]]:
        """The policy tokens and their columns, of all processes."""
        mask_T = self.batch["mask_T"]
        found = ranks.total(self.columns)
        return self.batch.narrow(mask_T), {name: found[name][mask_T] for name in found}


def silenced(adjoints_of: AdjointsOf) -> AdjointsOf:
    """Returns the same adjoints, all 0, for a pass that does not count."""

    def silent(rows: slice, columns: dict[str, Tensor]) -> Mapping[str, Tensor]:
        found = adjoints_of(rows, columns)
        return {name: torch.zeros_like(adjoint) for name, adjoint in found.items()}

    return silent


@dataclass
class Learned:
    """The results of a step's updates. effective: effective sample size per token."""

    metrics: dict[str, float] = field(default_factory=dict)
    num_updates: int = 0
    effective: float = 1.0


@dataclass
class Learner:
    """Moves the models of a step by its updates.

    lr: the policy's. rng_of(label, update) gives a fresh generator for a part in an update.
    spectators: observe every update and change nothing.
    """

    models: StepModels
    lr: float
    rng_of: RngOf
    spectators: Sequence[Spectator] = ()

    def learn(self, algorithm: Algorithm, batch: Batch) -> Learned:
        """Run the plan on a batch with advantage_T, gradient_T and denominator_T."""
        if self.spectators:
            batch = numbered(batch)
        for spectator in self.spectators:
            spectator.begin(batch, self.models)
        tally, norms = Tally(), Tally()
        learned, asked = Learned(), dict.fromkeys((term.name for term in algorithm.terms), 0)
        of_policy = 0
        plan = algorithm.plan
        assert plan is not None
        updates, sent = Chains(self.rng_of).call("plan", plan, batch).value, None
        while (update := _next(plan, updates, sent, batch, learned)) is not None:
            measured = self._one(algorithm, batch, update, learned.num_updates, tally, norms)
            learned.num_updates += 1
            terms = terms_of(algorithm, update)
            of_policy += any(term.learner == "policy" for term in terms)
            for term in terms:
                asked[term.name] += 1
            sent = (batch, measured)
        means = tally.means()
        learned.effective = effective_share(means)
        learned.metrics |= {
            **means,
            **norms.means(),
            **_losses(tally, algorithm.terms, asked),
            **critic_metrics(algorithm.terms, batch),
            "updates/of_policy": float(of_policy),
        }
        return learned

    def _one(
        self, algorithm: Algorithm, batch: Batch, update: Update, number: int, tally: Tally,
        norms: Tally,
    ) -> dict[str, Tensor]:  # fmt: skip
        """One optimiser step of each adapter; returns the columns that the plan wants measured
        afterwards.
        """
        terms, acted = terms_of(algorithm, update), False
        chosen = rows_of_update(batch, update)
        if plain := [name for name in update.before if name != "advantage_T"]:
            chosen = refresh(chosen, plain, self.models)
        if "advantage_T" in update.before:
            assert update.factor_T is None, "a factor applies to the advantages of the step's start"
            chosen = self._recompute_advantages(algorithm, chosen, number)
        for adapter, own, _ in self.models.policy.shares(chosen):
            with self.models.policy.under(adapter):
                learnt = self._step(algorithm, terms, own, number, tally, norms, adapter)
            acted = acted or learnt
        if not acted:
            return {}
        measured = {name: chosen[name] for name in update.before if name in chosen}
        if update.after:
            measured |= self.models.columns("current", chosen, update.after)
        return _spread(batch, update, measured)

    def _step(
        self, algorithm: Algorithm, terms: list[Term], chosen: Batch, number: int, tally: Tally,
        norms: Tally, adapter: str,
    ) -> bool:  # fmt: skip
        """Step the policy, or one of its adapters where there are several, and the critic; returns
        False where the policy should learn but had no gradient.
        """
        learns = any(term.learner == "policy" for term in terms)
        idle = learns and not bool(chosen["gradient_T"].any())
        norms.add("groups/frac_updates_empty", float(idle), 1.0)
        lr_scale = 1.0
        if idle:
            terms = [term for term in terms if term.learner != "policy"]
        elif learns:
            chains = Chains(self.rng_of)
            for use in algorithm.rates:
                lr_scale *= float(chains.call("rates", use, chosen, number).value)
            for name, value in chains.metrics.items():
                norms.add(name, value, 1.0)
        trained = self.apply(terms, chosen, number, tally)
        for learner in trained:
            model = self._model(learner)
            lr = model.lr_at(chosen) if isinstance(model, Critic) else self.lr * lr_scale
            for name, value in model.update(lr).items():
                norms.add(name, value, 1.0)
                if adapter and name == "grad_norm":
                    norms.add(f"adapters/{adapter}/grad_norm", value, 1.0)
        return not idle

    def _recompute_advantages(self, algorithm: Algorithm, batch: Batch, number: int) -> Batch:
        """Returns the batch with the critic's current values and the advantages computed from them.

        Probes that read a value run again, then the whole advantage chain, on these rows alone.
        Raises UserError for a chain that keeps state.
        """
        reads = algorithm.reads(("probes", "advantage"))
        heads = algorithm.value_columns()
        values = {name for head in heads for name in (head, slow_value(head)) if name in reads}
        batch = refresh(batch, values, self.models)
        again = [
            use for use in algorithm.probes if values & {read.column for read in parts.reads(use)}
        ]
        for use in (*again, *algorithm.advantage):
            if hasattr(use.part, "init"):
                raise UserError(
                    f"{use.label} keeps state, so advantages cannot be recomputed within a step: "
                    "take another plan"
                )
        chains = Chains(lambda path, _: self.rng_of(f"again.{path.split('.')[-1]}", number))
        return chains.credit(algorithm.advantage, chains.write("probes", again, batch))

    def _model(self, learner: str) -> Policy | Critic:
        if learner == "policy":
            return self.models.policy
        assert self.models.critic is not None, "a term trains a critic, but the run has none"
        return self.models.critic

    def apply(self, terms: list[Term], batch: Batch, number: int, tally: Tally) -> list[str]:
        """Add the gradient of the terms over `batch` to the weights' gradients.

        Returns the learners that got a gradient, even 0; a critic without rows gets none.
        """
        trained, beside = [], None
        owns = {name: [term for term in terms if term.learner == name] for name in LEARNERS}
        if all(owns.values()):
            batch = batch.set(**{ROW: batch["index_B"]})
            beside = self._beside(owns["critic"], batch, number, tally)
        for learner, own in owns.items():
            if own and self._apply(self._model(learner), own, batch, number, tally, beside):
                trained.append(learner)
        for name, loss in tally.losses.items():
            if not math.isfinite(float(loss)):
                raise RunStopped(
                    f"the loss of the term {name} is {float(loss)}; look at the step's "
                    "log-probabilities and advantages, or lower training.lr or critic.lr"
                )
        return trained

    def _apply(
        self, model: Policy | Critic, terms: list[Term], batch: Batch, number: int, tally: Tally,
        beside: CriticInPass | None,
    ) -> bool:  # fmt: skip
        """Apply the terms of one model; returns whether it got a gradient."""
        if isinstance(model, Critic) and beside is not None:
            prepared = beside.left()
        else:
            prepared = kernel.prepare(terms, batch, self.rng_of("terms", number), tally)
            prepared = prepared.keep(has_gradient(terms, prepared))
        if prepared.size("B") == 0:
            if isinstance(model, Critic):
                return beside is not None
            model.zero_gradient()  # every advantage is 0, but the optimiser still makes a step
        self.push(model, terms, prepared, number, tally, beside)
        for spectator in self.spectators if isinstance(model, Policy) else ():
            spectator.updated(terms, prepared, self.rng_of, number)
        return True

    def push(
        self, model: Policy | Critic, terms: list[Term], prepared: Batch, number: int,
        tally: Tally, beside: CriticInPass | None = None,
    ) -> None:  # fmt: skip
        """Add the gradient of terms over a prepared batch to the weights' gradients."""
        names = kernel.current_columns(terms)
        scope = kernel.scope_of(terms)
        policy = self.models.policy  # on whose passes a critic's heads stand too
        alone = policy.ranks.alone and not policy.columns_after_gradient
        host = alone and beside is None and isinstance(model, Policy)
        device = prepared["id_T"].device
        laid_out = policy.on_host(prepared) if host else prepared
        turns = policy.turns(laid_out)
        if len(turns) == 1 and alone:  # in the batch's own order: draws do not depend on the split
            turns = [(laid_out["index_B"], True)]
        measured = None
        if scope == "update" and (len(turns) > 1 or not alone):
            measured = self._measure(model, terms, prepared, names, number, tally)
            laid_out = policy.on_host(measured) if host else measured
        collected = GatheredColumns(prepared)
        for index_B, counts in turns:
            micro = laid_out.take(index_B)
            compact = micro.narrow(micro["mask_T"]).to(device)
            if measured is not None:
                adjoints_of = _known(compact, names, terms)
            else:
                adjoints_of = self._adjoints_of(terms, compact, number, tally if alone else Tally())
            adjoints_of = adjoints_of if counts else silenced(adjoints_of)
            whole = measured is None and scope != "token"
            of_terms: dict[str, Tensor] = {}
            if isinstance(model, Critic):
                columns = model.push(micro, names, adjoints_of)
            else:
                columns = model.push(
                    micro, names, adjoints_of, whole, self.models.temperature,
                    distributions=kernel.distributions(terms, View(compact), of_terms),
                    others=self._others(terms, micro),
                    seen=None if beside is None else functools.partial(beside.seen, micro),
                )  # fmt: skip
                columns = {**columns, **of_terms}
            if alone:
                self._reported(model, compact, columns, terms, tally)
            else:
                collected.put(columns, policy.token_rows(prepared, index_B), counts)
        if turns and not alone:
            compact, columns = collected.all(policy.ranks)
            if measured is None:
                self._adjoints_of(terms, compact, number, tally)(slice(None), columns)
            self._reported(model, compact, columns, terms, tally)

    def _reported(
        self, model: Policy | Critic, compact: Batch, columns: dict[str, Tensor],
        terms: list[Term], tally: Tally,
    ) -> None:  # fmt: skip
        """Report what a pass has measured on the policy tokens `compact`."""
        _report(compact, columns, terms, tally)
        for spectator in self.spectators if isinstance(model, Policy) else ():
            spectator.pushed(compact, columns)

    def _beside(
        self, terms: list[Term], batch: Batch, number: int, tally: Tally
    ) -> CriticInPass | None:
        """The critic's update over the states of the policy's passes; None: it runs its own passes.

        It runs its own when terms must see all rows at once, or when processes share the passes.
        """
        if kernel.scope_of(terms) == "update" or not self.models.policy.ranks.alone:
            return None
        prepared = kernel.prepare(terms, batch, self.rng_of("terms", number), tally)
        left_B = has_gradient(terms, prepared)
        if not bool(left_B.any()):
            return None
        asked = functools.partial(self._adjoints_of, terms, number=number, tally=tally)
        critic = self._model("critic")
        assert isinstance(critic, Critic)
        return CriticInPass(critic, kernel.current_columns(terms), prepared, left_B, asked)

    def _measure(
        self, model: Policy | Critic, terms: list[Term], prepared: Batch, names: tuple[str, ...],
        number: int, tally: Tally,
    ) -> Batch:  # fmt: skip
        """The batch with the adjoints of all its rows as columns `adjoint:<name>`."""
        own = "critic" if isinstance(model, Critic) else "current"
        columns = self.models.columns(own, prepared, names)
        mask_T = prepared["mask_T"]
        values = {name: column[mask_T] for name, column in columns.items()}
        found = self._adjoints_of(terms, prepared.narrow(mask_T), number, tally)(
            slice(None), values
        )
        whole = {f"adjoint:{name}": spread(found[name], mask_T, len(mask_T)) for name in names}
        return prepared.set(**whole)

    def _adjoints_of(
        self, terms: list[Term], compact: Batch, number: int, tally: Tally
    ) -> AdjointsOf:
        """Adjoints computed from the columns of the requested rows."""

        def adjoints_of(rows: slice, columns: dict[str, Tensor]) -> Mapping[str, Tensor]:
            fresh = {}
            if "logp_T" in columns and "logp_old_T" not in compact:
                fresh["logp_old_T"] = columns["logp_T"].detach()
            view = View(compact, rows, fresh)
            plain = {name: columns[name] for name in kernel.current_columns(terms)}
            _, found = kernel.adjoints(
                terms, view, plain, tally, rng=self.rng_of("objective", number)
            )
            return {**found, **kernel.distribution_adjoints(terms, View(compact, rows))}

        return adjoints_of

    def _others(self, terms: list[Term], micro: Batch) -> dict[str, tuple[Head, Tensor]]:
        """Other policies' heads and hidden states, for the distribution terms that read them."""
        wanted = {
            name
            for term in terms
            if kernel.is_distribution(term)
            for name in (read.column for read in parts.reads(term.objective))
            if name.endswith("_TV") and name != "logq_TV"
        }
        if not wanted:
            return {}
        reference = self.models.reference
        if wanted != {"logq_ref_TV"} or reference is None:
            raise RuntimeError(f"no policy for {', '.join(sorted(wanted))}")
        with torch.no_grad():
            hidden = reference.hidden(micro)
        return {"logq_ref_TV": (reference.whole_head(self.models.temperature), hidden)}


def _next(
    plan: Use, updates: Updates, sent: tuple[Batch, Mapping[str, Tensor]] | None, batch: Batch,
    learned: Learned,
) -> Update | None:  # fmt: skip
    """The plan's next update; None at its end, where it may return numbers for the log.

    sent: what the plan gets for its last update; None before the first one. Raises UserError for
    anything else than an update.
    """
    try:
        with parts.naming(plan, type(plan.part).__call__, batch):
            update = updates.send(sent)
    except StopIteration as end:
        told = {} if end.value is None else end.value
        if not isinstance(told, Mapping):
            raise UserError(
                f"part {plan.label} returned {type(told).__name__} at its end: return a dict of "
                "metrics, or nothing"
            ) from None
        learned.metrics = plain_numbers(f"part {plan.label}", told)
        return None
    if not isinstance(update, Update) or not isinstance(update.tokens_T, Tensor):
        raise UserError(
            f"part {plan.label} yielded {type(update).__name__}; a part of plan yields an "
            "Update(tokens_T) of strop.method.part"
        )
    unfit = "yields an Update with a mask that does not fit:"
    parts.check(plan, batch, unfit, "mask_T", update.tokens_T)
    return update


def terms_of(algorithm: Algorithm, update: Update) -> list[Term]:
    """Returns the terms of an update, selected by their own name or their learner's. Raises
    UserError for other names.
    """
    if not update.terms:
        return list(algorithm.terms)
    known = dict.fromkeys((*LEARNERS, *(term.name for term in algorithm.terms)))
    if unknown := [name for name in update.terms if name not in known]:
        raise UserError(
            f"plan: an Update is for the term {unknown[0]!r}, which the method does not have; "
            f"there are {', '.join(known)}"
        )
    return [t for t in algorithm.terms if {t.name, t.learner} & set(update.terms)]


def has_gradient(terms: list[Term], prepared: Batch) -> Tensor:
    """Rollouts [B] bool that some term gives a gradient to; the others need no forward pass.

    A rollout whose advantages are all 0 gives none when every term's parts state
    `silent_at_zero_advantage`: half the groups of a well-trained policy. A critic learns from all.
    """
    learns_T = prepared["gradient_T"]
    if terms[0].learner != "policy":
        learns_T = torch.stack([prepared[f"{term.name}:rows_T"] for term in terms]).any(0)
    elif all(_is_silent_at_zero(term) for term in terms):
        speaks = [prepared[advantage_of(term)] != 0 for term in terms]
        learns_T = learns_T & torch.stack(speaks).any(0)
    return segments.count(prepared["rollout_T"], prepared.size("B"), learns_T) > 0


def learning_rollouts(algorithm: Algorithm, batch: Batch) -> Tensor:
    """Rollouts [B] bool that give the policy a gradient; those that selection kept if the method
    trains no policy.
    """
    if terms := [term for term in algorithm.terms if term.learner == "policy"]:
        return has_gradient(terms, batch)
    return segments.count(batch["rollout_T"], batch.size("B"), batch["gradient_T"]) > 0


def _is_silent_at_zero(term: Term) -> bool:
    """Whether a token of advantage 0 gets no gradient from the term."""
    stated = "silent_at_zero_advantage" in parts.facts(term.objective)
    return stated and advantage_of(term) != ""


def rows_of_update(batch: Batch, update: Update) -> Batch:
    """The batch narrowed to the update, its advantage weighted, idle rows dropped."""
    gradient_T = batch["gradient_T"] & update.tokens_T
    denominator_T = batch["denominator_T"] & update.tokens_T
    batch = batch.set(gradient_T=gradient_T, denominator_T=denominator_T, update_T=update.tokens_T)
    if update.factor_T is not None:
        if "advantage_T" not in batch:
            raise UserError(
                "the plan weighs advantage_T, which the advantage chain does not write: end the "
                "chain with a credit part such as spread_evenly, or take another plan"
            )
        batch = batch.set(advantage_T=batch["advantage_T"] * update.factor_T.detach())
    in_update_B = _rollouts_of(batch, update)
    return batch if bool(in_update_B.all()) else batch.keep(in_update_B)


def _rollouts_of(batch: Batch, update: Update) -> Tensor:
    """The rollouts [B] bool that have a token in the update."""
    return segments.count(batch["rollout_T"], batch.size("B"), update.tokens_T) > 0


def _spread(batch: Batch, update: Update, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Columns of the update's rollouts as columns [T] of the whole batch, 0 elsewhere."""
    rows_T = _rollouts_of(batch, update)[batch["rollout_T"]]
    return {
        name: spread(column, rows_T.to(column.device), len(rows_T))
        for name, column in found.items()
    }


def _known(compact: Batch, names: tuple[str, ...], terms: list[Term]) -> AdjointsOf:
    """Adjoints that a measuring pass has found."""

    def adjoints_of(rows: slice, columns: dict[str, Tensor]) -> Mapping[str, Tensor]:
        found = {name: compact[f"adjoint:{name}"][rows] for name in names}
        return {**found, **kernel.distribution_adjoints(terms, View(compact, rows))}

    return adjoints_of


def _report(compact: Batch, columns: Mapping[str, Tensor], terms: list[Term], tally: Tally) -> None:
    """Metrics that need the columns of the pass: sampler against trainer, distribution terms."""
    if "logp_T" in columns:
        compare_with_sampler(compact, columns["logp_T"], tally)
    if MISMATCH in columns:
        differs_T = columns[MISMATCH][~columns[MISMATCH].isnan()]
        tally.add("router/mismatch", differs_T.sum(), differs_T.numel())
        tally.add("router/frac_tokens_mismatched", (differs_T > 0).sum(), differs_T.numel())
    for term in terms:
        name = f"distribution:{term.name}"
        if name in columns:
            weight_T = kernel.distribution_adjoints([term], View(compact))[name]
            tally.lose(term.name, (weight_T * columns[name]).sum())
            rows_T = compact[f"{term.name}:rows_T"]
            tally.add(f"objective/{term.name}", columns[name][rows_T].sum(), rows_T.sum())
            own = f"metric:{term.name}:"
            for metric in (each for each in columns if each.startswith(own)):
                told_T = torch.where(rows_T, columns[metric], 0)
                tally.add(metric.removeprefix(own), told_T.sum(), rows_T.sum())


def _losses(tally: Tally, terms: Sequence[Term], asked: Mapping[str, int]) -> dict[str, float]:
    """Mean loss per update: of each term, of the policy's together and of the critic's.

    asked: the number of updates that included each term.
    """
    each = {name: float(total) / max(asked[name], 1) for name, total in tally.losses.items()}
    critics = {term.name for term in terms if term.learner == "critic"}
    found = {f"loss/{name}": loss for name, loss in each.items()}
    found["loss"] = sum(loss for name, loss in each.items() if name not in critics)
    if critics:
        found["critic/loss"] = sum(loss for name, loss in each.items() if name in critics)
    if "loss/policy" in found:
        found["policy_loss"] = found.pop("loss/policy")
    return found
