"""Reads parts, terms and values from the one-line notation and puts them into a method.

The text is parsed as Python literals and names and never evaluated; `notation.py` has examples. An
option is named by its stage and field: `advantage.eps=1e-4`, `selection.h_low=linear(0.6, 0.4)`;
where two parts of a stage share the field, by stage, label and field.
"""

import ast
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, Self, TypeVar

from strop.catalogue import catalogue, peers
from strop.catalogue.seams import PLACE_OF, PLACES, SINGLE, SLOTS, STAGES
from strop.method.fitting import made
from strop.method.part import Term, Use, replace
from strop.method.schedule import Schedule
from strop.method.values import WORDS, GivenTwice, parse, value_of
from strop.method.writing import Text
from strop.support.errors import UserError, nearest, several

STAGE_ALIASES = {"loss": "terms", "probe": "probes"}
# How a method without a term of this name gets one: by a recipe, or by the term itself.
ADDING = {
    "kl": (
        "give the recipe a beta where it has one, as in grpo(beta=0.04)",
        "kl(objective=penalise_kl_to_reference, average=average_over_tokens, coef=0.04)",
    ),
    "entropy": (
        "take the recipe entropy_bonus",
        "entropy(objective=reward_entropy, average=average_over_tokens, coef=0.001)",
    ),
}


class OnePhase(Protocol):
    """What this module needs of an algorithm, a frozen dataclass whose fields are the stages."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the loss."""
        ...

    def paths(self) -> dict[str, Any]:
        """Every number and option by its full path."""
        ...

    def with_knobs(self, knobs: Mapping[str, Any]) -> Self:
        """The algorithm with values replaced along full paths."""
        ...


class AnyMethod(Protocol):
    """What this module needs of a method, which has one algorithm or one for each phase."""

    @property
    def sections(self) -> tuple[Any, ...]:
        """The algorithm of every phase, with the phase's name."""
        ...

    def paths(self) -> dict[str, Any]:
        """Every number and option by its full path."""
        ...

    def with_knobs(self, knobs: Mapping[str, Any]) -> Self:
        """The method with values replaced along full paths."""
        ...


A = TypeVar("A", bound=OnePhase)
M = TypeVar("M", bound=AnyMethod)


def chain(text: str) -> tuple[Use, ...]:
    """Read the parts of a stage, written as `part | part(field=value) | ...`."""
    return tuple(_use(link, text) for link in links(text))


def terms(text: str) -> tuple[Term, ...]:
    """Read the loss, written as `name(objective=part, average=part, ratio=part, coef=0.1) | ...`.

    The slots are on, ratio, correction, objective and average; learner is policy or critic.
    """
    return tuple(_term(link, text) for link in links(text))


def value(text: str) -> Any:
    """Read a number, text, list or schedule; a bare word is text."""
    try:
        node = parse(text)
    except GivenTwice:
        raise
    except UserError:
        return text
    if isinstance(node, ast.Name | ast.BinOp | ast.Attribute):
        return WORDS.get(text.strip().lower(), text)
    try:
        return value_of(node, text)
    except UserError:
        if isinstance(node, ast.Call):
            raise
        return text


def resolve(algorithm: OnePhase, path: str) -> str:
    """The full path of an option given by stage and field, or by more of its path.

    Raises UserError when nothing or more than one option fits.
    """
    head, *rest = path.split(".")
    head = STAGE_ALIASES.get(head, head)
    fitting = _matching(algorithm, path)
    exact = [full for full in fitting if full == ".".join([head, *rest])]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    if len(fitting) > 1:
        raise UserError(f"{path} could be {' or '.join(fitting)}: write one of these")
    known = algorithm.paths()
    same_stage = [full for full in known if full.split(".")[0] == head]
    if not same_stage:
        stages = sorted({full.split(".")[0] for full in known})
        hint = peers.ours(path) or f": stages with options are {', '.join(stages)}"
        raise UserError(f"no option {path}{hint}")
    term = rest[0] if head == "terms" and len(rest) > 1 else ""
    if term in ADDING and not any(full.startswith(f"terms.{term}.") for full in same_stage):
        recipe, text = ADDING[term]
        raise UserError(
            f"no option {path}: the method has no term {term}; {recipe}, or append to the stage "
            f"terms, which `strop recipes NAME --toml` shows: | {text}"
        )
    short = sorted({f"{full.split('.')[0]}.{full.split('.')[-1]}" for full in same_stage})
    near = peers.hint(path, same_stage if len(rest) > 1 else short)
    raise UserError(f"no option {path}{near}; {head} has {', '.join(short)}")


