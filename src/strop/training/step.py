"""One training step, stage by stage. Read this first.

    1 sampling    which prompts, how many rollouts each
    2 rollout     a strategy over an engine
    3 reward      scores, whole groups at a time
    4 curation    which rows make up the groups; may request more rounds of 1 to 3
    5 refresh     columns of the current policy that something below reads
    6 advantage   baseline, scale, credit, weight
    7 selection   which tokens learn, which count in averages
    8 loss        the plan's updates
    9 control     new knob values, copies of the weights, the phase of the next step
   10 observe     metrics and the batch, for the log

Nothing here depends on how the rows are later split into micro-batches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from strop.batch.batch import Batch
from strop.method.algorithm import (
    Algorithm,
    Method,
    Phases,
    around_refresh,
    phase_at,
    wanted_columns,
)
from strop.method.chains import Chains, generators, learnable
from strop.method.part import LR, OUTSIDE, Use
from strop.method.schedule import rate_at
from strop.support.errors import RunStopped, UserError
from strop.training.learner import routing
from strop.training.learner.step_metrics import Clock, step_metrics
from strop.training.learner.step_models import StepModels, refresh
from strop.training.learner.token_trace import Spectator
from strop.training.learner.update import Learner, learning_rollouts
from strop.training.world import World


@dataclass
class Stepped:
    """The outcome of a step: its rows, its metrics, the state of all parts after it."""

    batch: Batch
    metrics: dict[str, float]
    state: dict[str, Any]


def train_step(
    world: World, method: Method, state: Mapping[str, Any], step: int,
    spectators: Sequence[Spectator] = (),
) -> Stepped:  # fmt: skip
    """Run step `step` (counted from 1). It changes the weights and only reads `state`.

    spectators: record what happens to rows and tokens, and leave the step as it is.
    """
    clock = Clock(on_stage=lambda stage: world.ranks.at(f"step {step}, {stage}"))
    rng_of = generators(world.seed, step)
    torch.manual_seed(rng_of("global", 0).initial_seed())
    phase = phase_at(state)
    algorithm, number = method.in_phase(phase["number"]), phase["number"]
    knobs = method.knobs_in(number, state.get("knobs", {}))
    algorithm = algorithm.with_knobs({k: v for k, v in knobs.items() if k not in OUTSIDE})
    algorithm = algorithm.at_step(step, world.num_steps)
    models = world.act(algorithm, number)

    # 1 to 4
    chains = Chains(rng_of, world.services, dict(state), after=_each_after(spectators))
    batch = world.collect(algorithm, chains, step, clock)
    batch, metrics = batch.to(world.policy.device), chains.metrics

    # 5
    batch = chains.write("probes", around_refresh(algorithm)[0], batch)
    with clock("refresh"):
        batch = _refreshed(algorithm, batch, models)
    if probes := around_refresh(algorithm)[1]:
        with clock("probes"):
            batch = chains.write("probes", probes, batch)

    # 6 and 7
    with clock("advantage"):
        batch = chains.credit(algorithm.advantage, batch)
        batch = chains.select(algorithm.selection, learnable(batch))

    # 8
    lr = knobs[LR] if LR in knobs else rate_at(world.lr, step, world.num_steps)
    again = Chains(rng_of, world.services, dict(state))
    with clock("update"), _naming_first_part(again, algorithm, batch):
        learned = Learner(models, lr, rng_of, spectators).learn(algorithm, batch)
    metrics.update(_metrics_of(batch, algorithm, chains.metrics_by, learned.metrics))
    metrics.update(routing.load_metrics(batch) if models.policy.experts is not None else {})
    if "sampling/oldest_age_steps" in metrics:
        metrics["sampling/effective_share"] = learned.effective

    # 9
    _end_of_step(algorithm, chains, batch, {**dict.fromkeys(OUTSIDE, 0.0), **knobs, LR: lr})
    with clock("update"):
        if world.copies is not None:
            world.copies.follow(knobs, chains.state["knobs"])
        world.renew_engine(step)  # after the copies: a step back to the anchor changes the weights
    world.collector.learnt(step, batch)
    if isinstance(method, Phases):
        metrics["phase"] = float(number)
        chains.state["phase"] = method.next(phase, step, world.num_steps, metrics)

    # 10
    metrics.update(clock.metrics(batch))
    return Stepped(batch, metrics, chains.state)


@contextmanager
def _naming_first_part(again: Chains, algorithm: Algorithm, batch: Batch) -> Iterator[None]:
    """Inside, the error of a loss that is not finite names the part that gave such a number first.

    again: the chains before the step, with which the advantages are computed again for that.
    """
    try:
        yield
    except RunStopped as error:
        if came := again.first_not_finite(algorithm.advantage, batch):
            raise RunStopped(f"{came}; {error}") from error
        raise


def _metrics_of(
    batch: Batch, algorithm: Algorithm, metrics_by: Mapping[str, Use], learned: Mapping[str, float]
) -> dict[str, float]:
    """The step's own metrics and those of loss terms. Raises UserError where another one has the
    name of one of them.
    """
    learns_B, from_rewards = learning_rollouts(algorithm, batch), algorithm.reward_columns()
    own = step_metrics(batch, learns_B, bool(from_rewards))
    for name in (*own, *learned):
        if name in metrics_by or (name in own and name in learned):
            use = metrics_by.get(name)
            who = "a part of a loss term" if use is None else f"part {use.label}"
            has = "every step has" if name in own else "a loss term has"
            raise UserError(
                f"{who} gives the metric {name}, which {has} of its own: give it a name "
                "of yours, such as mine/mean"
            )
    return {**own, **learned}


def _refreshed(algorithm: Algorithm, batch: Batch, models: StepModels) -> Batch:
    """The batch with the columns of the current models that the step reads."""
    wanted, policy = wanted_columns(algorithm), models.policy
    if policy.experts is None:
        return refresh(batch, wanted, models)
    wanted |= routing.to_note(algorithm.reads(("terms",)), batch, policy)
    return routing.with_load(refresh(batch, wanted, models), policy.experts)


def _each_after(spectators: Sequence[Spectator]) -> Callable[[str, Use, Batch], None]:
    """Hands every spectator the batch after a part."""

    def after(stage: str, use: Use, batch: Batch) -> None:
        for spectator in spectators:
            spectator.after(stage, use, batch)

    return after


def _end_of_step(
    algorithm: Algorithm, chains: Chains, batch: Batch, knobs: Mapping[str, Any]
) -> None:
    """Run the parts' own updates of their state and the controls, which set new knobs.

    knobs: the values that those outside the algorithm had in the step.
    """
    metrics = chains.metrics
    chains.learn(algorithm.uses(), batch)
    chains.control(algorithm, batch, metrics, knobs)
    metrics["num_tokens"] += chains.state.get("num_tokens", 0.0)
    chains.state["num_tokens"] = metrics["num_tokens"]
