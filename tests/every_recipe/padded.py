"""Random padded inputs for any recipe's functional calls, from the records of its columns."""

import functools
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import level_of
from strop.padded.compose import compose
from strop.padded.names import PAIR_SCORES, STRUCTURE, Names

FILL = {"mask": False, "turn_ids": -1}
VOCABULARY = 4
NUM_TURNS = 3  # turns of two positions each
COMPONENTS = 2


def names_of(recipe: str, params: Any = None) -> Names:
    """What the recipe's columns are called in padded calls."""
    return compose(recipe, params, {})[0] if params else _usual_names(recipe)


@functools.cache
def _usual_names(recipe: str) -> Names:
    return compose(recipe, {}, {})[0]


def value_for(
    names: Names, name: str, call: str, shape: tuple[int, int], rng: torch.Generator
) -> Any:
    """One input under its public name, float64; a number for the whole run as such."""
    num, width = shape
    columns = names.filled(name, call, 2)
    record = names.known[columns[0]]
    level = "B" if "advantage_B" in columns else level_of(record.name)
    more = {"_TV": (VOCABULARY,), "_BM": (COMPONENTS,)}.get(record.name[-3:], ())
    if not level:
        return record.drawn((), rng).item()
    if record.where:
        return torch.rand(num, width, generator=rng) < 0.2
    return record.drawn({"T": (num, width), "B": (num,), "K": (num, NUM_TURNS)}[level] + more, rng)


def inputs_for(
    recipe: str, call: str, seed: int, shape: tuple[int, int] = (6, 5), params: Any = None
) -> dict[str, Any]:
    """Every tensor that the call takes, ragged mask included; of names of one column the first."""
    found = (
        _drawn(recipe, call, seed, shape, params) if params else _usual(recipe, call, seed, shape)
    )
    return {name: x.clone() if isinstance(x, Tensor) else x for name, x in found.items()}


@functools.cache
def _usual(recipe: str, call: str, seed: int, shape: tuple[int, int]) -> dict[str, Any]:
    """Those that many tests of a recipe begin with."""
    return _drawn(recipe, call, seed, shape, None)


def _drawn(
    recipe: str, call: str, seed: int, shape: tuple[int, int], params: Any
) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.rand(shape, generator=rng) < 0.7
    mask[0, 1] = True
    mask[:, 0] = False
    given: dict[str, Any] = {"mask": mask}
    filled: set[tuple[str, ...]] = set()
    names = names_of(recipe, params)
    taken = names.inputs(call)
    if "turn_ids" in taken:
        given["turn_ids"] = torch.where(mask, torch.arange(shape[1]) // 2, -1)
    for name, must in taken.items():
        if name in (*STRUCTURE, "mask", PAIR_SCORES) or (
            name == "token_rewards" and taken.get("turn_rewards")
        ):
            continue
        if names.fills[name] in filled or (name == "logits" and not must):
            continue  # where the head's own column is asked for, logits only stand in for it
        filled.add(names.fills[name])
        given[name] = value_for(names, name, call, shape, rng)
    if "groups" in given:  # any whole numbers
        given["groups"] = given["groups"] * 5 - 4
    if "preferred" in given:  # pairs of neighbours
        given["groups"] = torch.arange(shape[0]) // 2
        given["preferred"] = 1 - 2 * (torch.arange(shape[0]) % 2)
    if "logp_old" in given and "logp" in given:
        change = 0.3 * torch.randn(shape, generator=rng, dtype=torch.float64)
        given["logp"] = given["logp_old"] + change
    if "rewards_from_0_to_1" in names.algorithm.facts() and "rewards" in given:
        given["rewards"] = given["rewards"].sigmoid()
    return given


def rows(given: dict[str, Any], order: Tensor) -> dict[str, Any]:
    """The inputs with their rollouts in another order."""
    return {k: v[order] if isinstance(v, Tensor) else v for k, v in given.items()}


def of_tokens(given: dict[str, Any], value: Any) -> bool:
    """Whether an input has a place for every token: no other table is as wide as the mask."""
    shape = given["mask"].shape
    return isinstance(value, Tensor) and value.dim() >= 2 and value.shape[:2] == shape


def padded(given: dict[str, Any], extra: int) -> dict[str, Any]:
    """The inputs with `extra` more positions on the right: mask 0, noise elsewhere."""
    wider = {}
    for name, value in given.items():
        wider[name] = value
        if of_tokens(given, value):
            fill = float("nan") if value.is_floating_point() else FILL.get(name, True)
            new = value.new_full((value.shape[0], extra, *value.shape[2:]), fill)
            wider[name] = torch.cat([value, new], dim=1)
    return wider


def with_noise(given: dict[str, Any]) -> dict[str, Any]:
    """The inputs with NaN in every float token tensor outside the mask."""
    noisy = dict(given)
    for name, value in given.items():
        if of_tokens(given, value) and value.is_floating_point():
            inside = given["mask"].view(*given["mask"].shape, *[1] * (value.dim() - 2))
            noisy[name] = torch.where(inside, value, float("nan"))
    return noisy
