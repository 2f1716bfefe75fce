"""Stages 1 to 4: draws, rollouts, rewards, and curation until it requests no more rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from strop.batch import columns
from strop.batch.batch import Batch, concatenate
from strop.engines.asynchronous import asynchronous
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains
from strop.method.part import Curated, Draw
from strop.parts.rollout.base import (
    TOKENS_DISCARDED,
    RolledOut,
    Strategy,
    named,
    roll_out,
    shared_in,
)
from strop.support.errors import RunStopped, UserError
from strop.support.exits import Exit
from strop.training.learner.step_metrics import Clock, exit_metrics, reward_metrics, tool_metrics
from strop.training.world import BatchCollector, World

# By a column's dtype, its value for a rollout whose draw has none.
MISSING = {"float": float("nan"), "int": -1, "bool": False}
OF_ENVIRONMENTS = {Exit.ENVIRONMENT_CRASH, Exit.UNREACHABLE, Exit.START_FAILED}


class SynchronousCollector(BatchCollector):
    """Collects in this process, when a step requests it."""

    def collect(
        self, world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
    ) -> Batch:
        """Returns the curated batch of a step; `chains` holds state and metrics."""
        return collector_of(world, algorithm, step, chains, clock).collect(algorithm)


def collector_of(
    world: World, algorithm: Algorithm, step: int, chains: Chains, clock: Clock
) -> Collector:
    """Returns the collector of a step."""
    return Collector(world, chains, clock, world.run_columns(algorithm, step))


@dataclass
class Collector:
    """Runs the first four stages of a step; `chains` holds state and metrics."""

    world: World
    chains: Chains
    clock: Clock
    run_columns: dict[str, Tensor]
    drawn: dict[int, int] = field(default_factory=dict)  # draws of each prompt in this step
    first: dict[tuple[int, int], Draw] = field(default_factory=dict)  # of each group in this step
    rewarding: bool = False  # whether rewards are being computed now

    def collect(self, algorithm: Algorithm) -> Batch:
        """Returns the curated batch of one step."""
        draws = self.draw(algorithm)
        return self.finish(algorithm, draws, [self._roll_out(algorithm, draws, 0)])

    def finish(
        self, algorithm: Algorithm, draws: tuple[Draw, ...], rolled: Sequence[RolledOut]
    ) -> Batch:
        """Returns a step's curated batch, given the rollouts of its first draws in pieces."""
        batch = self._received(algorithm, draws, rolled, 0)
        for round_number in range(10_000):
            curated, request = self._curate(algorithm, batch, round_number)
            if not request:
                services, metrics = self.chains.services, self.chains.metrics
                assert services is not None, "a run has services"
                metrics.update(reward_metrics(batch, services.grading.reward_names))
                metrics.update(exit_metrics(batch))
                metrics.update(tool_metrics(batch, services.log.logged.get("turns", {})))
                metrics["data/rollouts_kept"] = float(curated.size("B"))
                self.chains.learn(algorithm.uses(), batch, "observe")
                return curated
            more = (
                self.draw(algorithm, request, round_number + 1)
                if isinstance(request, int)
                else tuple(self._like_first(algorithm, draw) for draw in request)
            )
            new = self._roll_out(algorithm, more, round_number + 1)
            batch = batch.join(self._received(algorithm, more, [new], round_number + 1))
        raise RuntimeError("curation requested rollouts ten thousand times in one step")

    def _like_first(self, algorithm: Algorithm, draw: Draw) -> Draw:
        """Returns a draw of further rollouts with what its group's first one has for strategies."""
        first = self.first.get((draw.uid, draw.draw), draw)
        names = {"prompt_ids"}.union(
            *(getattr(use.part, "carries", ()) for use in algorithm.sampling)
        )
        carried = {name: value for name, value in first.columns.items() if name in names}
        return draw._replace(columns={**carried, **draw.columns})

    def draw(
        self, algorithm: Algorithm, num_wanted: int | None = None, round_number: int = 0
    ) -> tuple[Draw, ...]:
        """Run the samplers. num_wanted: number of further prompts; None for the first draw. Raises
        UserError where they draw nothing, and the strategy keeps no answers to go on with.
        """
        draws: tuple[Draw, ...] = ()
        tracked = self.chains.tracked(algorithm.sampling)
        for use in algorithm.sampling:
            handed = {"pool": self.world.pool, "num_wanted": num_wanted, "tracked": tracked}
            draws = self.chains.call(
                "sampling", use, None, round_number, draws=draws, **handed
            ).value
            self._check(f"sampling: {use.label}", draws)
        if not draws and not hasattr(algorithm.rollout.part, "init"):  # else it may go on with some
            raise UserError(
                f"sampling: {use.label} leaves no draw: a step needs at least one, return a Draw "
                f"of one of the {len(self.world.pool)} prompts that it is handed"
            )
        numbered = []
        for draw in map(_plain, draws):
            numbered.append(draw._replace(draw=self.drawn.get(draw.uid, 0)))
            self.drawn[draw.uid] = numbered[-1].draw + 1
        return tuple(numbered)

    def _check(self, who: str, draws: tuple[Draw, ...]) -> None:
        """Raise UserError for a draw of an unknown prompt or of zero rollouts, or for no draws."""
        if not isinstance(draws, tuple) or not all(isinstance(draw, Draw) for draw in draws):
            raise UserError(f"{who} returned {draws!r:.60}: return a tuple of Draw(uid, number)")
        for draw in draws:
            if draw.uid not in self.world.known:
                raise UserError(
                    f"{who} draws the prompt {draw.uid!r}, which is none of the "
                    f"{len(self.world.pool)} training prompts: draw uids of the pool that it is "
                    "handed"
                )
            if draw.num_rollouts < 1:
                raise UserError(
                    f"{who} gives the prompt {draw.uid} {draw.num_rollouts} rollouts: "
                    "give each draw at least one, or leave it out"
                )

    def strategy(self, algorithm: Algorithm, draws: tuple[Draw, ...], number: int) -> Strategy:
        """Returns the program that rolls these draws out; `number` seeds its random draws."""
        handed = {"draws": draws, "engine": asynchronous(self.world.engine)}
        use = algorithm.rollout
        return named(use, self.chains.call("rollout", use, None, number, **handed).value)

    def _roll_out(
        self, algorithm: Algorithm, draws: tuple[Draw, ...], round_number: int
    ) -> RolledOut:
        with self.clock("rollout"):
            strategy = self.strategy(algorithm, draws, round_number)
            return roll_out(strategy, self.world.engine, self.chains.services)

    def _received(
        self,
        algorithm: Algorithm,
        draws: tuple[Draw, ...],
        rolled: Sequence[RolledOut],
        round_number: int,
    ) -> Batch:
        """Returns the rollouts of these draws with the samplers' columns and the rewards."""
        chains, use = self.chains, algorithm.rollout
        batch = concatenate(each.batch for each in rolled)
        for each in rolled:
            if each.state is not None:
                chains.state[f"rollout.{use.label}"] = each.state
        names = sorted({name for use in algorithm.sampling for name in parts.writes(use)})
        draw_of = _draw_of_each_group(draws, self.first, batch)
        records = columns.of(algorithm.uses())
        missing = {n: MISSING[records[n].dtype if n in records else "float"] for n in names}
        batch = batch.set(**self.run_columns, **_sampler_columns(missing, draw_of, batch))
        assert chains.services is not None, "a run has services"
        for name, values in _logged(names, draw_of, batch).items():
            chains.services.log.log_rollouts(name, values)
        if chains.services.episodes.are_played:
            _check_exits(batch, chains.services.log.logged)
        metrics = pooled(rolled)
        metrics["data/tokens_sampled"] = int(batch["mask_T"].sum()) - shared_in(batch)
        with self.clock("reward"):
            self.rewarding = True
            batch = chains.with_metrics(metrics).write(
                "reward", algorithm.reward, batch, round_number
            )
            self.rewarding = False
        self.add_counts(metrics, batch.size("B"))
        return batch

    def add_counts(self, new: dict[str, float], size: int) -> None:
        """Merge the metrics of a curation round into those of the step.

        Integers are counts and are summed; floats are means, weighted by a round's rollouts.
        """
        metrics = self.chains.metrics
        before = metrics.get("data/rollouts_sampled", 0.0)
        for name, value in new.items():
            if isinstance(value, int):
                metrics[name] = metrics.get(name, 0.0) + value
                continue
            old = metrics.get(name, value)
            metrics[name] = (old * before + value * size) / (before + size)
        metrics["data/rollouts_sampled"] = before + size

    def _curate(
        self, algorithm: Algorithm, batch: Batch, round_number: int
    ) -> tuple[Batch, tuple[Draw, ...] | int]:
        """Returns the curated rows and no request, or all rows and a request for rollouts."""
        state = self.chains.state
        whole, counts, before = batch, dict[str, float](), dict(state)
        chains = self.chains.with_metrics(counts)
        for use in algorithm.curation:
            outcome: Curated = chains.call("curation", use, batch, round_number).value
            if isinstance(outcome.ask, tuple):
                self._check(f"curation: {use.label}", outcome.ask)
            if outcome.ask:  # earlier parts run again on the joined batch: undo their changes
                asking = f"curation.{use.label}"
                kept_state = {**before, **({asking: state[asking]} if asking in state else {})}
                state.clear()
                state.update(kept_state)
                return whole, outcome.ask
            kept = batch.keep(outcome.keep_B)
            name = f"data/dropped/{outcome.reason}"
            counts[name] = counts.get(name, 0.0) + batch.size("B") - kept.size("B")
            batch = kept if outcome.add is None else kept.join(outcome.add)
        self.chains.metrics.update(counts)
        return batch, ()


