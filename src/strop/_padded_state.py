"""What goes from step to step at the padded door: states of parts, options set by controls."""

from collections.abc import Mapping
from typing import Any

import torch

from strop._padded import Door, at_step
from strop._padded_asked import services_for
from strop._padded_chains import learning
from strop._padded_given import number_of, tensor_of
from strop._padded_names import Names
from strop.algorithm import Algorithm
from strop.batch import Batch
from strop.chains import Chains
from strop.errors import UserError
from strop.training import pack

METRICS = "metrics."


class Told(dict[str, float]):
    """Metrics of a step, and the names of those that somebody looked for in vain."""

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


def learnt(name: str, door: Door, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The state after a step whose tensors were given."""
    chains, batch = door.chains(), door.batch
    if door.names.learns_rewards:
        rewarding = door.names.run_by("rewards")
        chains.services = services_for("next_state", name, rewarding, batch)
        batch = chains.write("reward", rewarding, batch)
        batch = batch.set(advantage_B=batch["reward_B"])
    batch = chains.write("advantage", door.algorithm.advantage, batch)
    uses = list(door.algorithm.uses())
    chains.learn(uses, batch, "observe")
    chains.learn(uses, batch)
    return _controlled(name, door.algorithm, chains, batch, metrics)


def told(
    name: str, names: Names, numbers: Mapping[str, Any], state: Mapping[str, Any],
    metrics: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The state after a step of which the metrics are given alone: the controls go on.

    numbers: step and total_steps, where they are given.
    """
    if hooked := learning(names.algorithm):
        raise UserError(
            f"next_state({name!r}) needs rewards: {hooked[0][1].label} learns from them"
        )
    batch = pack.from_padded({}, torch.zeros(0, 1, dtype=torch.bool))
    named = {"step": "step", "total_steps": "num_steps"}
    batch = batch.set(**{named[key]: torch.tensor(int(value)) for key, value in numbers.items()})
    algorithm = at_step(
        names.with_knobs(state.get("knobs", {})).algorithm, ("control",), name, batch
    )
    chains = Chains(lambda part, number: torch.Generator(), state=dict(state))
    return _controlled(name, algorithm, chains, batch, metrics)


def _controlled(
    name: str, algorithm: Algorithm, chains: Chains, batch: Batch, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """The state after the controls, too, have moved their options."""
    if not isinstance(metrics, Mapping) or not all(isinstance(key, str) for key in metrics):
        raise UserError("metrics must be a dict from names to numbers")
    given = {key: number_of(f"metrics[{key!r}]", value) for key, value in metrics.items()}
    known = Told({**_measured(batch), **chains.metrics, **given})
    moved: dict[str, Any] = {}
    for use in algorithm.control:
        moved |= chains.call("control", use, batch, metrics=known).value
    if known.missed and not moved:
        raise UserError(f"next_state({name!r}) needs the metric {known.missed[0]}: give it in "
                        "metrics")  # fmt: skip
    return {**chains.state, "knobs": {**chains.state.get("knobs", {}), **moved}}


def _measured(batch: Batch) -> dict[str, float]:
    """The metric `entropy` where entropies of the tokens were given."""
    for column in ("entropy_old_T", "entropy_T"):
        if column in batch and bool(batch["mask_T"].any()):
            return {"entropy": float(batch[column][batch["mask_T"]].double().mean())}
    return {}


def series_of(name: str, value: Any) -> list[float]:
    """Numbers of a run's steps, in order. Raises UserError."""
    tensor = tensor_of(name, value).double()
    if tensor.dim() != 1 or not bool(torch.isfinite(tensor).all()):
        raise UserError(f"{name} must be a list of numbers, one a step")
    found: list[float] = tensor.tolist()
    return found


def split(
    words: Mapping[str, str], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, float]]]:
    """`given` without a series of numbers, and each earlier step's number with what it is.

    The last number of a column is this step's, and stays with what was given; all of a metric,
    "metrics.entropy", are of earlier steps.
    """
    rest = dict(given)
    earlier: list[tuple[str, float]] = []
    for name, what in words.items():
        if rest.get(name) is None:
            continue
        numbers = series_of(name, rest.pop(name))
        if not what.startswith(METRICS):
            if not numbers:
                raise UserError(f"{name} needs this step's number, at its end")
            rest[what] = numbers.pop()
        earlier = [(what, number) for number in numbers]
    return rest, earlier
