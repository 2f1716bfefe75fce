"""Carries state from step to step in padded calls: states of parts, options set by controls."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import Batch, from_padded
from strop.method.chains import Chains
from strop.padded.compose import compose, series_words
from strop.padded.given import PaddedCall, number_of, of_dtype, tensor_of
from strop.padded.names import Names, learning_parts
from strop.padded.services import TEXTS, services_for, starting_state, with_texts
from strop.padded.stages import at_step, stage_of
from strop.support.errors import UserError

METRICS = "metrics."


def next_state(call: PaddedCall, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state after a step, in which parts have learnt from the tensors and metrics.

    Raises UserError for a recipe whose parts learn from data that only a run has.
    """
    names, numbers = compose(call.recipe, call.params, {})
    started = replace(call, state=starting_state(call, names.algorithm))
    if call.mask is None and not any(map(call.has, call.tensors)):
        return _from_metrics(started, names, numbers, metrics)
    if names.tracks and call.has("steps"):
        for _, step in step_rows(started):
            started = replace(
                started, state=next_state(replace(step, state=started.state), metrics)
            )
        return dict(started.state)
    return _from_tensors(with_texts(started, names) if call.has(TEXTS) else started, metrics)


def after_series(call: PaddedCall) -> PaddedCall:
    """Takes the earlier steps of the call's series, and returns the call of its last step.

    A series has one number for each step so far, under one of the recipe's names.
    """
    rest, earlier = _split(series_words(call.recipe), call.tensors)
    tensors, state = dict(rest), call.state
    for what, number in earlier:
        step = PaddedCall("next_state", call.recipe, {}, None, call.params, call.seed, state)
        if what.startswith(METRICS):
            state = next_state(step, {what.removeprefix(METRICS): number})
        else:
            step = replace(step, tensors={**tensors, what: number}, mask=call.mask)
            state = next_state(step, {})
    return replace(call, tensors=tensors, state=state)


def step_rows(call: PaddedCall) -> Iterator[tuple[Tensor, PaddedCall]]:
    """Yields the rows [n] of each training step that `steps` [B] names, and a call with them.

    Raises UserError for a tensor that has other rows.
    """
    steps = of_dtype("steps", call.tensors["steps"], "int")
    if steps.dim() != 1:
        raise UserError(f"steps must be [B], the training step of each row; it is {[*steps.shape]}")
    tensors = {
        name: tensor_of(name, value)
        for name, value in {**call.tensors, "mask": call.mask}.items()
        if value is not None and name != "steps"
    }
    for name, tensor in tensors.items():
        if tensor.dim() and len(tensor) != len(steps):
            raise UserError(f"{name} has {len(tensor)} rows, steps has {len(steps)}")
    for number in steps.unique().tolist() or [0]:
        row = (steps == number).nonzero().squeeze(1)
        own = {n: t[row.to(t.device)] if t.dim() else t for n, t in tensors.items()}
        yield row, replace(call, mask=own.pop("mask", None), tensors=own)


def over_steps(advantages: Callable[[PaddedCall], Tensor], call: PaddedCall) -> Tensor:
    """Computes advantages of several training steps, each with the state after earlier steps."""
    found: list[Tensor] = []
    order: list[Tensor] = []
    state = call.state
    for row, step in step_rows(call):
        step = replace(step, state=state)
        found.append(advantages(step))
        state = next_state(replace(step, call="next_state"), {})
        order.append(row)
    whole = torch.cat(found)
    return torch.empty_like(whole).index_copy(0, torch.cat(order).to(whole.device), whole)


class Metrics(dict[str, float]):
    """Metrics of a step, with the names of missing metrics that a control looked for."""

    def __init__(self, metrics: Mapping[str, float]) -> None:
        super().__init__(metrics)
        self.missed: list[str] = []

    def __contains__(self, name: object) -> bool:
        known = super().__contains__(name)
        if not known:
            self.missed.append(str(name))
        return known

    def __missing__(self, name: str) -> float:
        raise UserError(f"next_state needs the metric {name}: give it in metrics")


def _from_tensors(call: PaddedCall, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state after a step whose tensors are given."""
    stage = stage_of(call)
    chains, batch = stage.chains(), stage.batch
    if stage.names.learns_rewards:
        rewarding = stage.names.run_by("rewards")
        chains.services = services_for(call, rewarding, batch)
        batch = chains.write("reward", rewarding, batch)
        batch = batch.set(advantage_B=batch["reward_B"])
    batch = chains.write("advantage", stage.algorithm.advantage, batch)
    uses = list(stage.algorithm.uses())
    chains.learn(uses, batch, "observe")
    chains.learn(uses, batch)
    return _controlled(call, stage.names, chains, batch, metrics)


def _from_metrics(
    call: PaddedCall, names: Names, numbers: Mapping[str, Any], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the state after a step of which only metrics are given: only the controls move.

    numbers: numbers of the whole run, such as step and total_steps, where they are given.
    """
    if hooked := learning_parts(names.algorithm):
        raise UserError(f"{call} needs rewards: {hooked[0][1].label} learns from them")
    batch = from_padded({}, torch.zeros(0, 1, dtype=torch.bool))
    for key, value in numbers.items():
        number = of_dtype(key, number_of(key, value), names.dtype(key))
        batch = batch.set(**dict.fromkeys(names.fills[key], number))
    names = names.with_knobs(call.state.get("knobs", {}))
    chains = Chains(lambda part, number: torch.Generator(), state=dict(call.state))
    names = at_step(names, ("control",), call.recipe, batch)
    return _controlled(call, names, chains, batch, metrics)


def _controlled(
    call: PaddedCall, names: Names, chains: Chains, batch: Batch, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the state after the controls have also moved their options."""
    if not isinstance(metrics, Mapping) or not all(isinstance(key, str) for key in metrics):
        raise UserError("metrics must be a dict from names to numbers")
    given = {key: number_of(f"metrics[{key!r}]", value) for key, value in metrics.items()}
    known = Metrics({**_measured(batch), **chains.metrics, **given})
    moved = chains.control(names.algorithm, batch, known)
    if known.missed and not moved:
        raise UserError(f"{call} needs the metric {known.missed[0]}: give it in metrics")
    return chains.state


def _measured(batch: Batch) -> dict[str, float]:
    """Computes the metric `entropy` where entropies of the tokens are given."""
    for column in ("entropy_old_T", "entropy_T"):
        if column in batch and bool(batch["mask_T"].any()):
            return {"entropy": float(batch[column][batch["mask_T"]].double().mean())}
    return {}


def _series_of(name: str, value: Any) -> list[float]:
    """Converts the numbers of a run's steps, in order. Raises UserError."""
    tensor = tensor_of(name, value).double()
    if tensor.dim() != 1 or not bool(torch.isfinite(tensor).all()):
        raise UserError(f"{name} must be a list of numbers, one a step")
    found: list[float] = tensor.tolist()
    return found


def _split(
    words: Mapping[str, str], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, float]]]:
    """Separates series from other tensors: each earlier step's number, with its column or metric.

    The last number of a column belongs to this step and stays among the tensors; all numbers of a
    metric, "metrics.entropy", belong to earlier steps.
    """
    rest = dict(given)
    earlier: list[tuple[str, float]] = []
    for name, what in words.items():
        if rest.get(name) is None:
            continue
        numbers = _series_of(name, rest.pop(name))
        if not what.startswith(METRICS):
            if not numbers:
                raise UserError(f"{name} needs this step's number, at its end")
            rest[what] = numbers.pop()
        earlier = [(what, number) for number in numbers]
    return rest, earlier