def _plain(draw: Draw) -> Draw:
    """The draw with Python's own numbers, which checkpoints and tables can hold."""
    chance = None if draw.probability is None else float(draw.probability)
    return draw._replace(uid=int(draw.uid), num_rollouts=int(draw.num_rollouts), probability=chance)


def pooled(rolled: Sequence[RolledOut]) -> dict[str, float]:
    """Merge the metrics of strategies: counts are summed, others averaged over rollouts."""
    metrics = dict(rolled[0].metrics)
    sizes = dict.fromkeys(metrics, rolled[0].batch.size("B"))
    for each in rolled[1:]:
        size = each.batch.size("B")
        for name, value in each.metrics.items():
            if isinstance(value, int):
                metrics[name] = metrics.get(name, 0) + value
                continue
            before = sizes.get(name, 0)
            old = metrics.get(name, value)
            metrics[name] = (old * before + value * size) / max(before + size, 1)
            sizes[name] = before + size
    if discarded := sum(each.num_discarded for each in rolled):
        metrics[TOKENS_DISCARDED] = discarded
    return metrics


def _check_exits(batch: Batch, logged: Mapping[str, Mapping[int, Any]]) -> None:
    """Raise RunStopped where every episode has failed: the environment is at fault."""
    exits = [Exit(number) for number in batch["exit_B"].tolist()] if "exit_B" in batch else []
    why = logged.get("exit_why", {})
    if exits and all(exit in OF_ENVIRONMENTS for exit in exits):
        first = why.get(int(batch["rollout_uid_B"][0]), exits[0].label)
        raise RunStopped(f"all {len(exits)} episodes failed, the first: {first}")


