"""Stages 1 to 4, collecting: draws, rollouts, rewards and curation until nothing more is asked."""

from dataclasses import dataclass, field
from typing import Any

import torch

from strop import part as parts
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.part import Curated, Draw
from strop.rollout.drive import THROWN_AWAY, roll_out
from strop.training.metrics import reward_metrics


@dataclass
class Collector:
    """Runs the first four stages against an engine; state and metrics are those of `chains`."""

    chains: Chains
    engine: Any
    pool: tuple[int, ...]
    clock: Any
    run_columns: dict[str, Any]
    drawn: dict[int, int] = field(default_factory=dict)  # draws of each prompt in this step

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
                return curated
            draws = ask if isinstance(ask, tuple) else self._draw(algorithm, ask, turn + 1)
        raise RuntimeError("curation asked for rollouts ten thousand times in one step")

    def _draw(self, algorithm: Algorithm, num_wanted: int | None, turn: int) -> tuple[Draw, ...]:
        draws: tuple[Draw, ...] = ()
        for use in algorithm.sampling:
            handed = {"pool": self.pool, "num_wanted": num_wanted, "draws": draws}
            draws = self.chains.call("sampling", use, None, turn, **handed).value
        numbered = []
        for draw in draws:
            numbered.append(draw._replace(draw=self.drawn.get(draw.uid, 0)))
            self.drawn[draw.uid] = numbered[-1].draw + 1
        return tuple(numbered)

    def _roll_out(self, algorithm: Algorithm, draws: tuple[Draw, ...], turn: int) -> Batch:
        chains, use = self.chains, algorithm.rollout
        with self.clock("rollout"):
            strategy = chains.call("rollout", use, None, turn, draws=draws).value
            rolled = roll_out(strategy, self.engine, chains.services)
        batch = rolled.batch
        if rolled.state is not None:
            chains.state[f"rollout.{use.label}"] = rolled.state
        if rolled.num_thrown_away:
            before = chains.metrics.get(THROWN_AWAY, 0.0)
            chains.metrics[THROWN_AWAY] = before + rolled.num_thrown_away
        batch = batch.set(**self.run_columns, **_told(algorithm, draws, batch))
        told = dict(rolled.metrics)
        with self.clock("reward"):
            batch = chains.telling(told).write("reward", algorithm.reward, batch, turn)
        self._average(told, batch.size("B"))
        return batch

    def _average(self, told: dict[str, float], size: int) -> None:
        """Rollouts' and rewards' metrics over all rounds of a step, by each round's rollouts."""
        metrics = self.chains.metrics
        before = metrics.get("data/rollouts_sampled", 0.0)
        for name, value in told.items():
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


def _told(algorithm: Algorithm, draws: tuple[Draw, ...], batch: Batch) -> dict[str, Any]:
    """The columns [B] that samplers write: what a draw says of its rollouts, NaN where nothing.

    Of draws of earlier steps the strategy knows it, and has written it.
    """
    names = {name for use in algorithm.sampling for name in parts.writes(use)} - {*batch.columns}
    by_draw = {(draw.uid, draw.draw): draw.columns for draw in draws}
    groups = zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True)
    found = [by_draw.get(group, {}) for group in groups]
    return {
        name: torch.tensor([each.get(name, float("nan")) for each in found])[batch["group_B"]]
        for name in sorted(names)
    }
