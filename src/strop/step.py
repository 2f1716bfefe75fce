"""One training step, stage by stage. Read this first.

    1 sampling    which prompts, how many rollouts each
    2 rollout     a strategy over an engine
    3 reward      scores, whole groups at a time
    4 curation    which rows make up the groups; may ask for more of 1 to 3
    5 refresh     columns of the current policy that something below reads
    6 advantage   baseline, scale, credit, weight
    7 selection   which tokens learn, which count in averages
    8 loss        the plan's updates
    9 control     new knob values for the next step
   10 observe     metrics and the batch, for the log

Nothing here depends on how the rows are later split into micro-batches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from strop import part as parts
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.errors import UserError
from strop.training.clock import Clock
from strop.training.collect import Collector
from strop.training.learn import Learner
from strop.training.metrics import step_metrics
from strop.training.refresh import refresh, wanted_columns
from strop.training.seeds import generators
from strop.training.world import World

LR = "training.lr"  # the one knob outside the algorithm


@dataclass
class Stepped:
    """The outcome of a step: its rows, its metrics, the state of all parts after it."""

    batch: Batch
    metrics: dict[str, float]
    state: dict[str, Any]


def train_step(world: World, algorithm: Algorithm, state: Mapping[str, Any], step: int) -> Stepped:
    """Run step `step` (counted from 1). `state` is read, never changed; weights are."""
    clock = Clock()
    rng_of = generators(world.seed, step)
    torch.manual_seed(rng_of("global", 0).initial_seed())
    knobs = state.get("knobs", {})
    algorithm = algorithm.with_knobs({k: v for k, v in knobs.items() if k != LR})
    algorithm = algorithm.at_step(step, world.num_steps)
    world.set_temperature(algorithm.rollout.part.temperature)

    # 1 to 4
    about = world.run_columns(algorithm, step)
    collector = Collector(world.services, world.engine, world.pool, rng_of, clock, about)
    collected = collector.collect(algorithm, dict(state))
    batch, metrics = collected.batch.to(world.policy.device), collected.metrics

    # 5
    with clock("refresh"):
        wanted = wanted_columns(algorithm)
        batch = refresh(batch, wanted, world.policy, world.reference, world.critic)
        for use in algorithm.probes:
            outcome = parts.call(use, batch, services=world.services, rng=rng_of(use.label, 0))
            batch = parts.write(batch, use, outcome)
            metrics.update(outcome.metrics)

    # 6
    with clock("advantage"):
        batch = batch.set(advantage_B=batch["reward_B"])
        for use in algorithm.advantage:
            path = f"advantage.{use.label}"
            before = _state_of(use, path, collected.state)
            outcome = parts.call(use, batch, rng=rng_of(path, 0), state=before)
            batch = parts.write(batch, use, outcome)
            metrics.update(outcome.metrics)

        # 7
        batch = _select(algorithm, batch, rng_of, metrics)

    # 8
    lr = knobs[LR] if LR in knobs else world.lr_at(step)
    with clock("update"):
        learner = Learner(world.policy, world.reference, lr, rng_of, world.critic)
        learned = learner.learn(algorithm, batch)
        world.engine.load_weights(None, step)
    metrics.update(step_metrics(batch), **learned.metrics)

    # 9
    new_state = _end_of_step(algorithm, collected.state, batch, metrics)

    # 10
    metrics.update(clock.metrics(batch))
    return Stepped(batch, metrics, new_state)


def _select(
    algorithm: Algorithm, batch: Batch, rng_of: Callable[..., Any], metrics: dict[str, float]
) -> Batch:
    """The batch with gradient_T and denominator_T; what each selection drops goes to `metrics`."""
    scored_T = batch["mask_T"] & batch["scored_B"][batch["rollout_T"]]
    batch = batch.set(gradient_T=scored_T, denominator_T=scored_T)
    for use in algorithm.selection:
        outcome = parts.call(use, batch, rng=rng_of(f"selection.{use.label}", 0))
        learnt = batch["gradient_T"] & outcome.value.gradient_T
        lost = (batch["gradient_T"] & ~learnt).sum() / scored_T.sum().clamp(min=1)
        metrics[f"selection/dropped/{outcome.value.reason}"] = float(lost)
        counted = batch["denominator_T"] & outcome.value.denominator_T
        batch = batch.set(gradient_T=learnt, denominator_T=counted)
        metrics.update(outcome.metrics)
    return batch


def _state_of(use: parts.Use, path: str, state: Mapping[str, Any]) -> Any:
    """The state of a part: what it had, its first one, or None where it keeps none."""
    if path in state or not hasattr(use.part, "init"):
        return state.get(path)
    return use.part.init()


def _end_of_step(
    algorithm: Algorithm, state: dict[str, Any], batch: Batch, metrics: dict[str, float]
) -> dict[str, Any]:
    """State after the parts' own updates and the controls' new knobs."""
    for path, use in algorithm.uses():
        if hasattr(use.part, "update"):
            state[path] = parts.update(use, batch, _state_of(use, path, state))
    knobs = dict(state.get("knobs", {}))
    for use in algorithm.control:
        path = f"control.{use.label}"
        before = state[path] if path in state else use.part.init()
        outcome = parts.call(use, batch, metrics=metrics, state=before)
        state[path] = outcome.state
        known = algorithm.paths()
        for knob in outcome.value:
            if knob != LR and knob not in known:
                raise UserError(f"{use.label} moves {knob}, which is no option of this method")
        knobs.update(outcome.value)
        metrics.update(outcome.metrics)
    metrics["num_tokens"] += state.get("num_tokens", 0.0)
    return {**state, "knobs": knobs, "num_tokens": metrics["num_tokens"]}