def _draw_of_each_group(
    draws: tuple[Draw, ...], first: dict[tuple[int, int], Draw], batch: Batch
) -> list[Draw]:
    """Returns each group's draw, with the columns and reasons of the group's first draw.

    A group that the strategy has numbered itself has the columns of another draw of its prompt.
    """
    found = {}
    for draw in draws:
        group = (draw.uid, draw.draw)
        earliest = first.setdefault(group, draw)
        why = draw.why if earliest is draw else earliest.because(draw.why).why
        found[group] = draw._replace(columns={**earliest.columns, **draw.columns}, why=why)
    of_prompt = {draw.uid: draw.columns for draw in found.values()}
    groups = zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True)
    return [
        found.get(group) or Draw(group[0], 0, columns=of_prompt.get(group[0], {}))
        for group in groups
    ]


def _sampler_columns(
    missing: Mapping[str, float], draw_of: list[Draw], batch: Batch
) -> dict[str, Tensor]:
    """Returns the columns [B] that samplers write; `missing`: their values where a draw has none.

    For draws of earlier steps the strategy has written these columns itself.
    """
    return {
        name: torch.tensor([draw.columns.get(name, nothing) for draw in draw_of])[batch["group_B"]]
        for name, nothing in missing.items()
        if name not in batch.columns
    }


def _logged(names: Iterable[str], draw_of: list[Draw], batch: Batch) -> dict[str, dict[int, Any]]:
    """Returns these columns, the draws' reasons and chances, by column and rollout, for files."""
    rollouts = batch["rollout_uid_B"].tolist()
    found: dict[str, dict[int, Any]] = {}
    for name in names:
        values = [None if value != value else value for value in batch[name].tolist()]
        shown = f"draw/{name.rpartition('_')[0]}"
        found[shown] = dict(zip(rollouts, values, strict=True))
    if any(draw.why for draw in draw_of):
        whys = [draw_of[group].why for group in batch["group_B"].tolist()]
        found["draw/why"] = dict(zip(rollouts, whys, strict=True))
    if any(draw.probability is not None for draw in draw_of):
        chances = [draw_of[group].probability for group in batch["group_B"].tolist()]
        found["draw/sample_probability"] = dict(zip(rollouts, chances, strict=True))
    return found