def override(method: M, path: str, new: Any) -> M:
    """The method with one option replaced; `path` as in `resolve`."""
    return override_all(method, {path: new})


def override_all(method: M, options: Mapping[str, Any]) -> M:
    """The method with options replaced, all at once: those of a part may come in any order.

    With phases, an option is replaced in all that have it, and `phases.NAME.path` in that one.
    Raises UserError for options that the method has not, all of them at once.
    """
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for path, new in options.items():
        try:
            found |= dict.fromkeys(_full_paths(method, path), new)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise several(wrong)
    known = method.paths()
    as_before = {p for p, new in found.items() if p in known
                 and type(known[p]) is type(new) and known[p] == new}  # fmt: skip
    return method.with_knobs({path: new for path, new in found.items() if path not in as_before})


def _full_paths(method: AnyMethod, path: str) -> list[str]:
    """The full paths of an option, one in each phase that has it. Raises UserError for none."""
    inside = {f"phases.{s.name}." if s.name else "": s.algorithm for s in method.sections}
    if not path.startswith("phases.") or len(inside) == 1:
        having = {head: each for head, each in inside.items() if _matching(each, path)}
        having = having or dict([*inside.items()][:1])  # which raises
        return [head + resolve(each, path) for head, each in having.items()]
    _, name, rest = [*path.split(".", 2), "", ""][:3]
    head = f"phases.{name}."
    if rest == "until" or head not in inside:
        return [path]  # where there is no such phase, setting it raises
    return [head + resolve(inside[head], rest)]


def replace_stage(algorithm: A, stage: str, text: Text) -> A:
    """Replace a stage of the algorithm, or a slot of its first term, by one given in notation.

    text: one line, or a list of its parts or terms.

    "loss" is the stage of all terms. An empty text, or "none", leaves the stage empty. Raises
    UserError for an unknown stage, or for several parts where there is room for one.
    """
    name, text = full_name(stage), one_line(text)
    if name in STAGES:
        return dataclasses.replace(algorithm, **{name: content(name, text)})
    if name not in PLACE_OF:
        known = [*STAGES, *(place.name for place in PLACES if place.slot)]
        raise UserError(f"no stage {stage!r}{nearest(stage, known)}; "
                        f"there are {', '.join(known)}")  # fmt: skip
    if not algorithm.terms:
        raise UserError(f"{stage}: there is no loss term to put it in; give terms")
    slot = PLACE_OF[name].slot
    part = _only(stage, text)
    if part is None and slot in ("objective", "average"):
        raise UserError(f"{stage}: a loss term needs one")
    first, *others = algorithm.terms
    slots: dict[str, Any] = {slot: part}
    changed = dataclasses.replace(first, **slots)
    return dataclasses.replace(algorithm, terms=(changed, *others))


def is_stage(name: str) -> bool:
    """Whether this is the name of a stage, or of a slot of a term."""
    return full_name(name) in {*STAGES, *PLACE_OF}


def full_name(stage: str) -> str:
    """The stage's own name: "terms" for "loss"."""
    return STAGE_ALIASES.get(stage, stage)


def replace_stages(algorithm: A, stages: Mapping[str, Text]) -> A:
    """Replace stages and slots of the algorithm, whole stages first, so that a slot's part goes
    into the terms that are given with it. Raises UserError for two names of one place.
    """
    given: dict[Any, str] = {}
    for stage in sorted(stages, key=lambda name: full_name(name) not in STAGES):
        place = PLACE_OF.get(stage, full_name(stage))
        if place in given:
            raise UserError(f"{given[place]} and {stage} are two names of one place: give one")
        given[place] = stage
        algorithm = replace_stage(algorithm, stage, stages[stage])
    return algorithm


def lies_in(path: str, stage: str) -> bool:
    """Whether the option with this full path belongs to a part of the stage or slot."""
    head, *inside = path.split(".")
    stage = STAGE_ALIASES.get(stage, stage)
    if stage in STAGES:
        return STAGE_ALIASES.get(head, head) == stage
    return PLACE_OF[stage].slot in inside[:-1]


