"""Runs a step of a recipe on rollouts that another trainer made.

It runs stages 3 to 9 of `training/step.py`, in pieces that the other trainer's hooks call.

    step = hosted.begin(number, num_steps, rollouts)   once a batch of rollouts
    update = step.update(rows, number)                 once an optimiser step, over all its rows
    update.loss(rows, columns)                         once a forward pass: [] with gradient
    hosted.end(step, metrics)                          when the last update is done

Every process of the other trainer runs the same on the rollouts of all processes; only `loss` is
computed on its own rows. The sum of the losses over passes and processes is the update's loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method import part as parts
from strop.method.algorithm import Algorithm, Method, Phases, phase_at
from strop.method.chains import Chains, RngOf, generators, learnable, number_of
from strop.method.part import Curated, Term
from strop.method.services import Graded, Services
from strop.padded.given import Layout
from strop.padded.turns import TurnsInRows
from strop.support.errors import UserError
from strop.training.learner import kernel
from strop.training.learner.kernel import Tally, View
from strop.training.learner.step_metrics import step_metrics
from strop.training.learner.update import learning_rollouts

WEIGHT = "host_weight_T"  # factors of the other trainer on tokens, detached
NEVER = -1  # parent and fork position of a rollout that was not forked


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of a step of all processes, padded; rows of a group need not be adjacent.

    mask_BL: tokens that the policy generated. reward_BM: of each reward function, NaN where it gave
    none. columns: further token columns [B, L] by their name in a batch (logp_old_T,
    entropy_old_T, logp_ref_T, logp_behavior_T, logp_sampler_T, host_weight_T); missing columns of
    the engine are void.
    """

    id_BL: Tensor
    mask_BL: Tensor
    group_B: Tensor
    uid_B: Tensor
    truncated_B: Tensor
    reward_BM: Tensor
    weights: Sequence[float]
    max_length: int
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    def batch(self, step: int, num_steps: int, seed: int) -> Batch:
        """The batch after the rollout stage; `given_B` is each rollout's row in this object."""
        mask_BL, device = self.mask_BL.bool(), self.mask_BL.device
        num = mask_BL.shape[0]
        one_B = torch.ones(num, dtype=torch.int64, device=device)
        group_B = torch.unique(self.group_B, return_inverse=True)[1]
        first_P = segments.first(group_B, segments.count_of(group_B))
        uid_P = self.uid_B[first_P]
        draw_P = (uid_P[:, None] == uid_P).tril(-1).sum(1)  # earlier groups of the same prompt
        void = torch.full(mask_BL.shape, torch.nan, device=device)
        tokens = dict.fromkeys(("logp_behavior_T", "logp_sampler_T", "entropy_behavior_T"), void)
        seeds = [number_of(seed, step, "rollout", row) for row in range(num)]
        columns = {
            **tokens, **self.columns,
            "id_T": self.id_BL, "origin_T": torch.where(mask_BL, 0, 1),
            "version_T": torch.full(mask_BL.shape, step - 1, device=device),
            "group_B": group_B, "uid_P": uid_P, "draw_P": draw_P,
            "rollout_uid_B": torch.tensor(seeds, device=device),
            "given_B": torch.arange(num, device=device),
            "truncated_B": self.truncated_B, "exit_B": one_B * 0,
            "parent_B": one_B * NEVER, "fork_at_B": one_B * NEVER,
            "max_length": torch.tensor(self.max_length, device=device),
            "step": torch.tensor(step, device=device),
            "num_steps": torch.tensor(num_steps, device=device),
        }  # fmt: skip
        return _layout(mask_BL).batch(columns, mask_BL)

    def graded(self) -> Graded:
        """The rewards of the other trainer, in the form of a run's own."""
        scored_B = ~self.reward_BM.isnan().all(1)
        weight_M = torch.tensor(self.weights, dtype=self.reward_BM.dtype).to(self.reward_BM.device)
        outcome_B = (self.reward_BM * weight_M).nansum(1)
        exit_B = torch.zeros_like(scored_B, dtype=torch.int64)
        return Graded(self.reward_BM, outcome_B, scored_B, {}, exit_B)


def _layout(mask_BL: Tensor) -> Layout:
    """A layout with one rollout a row; each run of the policy's tokens is a turn."""
    begins_BL = mask_BL & ~torch.nn.functional.pad(mask_BL, (1, 0))[:, :-1]
    if not bool((begins_BL.sum(1) > 1).any()):
        return Layout(mask_BL)
    turn_BL = torch.where(mask_BL, begins_BL.long().cumsum(1) - 1, -1)
    return TurnsInRows(mask_BL, turn_BL, None)


