"""Finds a recipe by its name and composes it with the parameters of a padded call.

Parameters and tensors may have the names of TRL, verl and the recipe's paper. Here they get the
names of the recipe and of the columns.
"""

import dataclasses
import functools
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from strop.batch import columns
from strop.batch.batch import level_of
from strop.batch.columns import Column
from strop.catalogue import catalogue, peers
from strop.method import notation, reading
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.padded.given import PaddedCall, check_call, number_of, of_dtype, tensor_of
from strop.padded.names import Names, learning_parts
from strop.support.errors import UserError
from strop.support.loading import attribute

# Names of TRL or verl for parameters that many recipes have; recipes/_door.py converts their
# values.
PEERS = {
    "epsilon": "clip_low", "epsilon_high": "clip_high", "delta": "dual_clip_c",
    "clip_ratio": "clip_low", "clip_ratio_low": "clip_low", "clip_ratio_high": "clip_high",
    "clip_ratio_c": "dual_clip_c", "cliprange_value": "clip_value",
    "kl_loss_coef": "beta", "num_generations": "num_rollouts",
    "loss_type": "aggregation", "loss_agg_mode": "aggregation",
    "scale_rewards": "normalize_std", "norm_adv_by_std_in_grpo": "normalize_std",
}  # fmt: skip
# Names for the number of micro-batches of an update, whose losses are added.
MICRO_BATCHES = ("accumulation", "gradient_accumulation_steps")
BOTH_SIDES = ("epsilon", "clip_ratio")  # also set the upper width, unless that is given


@dataclass(frozen=True)
class Recipe:
    """A recipe's function with its parameters, and the names that its own file declares."""

    name: str
    function: Any
    parameters: Collection[str]
    words: Any


def recipe_of(name: str) -> Recipe:
    """Finds the recipe of that name. A user's file is read every time, for it may have changed."""
    return _read(name) if ":" in name else _listed(name)


def _read(name: str) -> Recipe:
    own = catalogue.recipe_called(name)
    function = catalogue.load("recipe", own)
    return Recipe(own, function, inspect.signature(function).parameters.keys(), _words_of(function))


_listed = functools.cache(_read)


def _words_of(function: Any) -> Any:
    return attribute("strop.recipes._door:words_of")(function)


def compose(
    name: str, params: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Names, dict[str, Any]]:
    """Returns a recipe's names, and the given tensors under their usual names.

    Numbers of the whole run in `params`, such as `step`, become tensors.

    Raises UserError for a parameter that the recipe does not have and a tensor given twice.
    """
    recipe = recipe_of(name)
    name, parameters, words = recipe.name, recipe.parameters, recipe.words
    for key in words.instead.keys() & {*given, *params}:
        raise UserError(f"recipe {name} takes no {key}: {words.instead[key]}")
    given = dict(given)
    params, num_parts = without_micro_batches(params, parameters)
    moved = {key: number_of(key, given.pop(key)) for key in words.parameters if key in given}
    options = own_parameters(name, {**params, **moved}, parameters, words.parameters)
    options = words.prepare(options) if words.prepare else options
    own = {k: value for k, value in options.items() if k in parameters or _is_option(k)}
    names = _names(recipe, own)
    if num_parts > 1:
        names = dataclasses.replace(names, num_parts=num_parts)
    if "kl_loss_coef" in params and own.get("beta"):
        _check_penalty(name, names.algorithm)
    numbers = {n for n, filled in names.fills.items() if not level_of(filled[0])}
    run_wide = {key: value for key, value in options.items() if key in numbers - own.keys()}
    if len(run_wide) + len(own) < len(options):
        notation.build_recipe(name, {k: v for k, v in options.items() if k not in run_wide})
    return names, {
        **_under_usual_names(names, words.tensors, _separated(words.several, given)),
        **run_wide,
    }


def names_of(name: str, params: Any = None) -> Names:
    """Returns a recipe's names. Raises UserError for name or parameters of the wrong kind."""
    params = {} if params is None else params
    check_call(name, params)
    return compose(name, params, {})[0]


def further_inputs(name: str, names: Names, call: str) -> tuple[str, ...]:
    """Returns the inputs of a call besides columns: factors, a tree, steps for tracking parts."""
    found: tuple[str, ...] = ()
    if call == "advantages":
        found = (*recipe_of(name).words.factors, *(("tree",) if names.credits_edges else ()))
    if names.tracks and call in ("advantages", "next_state"):
        found = (*found, "steps")
    return found


def in_one_group(call: PaddedCall) -> PaddedCall:
    """Puts all rows into one group where centred advantages alone stand for rewards."""
    if not call.has("advantages_seq") or call.has("groups"):
        return call
    if "advantages_seq" not in recipe_of(call.recipe).words.tensors:
        return call
    shape = tensor_of("advantages_seq", call.tensors["advantages_seq"]).shape
    return call.having(groups=torch.zeros(shape[:1]))


def series_words(name: str) -> Mapping[str, str]:
    """Maps the recipe's names of series, which have one number a step, to columns or metrics."""
    series: Mapping[str, str] = recipe_of(name).words.series
    return series


def _check_penalty(name: str, algorithm: Algorithm) -> None:
    """Raises UserError where a recipe's beta is not the weight of a penalty to the reference."""
    if not any(term.name == "kl" for term in algorithm.terms):
        raise UserError(
            f"params: beta of recipe {name} is no kl_loss_coef; give beta if you mean it"
        )


_PLAIN = (bool, int, float, str, type(None))


