"""Stages 1 to 4, collecting: draws, rollouts, rewards and curation until nothing more is asked."""

from dataclasses import dataclass, field
from typing import Any

import torch

from strop import part as parts
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.part import Curated, Draw, Use
from strop.rollout.drive import drive
from strop.training.metrics import reward_metrics


@dataclass
class Collected:
    """The curated batch of a step, the new state of its parts, metrics and seconds."""

    batch: Batch
    state: dict[str, Any]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Collector:
    """Runs the first four stages against an engine; keeps the state of their parts by path."""

    services: Any
    engine: Any
    pool: tuple[int, ...]
    rng_of: Any
    clock: Any
    run_columns: dict[str, Any]
    drawn: dict[int, int] = field(default_factory=dict)  # draws of each prompt in this step

    def collect(self, algorithm: Algorithm, state: dict[str, Any]) -> Collected:
        """One step's batch. `state` is not changed; the new one is in the answer."""
        state = {**state}
        metrics: dict[str, float] = {}
        draws = self._draw(algorithm, state, metrics, None, 0)
        batch: Batch | None = None
        for turn in range(10_000):
            new = self._roll_out(algorithm, state, metrics, draws, turn)
            batch = new if batch is None else batch.join(new)
            curated, ask = self._curate(algorithm, state, metrics, batch, turn)
            if not ask:
                metrics.update(reward_metrics(batch, self.services.reward_names))
                metrics["data/rollouts_kept"] = float(curated.size("B"))
                return Collected(curated, state, metrics)
            draws = ask if isinstance(ask, tuple) else self._draw(
                algorithm, state, metrics, ask, turn + 1
            )  # fmt: skip
        raise RuntimeError("curation asked for rollouts ten thousand times in one step")

    def _draw(
        self,
        algorithm: Algorithm,
        state: dict[str, Any],
        metrics: dict[str, float],
        num_wanted: int | None,
        turn: int,
    ) -> tuple[Draw, ...]:
        draws: tuple[Draw, ...] = ()
        for use in algorithm.sampling:
            outcome = self._call("sampling", use, None, state, metrics, turn,
                                 pool=self.pool, num_wanted=num_wanted, draws=draws)  # fmt: skip
            draws = outcome.value
        numbered = []
        for draw in draws:
            numbered.append(draw._replace(draw=self.drawn.get(draw.uid, 0)))
            self.drawn[draw.uid] = numbered[-1].draw + 1
        return tuple(numbered)

    def _roll_out(
        self,
        algorithm: Algorithm,
        state: dict[str, Any],
        metrics: dict[str, float],
        draws: tuple[Draw, ...],
        turn: int,
    ) -> Batch:
        use = algorithm.rollout
        with self.clock("rollout"):
            strategy = self._call("rollout", use, None, state, metrics, turn, draws=draws).value
            batch, new_state = drive(strategy, self.engine, self.services)
        if new_state is not None:
            state[f"rollout.{use.label}"] = new_state
        batch = batch.set(**self.run_columns, **_told(algorithm, draws, batch))
        with self.clock("reward"):
            told: dict[str, float] = {}
            for use in algorithm.reward:
                outcome = self._call("reward", use, batch, state, told, turn)
                batch = parts.write(batch, use, outcome)
        self._average(metrics, told, batch.size("B"))
        return batch

    def _average(self, metrics: dict[str, float], told: dict[str, float], size: int) -> None:
        """Rewards' metrics over all rounds of a step, each round by its number of rollouts."""
        before = metrics.get("data/rollouts_sampled", 0.0)
        for name, value in told.items():
            old = metrics.get(name, value)
            metrics[name] = (old * before + value * size) / (before + size)
        metrics["data/rollouts_sampled"] = before + size

    def _curate(
        self,
        algorithm: Algorithm,
        state: dict[str, Any],
        metrics: dict[str, float],
        batch: Batch,
        turn: int,
    ) -> tuple[Batch, Any]:
        whole, told, before = batch, dict[str, float](), dict(state)
        for use in algorithm.curation:
            outcome: Curated = self._call("curation", use, batch, state, told, turn).value
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
        metrics.update(told)
        return batch, ()

    def _call(
        self,
        stage: str,
        use: Use,
        batch: Batch | None,
        state: dict[str, Any],
        metrics: dict[str, float],
        turn: int,
        **special: Any,
    ) -> parts.Result:
        """Call a part with its state; a new state and metrics go where they belong."""
        path = f"{stage}.{use.label}"
        if path not in state and hasattr(use.part, "init"):
            state[path] = use.part.init()
        outcome = parts.call(
            use,
            batch,
            state=state.get(path),
            rng=self.rng_of(path, turn),
            services=self.services,
            **special,
        )
        if outcome.state is not None:
            state[path] = outcome.state
        metrics.update(outcome.metrics)
        return outcome


def _told(algorithm: Algorithm, draws: tuple[Draw, ...], batch: Batch) -> dict[str, Any]:
    """The columns [B] that samplers write: what a draw says of its rollouts, NaN where nothing."""
    names = {name for use in algorithm.sampling for name in parts.writes(use)}
    by_draw = {(draw.uid, draw.draw): draw.columns for draw in draws}
    groups = zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True)
    found = [by_draw.get(group, {}) for group in groups]
    return {
        name: torch.tensor([each.get(name, float("nan")) for each in found])[batch["group_B"]]
        for name in sorted(names)
    }
