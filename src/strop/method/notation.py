"""The one-line notation of algorithms: parsed as Python literals and names, never evaluated.

    grpo
    entrocraft(h_low=linear(0.6, 0.4), h_high=linear(0.7, 0.5))
    until(32, grpo(num_rollouts=8)) @ broad | grpo @ hard
    subtract_group_mean | divide_by_group_std(eps=1e-4) | spread_evenly
    "my_parts.py:SubtractBest"(power=2) | spread_evenly
    spread_turns[advantage_K: return_K, advantage_T: return_low_T] @ returns_low
    policy(ratio=ratio_per_token, objective=clip_both_sides, average=average_over_tokens) | kl(...)

Brackets hold the columns that a part reads or writes in place of its own. Its label stands after @
where it is not the part's name. The last line is the loss, term by term. `describe` writes an
algorithm as text and `compose` reads it; two different algorithms never have the same text.

Overrides name an option by its stage and field: `advantage.eps=1e-4`, `loss.clip_high=0.28`,
`selection.h_low=linear(0.6, 0.4)`. Where two parts of a stage share the field, they name it by
stage, label and field.
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from strop.catalogue import catalogue, peers
from strop.method.algorithm import Algorithm, Method, Phase, Phases, Until, read_until
from strop.method.fitting import declared, fitting
from strop.method.part import free_label
from strop.method.reading import content, links, named_call, one_line, replace_stages
from strop.method.schedule import Schedule
from strop.method.values import parse
from strop.method.writing import Text, describe
from strop.support.errors import UserError

Build = Callable[[ast.expr], tuple[str, Method]]  # a recipe's name and what it makes


def recipe(text: str, **defaults: Any) -> Method:
    """The method of a recipe written as `name` or `name(parameter=value, ...)`, or of several
    recipes written as `until(step or condition, recipe) | recipe`.
    """

    def build(node: ast.expr) -> tuple[str, Method]:
        name, arguments = named_call(node, text)
        return name, build_recipe(name, arguments, **defaults)

    between = links(text)
    return _read_phases(between, text, build) if _is_phased(between) else build(between[0])[1]


def named(text: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a text such as `name` or `name(parameter=value, ...)`."""
    return named_call(parse(text), text)


def build_recipe(name: str, arguments: Mapping[str, Any], **defaults: Any) -> Method:
    """The recipe `name` with parameters. Raises UserError naming the right parameters."""
    function = catalogue.load("recipe", name)
    known = inspect.signature(function).parameters
    for argument in arguments:
        if argument not in known:
            raise UserError(
                f"recipe {name} has no parameter {argument}{peers.hint(argument, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )
    merged = {**{k: v for k, v in defaults.items() if k in known}, **arguments}
    for argument, new in merged.items():
        hint, old = known[argument].annotation, known[argument].default
        if isinstance(hint, str):  # of a file with `from __future__ import annotations`
            hint = declared(function).get(argument)
        hint = None if hint is inspect.Parameter.empty else hint
        merged[argument] = fitting(f"recipe {name}: {argument}", hint, old, new)
    try:
        algorithm: Method = function(**merged)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"recipe {name}: {_why(merged, error)}") from error
    if not isinstance(algorithm, Method):
        raise UserError(
            f"recipe {name} returned {type(algorithm).__name__}, it must return an Algorithm or "
            "Phases"
        )
    return algorithm


def _why(arguments: Mapping[str, Any], error: Exception) -> str:
    """Why a recipe rejected its arguments."""
    scheduled = [name for name, value in arguments.items() if isinstance(value, Schedule)]
    if not scheduled:
        return str(error)
    return (
        f"{' or '.join(scheduled)} cannot be a schedule, because the recipe computes with its "
        "number before the run: give a number, or set an option of a part to the schedule "
        "(stage.option=...)"
    )


def compose(stages: Mapping[str, Text]) -> Algorithm:
    """The algorithm of stages in notation, as `written` gives them. Raises UserError."""
    rollout = content("rollout", one_line(stages.get("rollout", "")))
    return replace_stages(Algorithm(sampling=(), rollout=rollout), stages)


def _is_phased(links: list[ast.expr]) -> bool:
    """Whether the texts between the bars are phases and not one recipe."""
    return len(links) > 1 or _until(_unlabelled(links[0])[0]) is not None


def _read_phases(links: list[ast.expr], text: str, build: Build) -> Phases:
    """The phases of a line; one without a label gets its recipe's name. Raises UserError."""
    found: list[Phase] = []
    for link in links:
        until, (inside, label) = None, _unlabelled(link)
        if (call := _until(inside)) is not None:
            until, inside = _until_parts(call, text)
        name, method = build(inside)
        if not isinstance(method, Algorithm):
            raise UserError(f"{text!r}: {name} has phases of its own: a phase is one algorithm")
        if not isinstance(label, ast.Name | None):
            raise UserError(f"{text!r}: {ast.unparse(label)} is no name of a phase")
        if label is None:  # "my_recipes.py:wide" -> "wide"
            own = free_label(name.rpartition(":")[2], [phase.name for phase in found])
        else:
            own = label.id
        found.append(Phase(method, until, own))
    return Phases(tuple(found))


def _unlabelled(link: ast.expr) -> tuple[ast.expr, ast.expr | None]:
    """A link without its label, and the label."""
    if isinstance(link, ast.BinOp) and isinstance(link.op, ast.MatMult):
        return link.left, link.right
    return link, None


def _until(node: ast.expr) -> ast.Call | None:
    match node:
        case ast.Call(func=ast.Name(id="until")):
            return node
    return None


def _until_parts(call: ast.Call, text: str) -> tuple[Until, ast.expr]:
    if len(call.args) != 2 or call.keywords:
        raise UserError(f"{text!r}: write a phase as until(step or condition, recipe)")
    when, inside = call.args
    given = when.value if isinstance(when, ast.Constant) else ast.unparse(when)
    return read_until(given), inside


def shown(method: Method) -> dict[str, list[str]]:
    """Every stage as notation, for people; where phases differ, once for each phase.

    The entry "phases" lists the phases and when each ends.
    """
    if len(method.algorithms) == 1:
        return describe(method.algorithms[0])
    stages = {each.name: describe(each.algorithm) for each in method.sections}
    first = next(iter(stages.values()))
    found = {"phases": [each.text for each in method.sections]}
    for stage, texts in first.items():
        if all(each[stage] == texts for each in stages.values()):
            found[stage] = texts
        else:
            found |= {f"{stage} ({name})": each[stage] for name, each in stages.items()}
    return found
