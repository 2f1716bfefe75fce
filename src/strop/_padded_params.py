"""Parameters of a recipe at the padded door under the names of TRL, verl and its own paper."""

from collections.abc import Collection, Mapping
from typing import Any

from strop._loading import attribute
from strop.errors import UserError

# What TRL or verl call parameters that many recipes have; values of their own stand in
# recipes/_door.py.
PEERS = {
    "epsilon": "clip_low", "epsilon_high": "clip_high", "delta": "dual_clip_c",
    "clip_ratio": "clip_low", "clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high",
    "clip_ratio_c": "dual_clip_c", "cliprange_value": "clip_value",
    "kl_loss_coef": "beta", "num_generations": "num_rollouts",
    "loss_type": "aggregation", "loss_agg_mode": "aggregation",
    "scale_rewards": "normalize_std", "norm_adv_by_std_in_grpo": "normalize_std",
}  # fmt: skip
# Of how many micro-batches of an update, whose losses are added, the given tensors are one.
PARTS = ("accumulation", "gradient_accumulation_steps")
BOTH_SIDES = ("epsilon", "clip_ratio")  # also the width above, unless that one is given


def own_names(
    recipe: str,
    params: Mapping[str, Any],
    parameters: Collection[str],
    words: Mapping[str, Any],
) -> dict[str, Any]:
    """`params` under the recipe's own names for its `parameters`; what is neither is left as it is.

    words: names of the recipe's paper, to its own, to (its own, what is made of the value), or to
    None where a peer's name means something else. Raises UserError where two names of one
    parameter are given that differ, or a word that a peer's value is not.
    """
    found: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in params.items():
        own, made = _own(recipe, name, value, parameters, words)
        if own in found and not _alike(found[own], made):
            raise UserError(
                f"params: {said[own]} and {name} are the same parameter of {recipe} and differ "
                f"({params[said[own]]!r}, {value!r}): give one of the two"
            )
        found[own] = made
        said.setdefault(own, name)
    if {"clip_low", "clip_high"} <= {*parameters} and said.get("clip_low") in BOTH_SIDES:
        found.setdefault("clip_high", found["clip_low"])
    return found


def without_parts(
    params: Mapping[str, Any], parameters: Collection[str]
) -> tuple[dict[str, Any], int]:
    """`params` without the number of micro-batches, and that number, 1 where it is not given.

    A recipe's own parameter of that name stays one. Raises UserError for what is no such number.
    """
    rest = {key: value for key, value in params.items() if key not in PARTS or key in parameters}
    said = {key: params[key] for key in params.keys() - rest.keys()}
    for key, value in said.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"params: {key} must be a whole number from 1 on, it is {value!r}")
    if len({*said.values()}) > 1:
        raise UserError(f"params: {' and '.join(sorted(said))} are the same: give one of the two")
    return rest, max(said.values(), default=1)


def _own(
    recipe: str, name: str, value: Any, parameters: Collection[str], words: Mapping[str, Any]
) -> tuple[str, Any]:
    """The recipe's own name of a parameter, and its value there."""
    if name in parameters:
        return name, value
    if name in words:
        own = words[name]
        if own is None:
            return name, value
        return (own, value) if isinstance(own, str) else (own[0], own[1](value))
    own = PEERS.get(name)
    if own is None or own not in parameters:
        return name, value
    known = attribute("strop.recipes._door:VALUES").get(name)
    if known is None:
        return own, value
    if not isinstance(value, str | bool) or value not in known:
        usual = ", ".join(repr(word) for word in known)
        raise UserError(
            f"params: {name}={value!r} has no counterpart in recipe {recipe}: there are {usual}; "
            f"its own parameter is {own}"
        )
    return own, known[value]


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same; of numbers, also an int and a float."""
    numbers = all(isinstance(value, int | float) for value in (one, other))
    return one == other if numbers else repr(one) == repr(other)
