"""Stages 1 to 4, collecting: draws, rollouts, rewards and curation until nothing more is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from strop import part as parts
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.errors import UserError
from strop.part import Curated, Draw
from strop.rollout.commands import THROWN_AWAY
from strop.rollout.drive import roll_out
from strop.training.clock import Clock
from strop.training.metrics import reward_metrics

if TYPE_CHECKING:
    from strop.training.world import World


class Here:
    """Collects in this process, when a step asks for it; `apart.Apart` does in another, ahead."""

    def begin(self, step: int, state: Mapping[str, Any]) -> None:
        """What can be made ready for a step, so that it loads while the trainer does something."""

    def collect(
        self, world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """The curated batch of a step; state and metrics are those of `chains`."""
        about = world.run_columns(algorithm, step)
        work = Collector(chains, world.engine, world.pool, world.known, clock, about)
        return work.collect(algorithm)

    def renew(self, step: int) -> None:
        """The weights of now are those after `step`."""

    def learnt(self, step: int, batch: Batch) -> None:
        """The step has been trained on this batch."""

    def close(self) -> None:
        """End what was begun."""


@dataclass
class Collector:
    """Runs the first four stages against an engine; state and metrics are those of `chains`."""

    chains: Chains
    engine: Any
    pool: tuple[int, ...]
    known: frozenset[int]  # the same prompts, to look one up
    clock: Any
    run_columns: dict[str, Any]
    drawn: dict[int, int] = field(default_factory=dict)  # draws of each prompt in this step
    first: dict[tuple[int, int], Draw] = field(default_factory=dict)  # of each group in this step

    def collect(self, algorithm: Algorithm) -> Batch:
        """One step's curated batch."""
        draws = self._draw(algorithm, None, 0)
        services = self.chains.services
        assert services is not None, "a run has services"
        batch: Batch | None = None
        for turn in range(10_000):
            new = self._roll_out(algorithm, draws, turn)
            batch = new if batch is None else batch.join(new)
            curated, ask = self._curate(algorithm, batch, turn)
            if not ask:
                metrics = self.chains.metrics
                metrics.update(reward_metrics(batch, services.grading.reward_names))
                metrics["data/rollouts_kept"] = float(curated.size("B"))
                self.chains.learn(algorithm.uses(), batch, "observe")
                return curated
            draws = self._draw(algorithm, ask, turn + 1) if isinstance(ask, int) else ask
        raise RuntimeError("curation asked for rollouts ten thousand times in one step")

    def _draw(self, algorithm: Algorithm, num_wanted: int | None, turn: int) -> tuple[Draw, ...]:
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

    def _roll_out(self, algorithm: Algorithm, draws: tuple[Draw, ...], turn: int) -> Batch:
        chains, use = self.chains, algorithm.rollout
        with self.clock("rollout"):
            strategy = chains.call("rollout", use, None, turn, draws=draws).value
            rolled = roll_out(strategy, self.engine, chains.services)
        batch = rolled.batch
        if rolled.state is not None:
            chains.state[f"rollout.{use.label}"] = rolled.state
        names = sorted({name for use in algorithm.sampling for name in parts.writes(use)})
        said = _said(draws, self.first, batch)
        batch = batch.set(**self.run_columns, **_told(names, said, batch))
        assert chains.services is not None, "a run has services"
        for name, values in _logged(names, said, batch).items():
            chains.services.log.log_rollouts(name, values)
        told = dict(rolled.metrics)
        if rolled.num_thrown_away:
            told[THROWN_AWAY] = rolled.num_thrown_away
        with self.clock("reward"):
            batch = chains.telling(told).write("reward", algorithm.reward, batch, turn)
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