def content(stage: str, text: str) -> Any:
    """Read the notation of a stage: terms, a chain, one part or None."""
    if stage == "rollout" and _is_empty(text):
        raise UserError("rollout: there is none; sample_independently is the plainest")
    if stage in SINGLE:
        return _only(stage, text)
    if _is_empty(text):
        return ()
    return terms(text) if stage == "terms" else chain(text)


def one_line(text: Text) -> str:
    return text if isinstance(text, str) else " | ".join(text)


def _is_empty(text: str) -> bool:
    return text.strip().lower() in ("", "none")


def _only(stage: str, text: str) -> Use | None:
    if _is_empty(text):
        return None
    uses = chain(text)
    if len(uses) > 1:
        raise UserError(f"{stage} has room for one part, {text!r} has {len(uses)}")
    return uses[0]


def links(text: str) -> list[ast.expr]:
    """The expressions between the bars."""
    node: ast.expr = parse(text)
    last: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        last = [node.right, *last]
        node = node.left
    return [node, *last]


def _use(node: ast.expr, text: str) -> Use:
    label, columns = "", list[tuple[str, str]]()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        label = _word(node.right, text)
        node = node.left
    if isinstance(node, ast.Subscript):
        inside = node.slice
        for pair in inside.elts if isinstance(inside, ast.Tuple) else [inside]:
            if not isinstance(pair, ast.Slice) or not pair.lower or not pair.upper or pair.step:
                raise UserError(f"{text!r}: columns are renamed as part[parameter: column, ...]")
            columns.append((_word(pair.lower, text), _word(pair.upper, text)))
        node = node.value
    return Use(_part(node, text), tuple(columns), label)


def _word(node: ast.expr, text: str) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        return node.value
    raise UserError(f"{text!r}: {ast.unparse(node)} is no name")


def _term(node: ast.expr, text: str) -> Term:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise UserError(f"{text!r}: write a loss term as name(objective=part, average=part, ...)")
    given: dict[str, Any] = {}
    for each in node.keywords:
        if each.arg in SLOTS:
            given[each.arg] = _use(each.value, text)
        elif each.arg == "coef":
            given["coef"] = value_of(each.value, text)
        elif each.arg == "learner":
            given["learner"] = _word(each.value, text)
        else:
            known = (*SLOTS, "coef", "learner")
            near = nearest(each.arg or "", known)
            has = f"it has {', '.join(known)}"
            raise UserError(f"{text!r}: a loss term has no {each.arg}{near}; {has}")
    if missing := [slot for slot in ("objective", "average") if slot not in given]:
        raise UserError(f"{text!r}: the loss term {node.func.id} has no {missing[0]}")
    if not isinstance(given.get("coef", 1.0), int | float | Schedule):
        raise UserError(f"{text!r}: coef must be a number or a schedule")
    return Term(node.func.id, **given)


def _matching(algorithm: OnePhase, path: str) -> list[str]:
    """The full paths that an option may stand for."""
    return options_of(path, algorithm.paths())


def options_of(path: str, all_of: Iterable[str]) -> list[str]:
    """The options that a path of stage and field, or of more of its pieces, may stand for."""
    head, *rest = path.split(".")
    return [full for full in all_of if _fits(full, full_name(head), rest)]


def _fits(full: str, head: str, rest: list[str]) -> bool:
    if not rest or not full.startswith(f"{head}.") or not full.endswith(f".{rest[-1]}"):
        return False
    remaining = iter(full.split(".")[1:-1])
    return all(piece in remaining for piece in rest[:-1])


def named_call(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, {}
    if isinstance(node, ast.Call) and not node.args:
        name, _ = named_call(node.func, text)
        if any(keyword.arg is None for keyword in node.keywords):
            raise UserError(f"{text!r}: ** is not allowed")
        return name, {k.arg or "": value_of(k.value, text) for k in node.keywords}
    raise UserError(f"{text!r}: write a name, or name(parameter=value, ...)")


def _part(node: ast.expr, text: str) -> Any:
    name, arguments = named_call(node, text)
    part = made(name, catalogue.load("part", name))
    return replace(part, **arguments) if arguments else part
