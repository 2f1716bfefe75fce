"""Stages 1 to 4, collecting: draws, rollouts, rewards and curation until nothing more is asked."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from strop import part as parts
from strop.algorithm import Algorithm
from strop.batch import Batch, concatenate
from strop.chains import Chains
from strop.errors import UserError
from strop.part import Curated, Draw
from strop.rollout.commands import THROWN_AWAY, Strategy
from strop.rollout.drive import RolledOut, roll_out
from strop.training.clock import Clock
from strop.training.metrics import reward_metrics

if TYPE_CHECKING:
    from strop.training.world import World


class Collects(Protocol):
    """Gives every step its batch: `Here`, or `apart.Apart`, in another process and ahead."""

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """What can be made ready for a step, so that it loads while the trainer does something."""

    def collect(
        self, world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """The curated batch of a step; state and metrics are those of `chains`."""
        ...

    def renew(self, step: int) -> None:
        """The weights of now are those after `step`."""

    def learnt(self, step: int, batch: Batch) -> None:
        """The step has been trained on this batch."""

    def kept(self, done: int) -> dict[str, Any]:
        """What a checkpoint of step `done` holds of the steps to come, under names of its own."""
        ...

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint held."""

    def close(self) -> None:
        """End what was begun."""


class Here:
    """Collects in this process, when a step asks for it."""

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """Nothing can be made ready."""

    def collect(
        self, world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """The curated batch of a step; state and metrics are those of `chains`."""
        return collector_of(world, algorithm, step, chains, clock).collect(algorithm)

    def renew(self, step: int) -> None:
        """The engine has them."""

    def learnt(self, step: int, batch: Batch) -> None:
        """The parts have learnt from it."""

    def kept(self, done: int) -> dict[str, Any]:
        """Nothing is begun before its step."""
        return {}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Nothing was kept."""

    def close(self) -> None:
        """Nothing was begun."""


def collector_of(
    world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
) -> Collector:
    """What runs the first four stages of a step."""
    about = world.run_columns(algorithm, step)
    return Collector(chains, world.engine, world.pool, world.known, clock, about)


@dataclass
class Collector:
    """Runs the first four stages against an engine; state and metrics are those of `chains`."""

    chains: Chains
    engine: Any
    pool: Sequence[int]
    known: Container[int]  # the same prompts, to look one up
    clock: Any
    run_columns: dict[str, Any]
    drawn: dict[int, int] = field(default_factory=dict)  # draws of each prompt in this step
    first: dict[tuple[int, int], Draw] = field(default_factory=dict)  # of each group in this step
    rewarding: bool = False  # now

    def collect(self, algorithm: Algorithm) -> Batch:
        """One step's curated batch."""
        draws = self.draw(algorithm)
        return self.finish(algorithm, draws, [self._roll_out(algorithm, draws, 0)])

    def finish(
        self, algorithm: Algorithm, draws: tuple[Draw, ...], rolled: Sequence[RolledOut]
    ) -> Batch:
        """A step's curated batch, of the rollouts of its first draws; these may come in pieces."""
        batch = self._received(algorithm, draws, rolled, 0)
        for turn in range(10_000):
            curated, ask = self._curate(algorithm, batch, turn)
            if not ask:
                services, metrics = self.chains.services, self.chains.metrics
                assert services is not None, "a run has services"
                metrics.update(reward_metrics(batch, services.grading.reward_names))
                metrics["data/rollouts_kept"] = float(curated.size("B"))
                self.chains.learn(algorithm.uses(), batch, "observe")
                return curated
            more = self.draw(algorithm, ask, turn + 1) if isinstance(ask, int) else ask
            new = self._roll_out(algorithm, more, turn + 1)
            batch = batch.join(self._received(algorithm, more, [new], turn + 1))
        raise RuntimeError("curation asked for rollouts ten thousand times in one step")

    def draw(
        self, algorithm: Algorithm, num_wanted: int | None = None, turn: int = 0
    ) -> tuple[Draw, ...]:
        """What the samplers draw; num_wanted: of further prompts, None for the step's first."""
        draws: tuple[Draw, ...] = ()
        tracked = self.chains.tracked(algorithm.sampling)
        for use in algorithm.sampling:
            handed = {"pool": self.pool, "num_wanted": num_wanted, "tracked": tracked}
            draws = self.chains.call("sampling", use, None, turn, draws=draws, **handed).value
            self._check(f"sampling: {use.label}", draws)
        numbered = []
        for draw in draws:
            numbered.append(draw._replace(draw=self.drawn.get(draw.uid, 0)))
            self.drawn[draw.uid] = numbered[-1].draw + 1
        return tuple(numbered)

    def _check(self, who: str, draws: tuple[Draw, ...]) -> None:
        """Raise UserError for a draw of a prompt that there is not, or of no rollout."""
        for draw in draws:
            if draw.uid not in self.known:
                raise UserError(
                    f"{who} draws the prompt {draw.uid}, which is none of the "
                    f"{len(self.pool)} training prompts: draw uids of the pool that it is handed"
                )
            if draw.num_rollouts < 1:
                raise UserError(
                    f"{who} gives the prompt {draw.uid} {draw.num_rollouts} rollouts: "
                    "give each draw at least one, or leave it out"
                )

    def strategy(self, algorithm: Algorithm, draws: tuple[Draw, ...], number: int) -> Strategy:
        """The program that rolls these draws out; `number` sets what it draws apart."""
        found: Strategy = self.chains.call(
            "rollout", algorithm.rollout, None, number, draws=draws
        ).value
        return found

    def _roll_out(self, algorithm: Algorithm, draws: tuple[Draw, ...], turn: int) -> RolledOut:
        with self.clock("rollout"):
            strategy = self.strategy(algorithm, draws, turn)
            return roll_out(strategy, self.engine, self.chains.services)

    def _received(
        self, algorithm: Algorithm, draws: tuple[Draw, ...], rolled: Sequence[RolledOut], turn: int
    ) -> Batch:
        """The rollouts of these draws with what is said of them and their rewards."""
        chains, use = self.chains, algorithm.rollout
        batch = concatenate(each.batch for each in rolled)
        for each in rolled:
            if each.state is not None:
                chains.state[f"rollout.{use.label}"] = each.state
        names = sorted({name for use in algorithm.sampling for name in parts.writes(use)})
        said = _said(draws, self.first, batch)
        batch = batch.set(**self.run_columns, **_told(names, said, batch))
        assert chains.services is not None, "a run has services"
        for name, values in _logged(names, said, batch).items():
            chains.services.log.log_rollouts(name, values)
        told = pooled(rolled)
        with self.clock("reward"):
            self.rewarding = True
            batch = chains.telling(told).write("reward", algorithm.reward, batch, turn)
            self.rewarding = False
        self.tell(told, batch.size("B"))
        return batch

    def tell(self, told: dict[str, float], size: int) -> None:
        """Rollouts' and rewards' metrics over all rounds of a step.

        Whole numbers count something and are added up; others are means, by a round's rollouts.
        """
        metrics = self.chains.metrics
        before = metrics.get("data/rollouts_sampled", 0.0)
        for name, value in told.items():
            if isinstance(value, int):
                metrics[name] = metrics.get(name, 0.0) + value
                continue
            old = metrics.get(name, value)
            metrics[name] = (old * before + value * size) / (before + size)
        metrics["data/rollouts_sampled"] = before + size

    def _curate(self, algorithm: Algorithm, batch: Batch, turn: int) -> tuple[Batch, Any]:
        """The curated rows, and what is asked for beside them; then nothing has been dropped."""
        state = self.chains.state
        whole, told, before = batch, dict[str, float](), dict(state)
        chains = self.chains.telling(told)
        for use in algorithm.curation:
            outcome: Curated = chains.call("curation", use, batch, turn).value
            if isinstance(outcome.ask, tuple):
                self._check(f"curation: {use.label}", outcome.ask)
            if outcome.ask:  # earlier parts will see the joined batch anew: undo what they did
                asking = f"curation.{use.label}"
                kept_state = {**before, **({asking: state[asking]} if asking in state else {})}
                state.clear()
                state.update(kept_state)
                return whole, outcome.ask
            kept = batch.keep(outcome.keep_B)
            name = f"data/dropped/{outcome.reason}"
            told[name] = told.get(name, 0.0) + batch.size("B") - kept.size("B")
            batch = kept if outcome.add is None else kept.join(outcome.add)
        self.chains.metrics.update(told)
        return batch, ()


def pooled(rolled: Sequence[RolledOut]) -> dict[str, float]:
    """The metrics of strategies as if they were one: counts added up, others by rollouts."""
    told = dict(rolled[0].metrics)
    sizes = dict.fromkeys(told, rolled[0].batch.size("B"))
    for each in rolled[1:]:
        size = each.batch.size("B")
        for name, value in each.metrics.items():
            if isinstance(value, int):
                told[name] = told.get(name, 0) + value
                continue
            before = sizes.get(name, 0)
            old = told.get(name, value)
            told[name] = (old * before + value * size) / max(before + size, 1)
            sizes[name] = before + size
    if thrown := sum(each.num_thrown_away for each in rolled):
        told[THROWN_AWAY] = thrown
    return told


def _said(draws: tuple[Draw, ...], first: dict[tuple[int, int], Draw], batch: Batch) -> list[Draw]:
    """What the draw of each group says of it, and the first draw of that group before it."""
    found = {}
    for draw in draws:
        group = (draw.uid, draw.draw)
        begun = first.setdefault(group, draw)
        why = draw.why if begun is draw else begun.because(draw.why).why
        found[group] = draw._replace(columns={**begun.columns, **draw.columns}, why=why)
    groups = zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True)
    return [found.get(group, Draw(group[0], 0)) for group in groups]


def _told(names: Iterable[str], said: list[Draw], batch: Batch) -> dict[str, Any]:
    """The columns [B] that samplers write: what a draw says of its rollouts, NaN where nothing.

    Of draws of earlier steps the strategy knows it, and has written it.
    """
    nothing = float("nan")
    return {
        name: torch.tensor([d.columns.get(name, nothing) for d in said])[batch["group_B"]]
        for name in names
        if name not in batch.columns
    }


def _logged(names: Iterable[str], said: list[Draw], batch: Batch) -> dict[str, dict[int, Any]]:
    """The same and the draws' reasons for the files of rollouts: column -> rollout -> value."""
    rollouts = batch["rollout_uid_B"].tolist()
    found: dict[str, dict[int, Any]] = {}
    for name in names:
        values = [None if value != value else value for value in batch[name].tolist()]
        shown = f"draw/{name.rpartition('_')[0]}"
        found[shown] = dict(zip(rollouts, values, strict=True))
    if any(draw.why for draw in said):
        whys = [said[group].why for group in batch["group_B"].tolist()]
        found["draw/why"] = dict(zip(rollouts, whys, strict=True))
    return found
