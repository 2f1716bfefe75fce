"""The method of a run, built from its settings."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from strop.method import notation, reading, writing
from strop.method.algorithm import Algorithm, Method, Phase, Phases, read_until
from strop.method.part import Term, Use, name_of
from strop.method.schedule import Schedule
from strop.method.writing import Text
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.parts.loss.penalty.balance_experts import BalanceExperts
from strop.parts.rollout import substitutes
from strop.parts.sampling.draw_from_sources import DrawFromSources
from strop.parts.sampling.draw_in_shuffled_order import DrawInShuffledOrder
from strop.support.errors import UserError
from strop.training.settings.sections import PhaseSettings

NONE: Mapping[str, PhaseSettings] = MappingProxyType({})
ROUTER = "router"  # the name of the term that balances experts


def composed(
    recipe: str, stages: Mapping[str, Text], phases: Mapping[str, PhaseSettings] = NONE
) -> Method:
    """The method with the parts that are given, before any option. Raises UserError."""
    method = notation.recipe(recipe) if recipe else None
    if isinstance(method, Phases):
        method = method.each(lambda each: reading.replace_stages(each, stages))
        for name, given in phases.items():
            before = method.named(name)
            phase = _phase(name, given, stages, before.algorithm)
            until = phase.until or before.until
            method = method.with_phase(name, algorithm=phase.algorithm, until=until)
        return method
    if phases:
        return Phases(tuple(_phase(name, each, stages, method) for name, each in phases.items()))
    return _with_stages(method, stages)


def _phase(
    name: str, given: PhaseSettings, stages: Mapping[str, Text], base: Algorithm | None
) -> Phase:
    """A phase of the settings; stages: those of all phases; base: used if it names no recipe."""
    algorithm = notation.recipe(given.recipe) if given.recipe else base
    if isinstance(algorithm, Phases):
        raise UserError(
            f"phases.{name}: {given.recipe} has phases of its own: a phase is one algorithm"
        )
    until = None if given.until == "" else read_until(given.until)
    return Phase(_with_stages(algorithm, {**stages, **given.stages}), until, name)


def _with_stages(algorithm: Algorithm | None, stages: Mapping[str, Text]) -> Algorithm:
    """The algorithm with stages replaced; without one, the algorithm of the stages alone."""
    if algorithm is None:
        return notation.compose(stages)
    return reading.replace_stages(algorithm, stages)


def with_options(
    method: Method, options: Mapping[str, Any], phases: Mapping[str, PhaseSettings] = NONE
) -> Method:
    """The method with options set: first common ones, then each phase's own. Raises UserError."""
    own = {
        f"phases.{name}.{path}": text
        for name, phase in phases.items() for path, text in phase.algorithm.items()
    }  # fmt: skip
    given = {path: reading.value(text) if isinstance(text, str) else text
             for path, text in (dict(options) | own).items()}  # fmt: skip
    return reading.override_all(method, given)


def complete(method: Method, recipes: Mapping[str, str]) -> dict[str, Any]:
    """The settings `stages`, `algorithm` and `phases` with everything written out.

    recipes: the recipes of the phases that name one.
    """
    if isinstance(method, Algorithm):
        return {**_written(method), "phases": {}}
    phases = {
        phase.name: PhaseSettings(
            until=phase.until.text if phase.until else "",
            recipe=recipes.get(phase.name, ""),
            **_written(phase.algorithm),
        )
        for phase in method.phases
    }
    return {"algorithm": {}, "stages": {}, "phases": phases}


def _written(algorithm: Algorithm) -> dict[str, Any]:
    """Every stage and every option of an algorithm, as a file holds them."""
    shown = {path: plain(value) for path, value in algorithm.paths().items()}
    return {"algorithm": shown, "stages": writing.written(algorithm)}


def plain(value: Any) -> Any:
    """An option's value as the configuration file holds it."""
    if isinstance(value, Schedule):
        return writing.value_text(value)
    if value is None:
        return "none"
    return list(value) if isinstance(value, tuple) else value


# By what the run learns from: the function that replaces a rollout, and why some have none.
STAND_INS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "episodes": (
        substitutes.playing,
        "answers once and cannot play turns: give a recipe that samples independently, such as "
        "grpo, or a task that is no environment",
    ),
    "agents": (
        substitutes.running,
        "samples answers in its own way, and an agent calls the model itself: give a recipe "
        "that samples independently, such as grpo, or another task",
    ),
    "records": (
        substitutes.reading,
        "samples answers in its own way, and recorded rollouts are not sampled: give a recipe "
        "that samples independently or plays turns, such as grpo, or another task",
    ),
    "posts": (
        substitutes.receiving,
        "samples answers in its own way, and posted rollouts are sampled elsewhere: give a "
        "recipe that samples independently or plays turns, such as grpo, or another task",
    ),
}


def learning_from(kind: str, algorithm: Algorithm, recipe: str) -> Algorithm:
    """The method with the rollout of a kind of STAND_INS in place of its own, with its options.

    Raises UserError, with the reason, for a rollout that cannot be replaced.
    """
    substitute, why = STAND_INS[kind]
    use = algorithm.rollout
    if (found := substitute(use.part)) is None:
        raise UserError(f"{recipe or 'the method'} has the rollout {use.label}, which {why}")
    return algorithm if found is use.part else dataclasses.replace(algorithm, rollout=Use(found))


def sampling_anew(algorithm: Algorithm) -> Algorithm:
    """The method with the policy's own answers in place of those that it reads."""
    return dataclasses.replace(algorithm, rollout=Use(substitutes.plain(algorithm.rollout.part)))


def balancing(algorithm: Algorithm, coef: float) -> Algorithm:
    """The method with a term that balances experts (`model.router_aux_loss_coef`), if it has none
    of that name.
    """
    if not coef or any(term.name == ROUTER for term in algorithm.terms):
        return algorithm
    term = Term(ROUTER, Use(BalanceExperts()), Use(AverageOverTokens()), coef=coef)
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, term))


def drawing_from_sources(algorithm: Algorithm, recipe: str) -> Algorithm:
    """The method with prompts drawn by the weights of their sources (`data.weights`).

    Raises UserError for one that chooses its prompts itself.
    """
    parts = [use.part for use in algorithm.sampling]
    if any(isinstance(part, DrawFromSources) for part in parts):
        return algorithm
    if not any(type(part) is DrawInShuffledOrder for part in parts):  # others choose prompts
        raise UserError(
            f"data.weights draws prompts by their source, and {recipe or 'the method'} chooses "
            f"them itself ({name_of(parts[0])}): leave the weights out, or give a method "
            "that draws in shuffled order, such as grpo"
        )
    sampling = tuple(
        Use(DrawFromSources(part.num_prompts, part.num_rollouts))
        if type(part := use.part) is DrawInShuffledOrder
        else use
        for use in algorithm.sampling
    )
    return dataclasses.replace(algorithm, sampling=sampling)