def _names(recipe: Recipe, own: Mapping[str, Any]) -> Names:
    """Returns a recipe's names; they are cached where its parameters are plain values."""
    if all(isinstance(value, _PLAIN) for value in own.values()):
        return _names_of_plain(
            recipe.name, recipe.function, tuple((k, type(own[k]), own[k]) for k in own)
        )
    return _compose_names(recipe.name, recipe.function, own)


@functools.lru_cache(maxsize=256)
def _names_of_plain(name: str, function: Any, own: tuple[tuple[str, type, Any], ...]) -> Names:
    return _compose_names(name, function, {key: value for key, _, value in own})


def _is_option(name: str) -> bool:
    """Whether a parameter is an option of one of the recipe's stages, such as loss.dual_clip_c."""
    stage, dot, _ = name.partition(".")
    return bool(dot) and reading.is_stage(stage)


def _compose_names(name: str, function: Any, own: Mapping[str, Any]) -> Names:
    params = {key: value for key, value in own.items() if not _is_option(key)}
    options = {key: value for key, value in own.items() if _is_option(key)}
    algorithm = notation.build_recipe(name, params).algorithms[-1]  # the last phase
    algorithm = reading.override_all(algorithm, options)
    return Names(algorithm, _known(algorithm), _words_of(function).columns)


def _known(algorithm: Algorithm) -> dict[str, Column]:
    """Finds the records of the algorithm's columns, also those that another part declares."""
    uses = list(algorithm.uses())
    read = {name for _, use in uses for r in parts.reads(use) for name in (r.parameter, r.column)}
    read |= {
        name for _, use, hook in learning_parts(algorithm) for name in parts.update_reads(use, hook)
    }
    kinds = [type(use.part) for _, use in uses]
    elsewhere = (catalogue.declarer(name) for name in read - columns.together(kinds).keys())
    kinds += [entry.load() for entry in elsewhere if entry]
    found = columns.of(uses, kinds)
    return found | {name: Column(name, "float", "") for name in sorted(read - found.keys())}


def _separated(several: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Splits a tensor that combines several into these; a mask may be among them."""
    found = dict(given)
    for name in several.keys() & given.keys():
        tensor = of_dtype(name, found.pop(name), "float")
        if tensor.dim() != 2 or tensor.shape[1] < 2:
            raise UserError(f"{name} must be [B, n + 1] of n steps; it is {[*tensor.shape]}")
        made = several[name](tensor)
        if clash := made.keys() & found.keys():
            raise UserError(f"{name} says {' and '.join(sorted(clash))}: give one of the two")
        found |= made
    return found


def _under_usual_names(
    names: Names, words: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Renames the tensors to their usual names. Raises UserError for one that is given twice."""
    also = {other: (usual, None) for other, usual in names.also.items()}
    found = dict(given)
    for name, (usual, make) in {**also, **words}.items():
        if name not in given:
            continue
        if usual in found:
            raise UserError(f"{name} is {usual}: give one of the two")
        tensor = tensor_of(name, found.pop(name))
        found[usual] = make(tensor) if make else tensor
    return found


def own_parameters(
    recipe: str, params: Mapping[str, Any], parameters: Collection[str], words: Mapping[str, Any]
) -> dict[str, Any]:
    """Renames `params` to the recipe's own `parameters`; other names stay unchanged.

    words: maps names of the recipe's paper to the recipe's name, to that name and a function that
    converts the value, or to None where the name means something else in TRL or verl. Raises
    UserError for two names of one parameter with different values, and for a value without a
    counterpart.
    """
    found: dict[str, Any] = {}
    spelling: dict[str, str] = {}
    for name, value in params.items():
        own, made = _own(recipe, name, value, parameters, words)
        if own in found and not _alike(found[own], made):
            raise UserError(
                f"params: {spelling[own]} and {name} are the same parameter of {recipe} and differ "
                f"({params[spelling[own]]!r}, {value!r}): give one of the two"
            )
        found[own] = made
        spelling.setdefault(own, name)
    if {"clip_low", "clip_high"} <= {*parameters} and spelling.get("clip_low") in BOTH_SIDES:
        found.setdefault("clip_high", found["clip_low"])
    return found


def without_micro_batches(
    params: Mapping[str, Any], parameters: Collection[str]
) -> tuple[dict[str, Any], int]:
    """Takes the number of micro-batches out of `params`; it is 1 where it is not given.

    A recipe's own parameter of that name stays in `params`. Raises UserError for an invalid number.
    """
    rest = {
        key: value for key, value in params.items() if key not in MICRO_BATCHES or key in parameters
    }
    sizes = {key: params[key] for key in params.keys() - rest.keys()}
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"params: {key} must be a whole number from 1 on, it is {value!r}")
    if len({*sizes.values()}) > 1:
        raise UserError(f"params: {' and '.join(sorted(sizes))} are the same: give one of the two")
    return rest, max(sizes.values(), default=1)


def _own(
    recipe: str, name: str, value: Any, parameters: Collection[str], words: Mapping[str, Any]
) -> tuple[str, Any]:
    """Returns the recipe's own name of a parameter, and its value under that name."""
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
        other = peers.of_loss_type(str(value)) if name == "loss_type" else ""
        here = f", it is the recipe {other}" if other else ""
        raise UserError(
            f"params: {name}={value!r} has no counterpart in recipe {recipe}{here}: there are "
            f"{usual}; its own parameter is {own}"
        )
    return own, known[value]


def _alike(one: Any, other: Any) -> bool:
    """Tells whether two values are the same; an int may equal a float."""
    numbers = all(isinstance(value, int | float) for value in (one, other))
    return one == other if numbers else repr(one) == repr(other)
