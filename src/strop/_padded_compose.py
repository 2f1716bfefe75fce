"""A recipe at the padded door: composed with its parameters, its names, the tensors under them."""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from strop import catalogue, columns, notation
from strop import part as parts
from strop._loading import attribute
from strop._padded_chains import learning
from strop._padded_given import check_call, number_of, of_dtype, tensor_of
from strop._padded_names import Names
from strop._padded_params import own_names, without_parts
from strop.algorithm import Algorithm
from strop.batch import level_of
from strop.columns import Column
from strop.errors import UserError


def compose(
    name: str, params: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Names, dict[str, Any]]:
    """A recipe's names, and the given tensors under the usual ones, with those numbers for the
    whole run that stood in `params`.

    Raises UserError for a parameter that the recipe does not have and a tensor given twice.
    """
    name = catalogue.recipe_called(name)
    recipe = catalogue.load("recipe", name)
    words = words_of(recipe)
    for key in words.instead.keys() & {*given, *params}:
        raise UserError(f"recipe {name} takes no {key}: {words.instead[key]}")
    parameters = inspect.signature(recipe).parameters
    given = dict(given)
    params, num_parts = without_parts(params, parameters)
    moved = {key: number_of(key, given.pop(key)) for key in words.parameters if key in given}
    told = own_names(name, {**params, **moved}, parameters, words.parameters)
    told = words.prepare(told) if words.prepare else told
    own = {key: value for key, value in told.items() if key in parameters}
    names = _names(name, recipe, own)
    if num_parts > 1:
        names = dataclasses.replace(names, num_parts=num_parts)
    if "kl_loss_coef" in params and own.get("beta"):
        _check_penalty(name, names.algorithm)
    numbers = {n for n, filled in names.fills.items() if not level_of(filled[0])}
    run_wide = {key: value for key, value in told.items() if key in numbers - own.keys()}
    if len(run_wide) + len(own) < len(told):
        notation.build_recipe(name, {k: v for k, v in told.items() if k not in run_wide})
    return names, {**_usual(names, words.tensors, _taken_apart(words.several, given)), **run_wide}


def words_of(recipe: Any) -> Any:
    """The words that a recipe's own file brings; none where it brings none."""
    return attribute("strop.recipes._door:words_of")(recipe)


def names_of(name: str, params: Any = None, seed: Any = 0, state: Any = None) -> Names:
    """The names of a recipe. Raises UserError where a call's words are of the wrong kind."""
    params = {} if params is None else params
    check_call(name, params, seed, state)
    return compose(name, params, {})[0]


def whole_call_names(name: str, names: Names, call: str) -> tuple[str, ...]:
    """What a call takes beside names of columns: factors, a tree, steps of what is tracked."""
    found: tuple[str, ...] = ()
    if call == "advantages":
        found = (*words_called(name).factors, *(("tree",) if names.credits_edges else ()))
    if names.tracks and call in ("advantages", "next_state"):
        found = (*found, "steps")
    return found


def in_one_group(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """`given` with all rows in one group where centred advantages alone stand for rewards."""
    centred = given.get("advantages_seq")
    if centred is None or given.get("groups") is not None:
        return given
    if "advantages_seq" not in words_called(name).tensors:
        return given
    return {**given, "groups": torch.zeros(tensor_of("advantages_seq", centred).shape[:1])}


def words_called(name: str) -> Any:
    """The words of the recipe of that name."""
    return words_of(catalogue.load("recipe", catalogue.recipe_called(name)))


def series_words(name: str) -> Mapping[str, str]:
    """The recipe's names for numbers of the steps so far, each to the column or metric it is."""
    series: Mapping[str, str] = words_called(name).series
    return series


def _check_penalty(name: str, algorithm: Algorithm) -> None:
    """Raise UserError where a recipe's beta is not the weight of a penalty to the reference."""
    if not any(term.name == "kl" for term in algorithm.terms):
        raise UserError(
            f"params: beta of recipe {name} is no kl_loss_coef; give beta if you mean it"
        )


_PLAIN = (bool, int, float, str, type(None))


def _names(name: str, recipe: Any, own: Mapping[str, Any]) -> Names:
    """The names of a recipe with parameters; those of plain values are kept for the next call."""
    if all(isinstance(value, _PLAIN) for value in own.values()):
        return _kept(name, recipe, tuple((key, type(own[key]), own[key]) for key in own))
    return _made(name, recipe, own)


@functools.lru_cache(maxsize=256)
def _kept(name: str, recipe: Any, own: tuple[tuple[str, type, Any], ...]) -> Names:
    return _made(name, recipe, {key: value for key, _, value in own})


def _made(name: str, recipe: Any, own: Mapping[str, Any]) -> Names:
    algorithm = notation.build_recipe(name, own).algorithms[-1]  # what a method of phases comes to
    return Names(algorithm, _known(algorithm), words_of(recipe).columns)


def _known(algorithm: Algorithm) -> dict[str, Column]:
    """The records of the algorithm's columns, also of those that another part declares."""
    uses = list(algorithm.uses())
    read = {name for _, use in uses for r in parts.reads(use) for name in (r.parameter, r.column)}
    read |= {name for _, use, hook in learning(algorithm) for name in parts.update_reads(use, hook)}
    kinds = [type(use.part) for _, use in uses]
    elsewhere = (catalogue.declarer(name) for name in read - columns.together(kinds).keys())
    kinds += [entry.load() for entry in elsewhere if entry]
    found = columns.of(uses, kinds)
    return found | {name: Column(name, "float", "") for name in sorted(read - found.keys())}


def _taken_apart(several: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The tensors with those in place of one that stands for several, a mask maybe among them."""
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


def _usual(names: Names, words: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors under their usual names. Raises UserError for one that is there twice."""
    also = {other: (c.names[0], None) for c in names.known.values() for other in c.also}
    found = dict(given)
    for name, (usual, make) in {**also, **words}.items():
        if name not in given:
            continue
        if usual in found:
            raise UserError(f"{name} is {usual}: give one of the two")
        tensor = tensor_of(name, found.pop(name))
        found[usual] = make(tensor) if make else tensor
    return found