@dataclass(frozen=True)
class Scores:
    """The services of a hosted step: its rewards, which are already known, and their weights."""

    graded: Graded
    reward_weights: tuple[float, ...]

    @property
    def grading(self) -> "Scores":
        return self

    def grade(self, batch: Batch) -> Graded:
        return self.graded


@dataclass
class Update:
    """One optimiser step: its terms, and its rows with shares and corrections.

    adjoints: gradient of the loss by each current column, if `measure` has computed it for all
    rows; measured: the loss itself in that case.
    """

    terms: tuple[Term, ...]
    prepared: Batch
    rng_of: RngOf
    number: int
    tally: Tally
    adjoints: dict[str, Tensor] | None = None
    measured: Tensor | float = 0.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the current policy that the terms read."""
        return kernel.current_columns(self.terms)

    @property
    def sees_all(self) -> bool:
        """Whether a token's gradient depends on the current columns of all rows."""
        return kernel.scope_of(self.terms) == "update"

    def loss(self, given: Tensor, mask_BL: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        """These rollouts' share [] of the loss, with gradient in `columns` [B, L].

        After `measure`, its value is 0 and its gradient is the measured one.
        """
        nothing = torch.stack([column[:0].sum() for column in columns.values()]).sum()
        place_B, row_B = self._rows(given)
        if not self.terms or not place_B.numel():
            return nothing
        flat = self._flat(place_B, mask_BL, columns)
        if self.adjoints is not None:
            rollout_N = self.prepared["rollout_T"][self.prepared["mask_T"]]
            row_N = segments.rows_of(rollout_N, row_B, self.prepared.size("B"))
            pushed = [(self.adjoints[name][row_N] * flat[name]).sum() for name in self.columns]
            return nothing + torch.stack([each - each.detach() for each in pushed]).sum()
        view = self._view(self.prepared.take(row_B), flat)
        rng = self.rng_of("objective", self.number)
        losses = [kernel.term_loss(term, view, self.tally, rng=rng) for term in self.terms]
        return nothing + torch.stack(losses).sum()

    def measure(self, given: Tensor, mask_BL: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Compute loss and gradient of all rows at once, from the columns [B, L] of all rows."""
        place_B, row_B = self._rows(given)
        flat = self._flat(place_B, mask_BL, columns)
        view = self._view(self.prepared.take(row_B), flat)
        rng = self.rng_of("objective", self.number)
        self.measured, self.adjoints = kernel.adjoints(self.terms, view, flat, self.tally, rng=rng)

    def _rows(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """The positions in `given` of rollouts that are in this update, and their rows in it."""
        same = given[:, None] == self.prepared["given_B"][None]
        place_B, row_B = same.nonzero(as_tuple=True)
        order_B = torch.argsort(row_B)
        return place_B[order_B], row_B[order_B]

    def _flat(
        self, place_B: Tensor, mask_BL: Tensor, columns: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The current columns at the policy's tokens of these rollouts."""
        inside = mask_BL[place_B].bool()
        flat = {name: columns[name][place_B][inside] for name in self.columns}
        wide = {name: torch.promote_types(each.dtype, torch.float32) for name, each in flat.items()}
        return {name: each.to(wide[name]) for name, each in flat.items()}

    def _view(self, batch: Batch, flat: Mapping[str, Tensor]) -> View:
        compact, fresh = batch.narrow(batch["mask_T"]), dict(flat)
        if "logp_old_T" not in compact:
            fresh["logp_old_T"] = flat["logp_T"].detach()
        return View(compact, slice(None), fresh)


@dataclass
class Step:
    """A recipe's step after selection: its rows, its metrics, and the current state of parts."""

    algorithm: Algorithm
    batch: Batch
    chains: Chains
    number: int
    num_steps: int
    phase: dict[str, int]

    @property
    def metrics(self) -> dict[str, float]:
        """The step's metrics so far, except those that the other trainer logs itself."""
        ours = ("selection/", "data/", "advantage/")
        return {
            name: value
            for name, value in self.chains.metrics.items()
            if name.startswith(ours) or name in self.chains.metrics_by
        }

    def advantages(self, num_given: int) -> list[float]:
        """One advantage for each given rollout; 0 for rollouts that curation dropped."""
        all_B = self.batch["advantage_B"].new_zeros(num_given)
        all_B[self.batch["given_B"]] = self.batch["advantage_B"]
        return all_B.tolist()

    def update(self, given: Tensor, number: int) -> Update:
        """The optimiser step over these rollouts; one without gradient has no terms."""
        among_B = torch.isin(self.batch["given_B"], given) & (self.batch["length_B"] > 0)
        chosen = self.batch.keep(among_B)
        chosen = chosen.set(update_T=chosen["mask_T"])
        terms = self.algorithm.terms if bool(chosen["gradient_T"].any()) else ()
        rng_of, tally = self.chains.rng_of, Tally()
        prepared = kernel.prepare(terms, chosen, rng_of("terms", number), tally)
        if WEIGHT in prepared:
            prepared = _weighted(terms, prepared)
        return Update(terms, prepared, rng_of, number, tally)


def _weighted(terms: Sequence[Term], prepared: Batch) -> Batch:
    """The update with the host's factors on the token weights of terms that read the advantage."""
    for term in terms:
        if any(read.column.startswith("advantage_") for read in parts.reads(term.objective)):
            name = f"{term.name}:share_T"
            prepared = prepared.set(**{name: prepared[name] * prepared[WEIGHT]})
    return prepared


@dataclass
class Hosted:
    """A method that another trainer runs; it holds the parts' state from step to step."""

    method: Method
    seed: int
    state: dict[str, Any] = field(default_factory=dict)

    def algorithm(self, step: int, num_steps: int) -> Algorithm:
        """The algorithm of a step, with its scheduled and controlled numbers at that step."""
        phase = phase_at(self.state)["number"]
        knobs = self.method.knobs_in(phase, self.state.get("knobs", {}))
        return self.method.in_phase(phase).with_knobs(knobs).at_step(step, num_steps)

    def begin(self, step: int, num_steps: int, rollouts: Rollouts) -> Step:
        """Run stages 3 to 7; `end` stores the new state."""
        algorithm = self.algorithm(step, num_steps)
        services = cast(Services, Scores(rollouts.graded(), tuple(rollouts.weights)))
        chains = Chains(generators(self.seed, step), services, dict(self.state))
        chains.state.setdefault("knobs", {})
        batch = rollouts.batch(step, num_steps, self.seed)
        batch = chains.write("reward", algorithm.reward, batch)
        batch = _curated(algorithm, chains, batch)
        batch = chains.write("probes", algorithm.probes, batch)
        batch = chains.credit(algorithm.advantage, batch)
        batch = chains.select(algorithm.selection, learnable(batch))
        learns_B, from_rewards = learning_rollouts(algorithm, batch), algorithm.reward_columns()
        chains.metrics.update(step_metrics(batch, learns_B, bool(from_rewards)))
        return Step(algorithm, batch, chains, step, num_steps, phase_at(self.state))

    def end(self, step: Step, metrics: Mapping[str, float]) -> dict[str, float]:
        """Run stage 9: the parts' own updates, controls, the next phase. Returns their metrics."""
        chains = step.chains
        chains.metrics.update(metrics)
        before = set(chains.metrics)
        chains.learn(step.algorithm.uses(), step.batch)
        chains.control(step.algorithm, step.batch, chains.metrics)
        if isinstance(self.method, Phases):
            chains.state["phase"] = self.method.next(
                step.phase, step.number, step.num_steps, chains.metrics
            )
        self.state = chains.state
        return {name: value for name, value in chains.metrics.items() if name not in before}


def on_host(tally: Tally) -> Tally:
    """The same sums as plain numbers, for another process to add to its own."""
    sums: dict[str, list[Tensor | float]] = {
        name: [float(total), float(weight)] for name, (total, weight) in tally.sums.items()
    }
    return Tally({name: float(loss) for name, loss in tally.losses.items()}, sums)


def merged(tallies: Sequence[Tally]) -> Tally:
    """The tallies of several updates or processes added up."""
    total = Tally()
    for tally in tallies:
        for name, (summed, weight) in tally.sums.items():
            total.add(name, summed, weight)
        for name, loss in tally.losses.items():
            total.losses[name] = total.losses.get(name, 0.0) + loss
    return total


def _curated(algorithm: Algorithm, chains: Chains, batch: Batch) -> Batch:
    """The batch without the rollouts that curation drops. Raises UserError if it wants others."""
    whole = batch
    for use in algorithm.curation:
        outcome: Curated = chains.call("curation", use, batch).value
        if outcome.ask or outcome.add is not None:
            raise UserError(
                f"curation: {use.label} wants further rollouts, which this trainer does not "
                "sample: take it out"
            )
        kept = batch.keep(outcome.keep_B)
        chains.metrics[f"data/dropped/{outcome.reason}"] = float(batch.size("B") - kept.size("B"))
        batch = kept
    chains.learn(algorithm.uses(), whole, "observe")
    return batch
