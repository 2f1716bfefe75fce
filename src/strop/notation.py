"""The one-line notation of algorithms: parsed as Python literals and names, never evaluated.

    grpo
    entrocraft(h_low=linear(0.6, 0.4), h_high=linear(0.7, 0.5))
    subtract_group_mean | divide_by_group_std(eps=1e-4) | spread_evenly
    "my_parts.py:SubtractBest"(power=2) | spread_evenly

Overrides name an option by its stage and field: `advantage.eps=1e-4`, `loss.clip_high=0.28`,
`selection.h_low=linear(0.6, 0.4)`; where two parts of a stage share the field, by stage, label and
field.
"""

import ast
import dataclasses
import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

from strop import catalogue
from strop.algorithm import Algorithm, Term
from strop.errors import UserError
from strop.part import Use, name_of, replace
from strop.schedule import SCHEDULES
from strop.seams import CHAINS, SINGLE, SLOTS, STAGES

STAGE_ALIASES = {"loss": "terms", "probe": "probes"}


def recipe(text: str, **defaults: Any) -> Algorithm:
    """The algorithm of a recipe written as `name` or `name(parameter=value, ...)`."""
    name, arguments = named(text)
    return build_recipe(name, arguments, **defaults)


def named(text: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of what is written as `name` or `name(parameter=value, ...)`."""
    return _named_call(_parse(text), text)


def build_recipe(name: str, arguments: Mapping[str, Any], **defaults: Any) -> Algorithm:
    """The recipe `name` with parameters. Raises UserError naming the right parameters."""
    function = catalogue.load("recipe", name)
    known = inspect.signature(function).parameters
    for argument in arguments:
        if argument not in known:
            raise UserError(
                f"recipe {name} has no parameter {argument}{catalogue.nearest(argument, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )
    merged = {**{k: v for k, v in defaults.items() if k in known}, **arguments}
    try:
        return function(**merged)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"recipe {name}: {error}") from error


def chain(text: str) -> tuple[Use, ...]:
    """The parts of a stage written as `part | part(field=value) | ...`."""
    node = _parse(text)
    links: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        links.insert(0, node.right)
        node = node.left
    return tuple(Use(_part(link, text)) for link in [node, *links])


def value(text: str) -> Any:
    """A number, text, list or schedule; a bare word is text."""
    try:
        node = _parse(text)
    except UserError:
        return text
    if isinstance(node, ast.Name | ast.BinOp | ast.Attribute):
        words = {"true": True, "false": False, "none": None, "inf": math.inf}
        return words.get(text.strip().lower(), text)
    try:
        return _value(node, text)
    except UserError:
        if isinstance(node, ast.Call):
            raise
        return text


def resolve(algorithm: Algorithm, path: str) -> str:
    """The full path of an option given by stage and field, or by more of its path.

    Raises UserError when nothing or more than one option fits.
    """
    head, *rest = path.split(".")
    head = STAGE_ALIASES.get(head, head)
    known = algorithm.paths()
    fitting = [full for full in known if _fits(full, head, rest)]
    exact = [full for full in fitting if full == ".".join([head, *rest])]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    if len(fitting) > 1:
        raise UserError(f"{path} could be {' or '.join(fitting)}: write one of these")
    same_stage = [full for full in known if full.split(".")[0] == head]
    if not same_stage:
        stages = sorted({full.split(".")[0] for full in known})
        raise UserError(f"no option {path}: stages with options are {', '.join(stages)}")
    short = sorted({f"{full.split('.')[0]}.{full.split('.')[-1]}" for full in same_stage})
    raise UserError(
        f"no option {path}{catalogue.nearest(path, short)}; {head} has {', '.join(short)}"
    )


def override(algorithm: Algorithm, path: str, new: Any) -> Algorithm:
    """The algorithm with one option replaced; `path` as in `resolve`."""
    return algorithm.with_knobs({resolve(algorithm, path): new})


def replace_stage(algorithm: Algorithm, stage: str, text: str) -> Algorithm:
    """The algorithm with a stage's parts, or a slot of its policy term, given in notation.

    Raises UserError for an unknown stage, or for several parts where there is room for one.
    """
    uses = chain(text)
    changes: dict[str, Any] = {stage: uses}
    if stage in CHAINS:
        return dataclasses.replace(algorithm, **changes)
    slot = {"bound": "objective"}.get(stage, stage)
    if stage not in SINGLE and slot not in SLOTS:
        known = [*CHAINS, *SINGLE, "bound", *SLOTS]
        raise UserError(f"no stage {stage!r}{catalogue.nearest(stage, known)}; "
                        f"there are {', '.join(known)}")  # fmt: skip
    if len(uses) != 1:
        raise UserError(f"{stage} has room for one part, {text!r} has {len(uses)}")
    changes = {stage if stage in SINGLE else slot: uses[0]}
    if stage in SINGLE:
        return dataclasses.replace(algorithm, **changes)
    first, *others = algorithm.terms
    changed = dataclasses.replace(first, **changes)
    return dataclasses.replace(algorithm, terms=(changed, *others))


def describe(algorithm: Algorithm) -> dict[str, list[str]]:
    """Every stage as notation text, for the configuration file and for people."""
    shown: dict[str, list[str]] = {}
    for stage in STAGES:
        content = getattr(algorithm, stage)
        if stage == "terms":
            shown[stage] = [_term_text(term) for term in content]
        elif isinstance(content, tuple):
            shown[stage] = [part_text(use.part) for use in content]
        else:
            shown[stage] = [part_text(content.part)] if content is not None else []
    return shown


def part_text(part: Any) -> str:
    """The part with the fields that differ from their defaults, `clip_both_sides(clip_low=0.1)`."""
    changed = {
        f: getattr(part, f) for f in type(part).__dataclass_fields__
        if getattr(part, f) != getattr(type(part)(), f)
    }  # fmt: skip
    inside = ", ".join(f"{k}={value_text(v)}" for k, v in changed.items())
    return name_of(part) + (f"({inside})" if inside else "")


def value_text(item: Any) -> str:
    """A field's value as notation: schedules as calls, the rest as literals."""
    for name, kind in SCHEDULES.items():
        if type(item) is kind:
            return f"{name}({', '.join(repr(v) for v in vars(item).values())})"
    return repr(item)


def _term_text(term: Term) -> str:
    slots = ", ".join(f"{slot}={part_text(use.part)}" for slot, use in term.uses())
    return f"{term.name}: coef={value_text(term.coef)}, {slots}"


def _fits(full: str, head: str, rest: list[str]) -> bool:
    first, *others = full.split(".")
    if first != head or not rest or others[-1] != rest[-1]:
        return False
    remaining = iter(others[:-1])
    return all(piece in remaining for piece in rest[:-1])


OWN = re.compile(r"(?<![\w./:-])([\w./-]+:[A-Za-z_]\w*)")


def _parse(text: str) -> ast.expr:
    if not {"'", '"'} & set(text):  # my_parts.py:Part(x=1) -> "my_parts.py:Part"(x=1)
        text = OWN.sub(r'"\1"', text)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        where = f" at character {error.offset}" if error.offset else ""
        raise UserError(f"cannot read {text!r}{where}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"cannot read {text[:80]!r}: {error}") from error


def _named_call(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, {}
    if isinstance(node, ast.Call) and not node.args:
        name, _ = _named_call(node.func, text)
        if any(keyword.arg is None for keyword in node.keywords):
            raise UserError(f"{text!r}: ** is not allowed")
        return name, {k.arg or "": _value(k.value, text) for k in node.keywords}
    raise UserError(f"{text!r}: write a name, or name(parameter=value, ...)")


def _part(node: ast.expr, text: str) -> Any:
    name, arguments = _named_call(node, text)
    kind = catalogue.load("part", name)
    return replace(kind(), **arguments) if arguments else kind()


def _numbers(items: tuple[Any, ...]) -> list[Any]:
    """The items, those of tuples inside tuples too."""
    inside = [_numbers(item) if isinstance(item, tuple) else [item] for item in items]
    return [item for group in inside for item in group]


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        schedule = SCHEDULES.get(node.func.id)
        if schedule is None:
            near = catalogue.nearest(node.func.id, SCHEDULES)
            raise UserError(f"{text!r}: no schedule {node.func.id}{near or '; there are '}"
                            f"{'' if near else ', '.join(SCHEDULES)}")  # fmt: skip
        positional = [_value(a, text) for a in node.args]
        named = {k.arg or "": _value(k.value, text) for k in node.keywords}
        for number in _numbers((*positional, *named.values())):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise UserError(f"{text!r}: {node.func.id} takes numbers, got {number!r}")
        try:
            return schedule(*positional, **named)
        except TypeError as error:
            raise UserError(f"{text!r}: {error}") from error
    if ast.unparse(node) in ("inf", "-inf"):
        return float(ast.unparse(node))
    if isinstance(node, ast.List | ast.Tuple):
        return tuple(_value(item, text) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{text!r}: {ast.unparse(node)} is not a number, text or schedule"
        ) from error
