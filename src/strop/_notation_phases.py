"""Phases in the one-line notation, `until(200, grpo(num_rollouts=8)) @ broad | grpo @ hard`."""

import ast
from collections.abc import Callable

from strop._notation_text import describe
from strop.algorithm import Algorithm, free_label
from strop.errors import UserError
from strop.phases import Method, Phase, Phases, Until, read_until

Build = Callable[[ast.expr], tuple[str, Method]]  # a recipe's name and what it makes


def is_phased(links: list[ast.expr]) -> bool:
    """Whether what stands between the bars are phases, not one recipe."""
    return len(links) > 1 or _until(_unlabelled(links[0])) is not None


def read_phases(links: list[ast.expr], text: str, build: Build) -> Phases:
    """The phases of a line, each with its recipe's name where it has no label. Raises UserError."""
    found: list[Phase] = []
    for link in links:
        call = _until(_unlabelled(link))
        until, inside = (None, _unlabelled(link)) if call is None else _parts(call, text)
        name, method = build(inside)
        if not isinstance(method, Algorithm):
            raise UserError(f"{text!r}: {name} has phases of its own: a phase is one algorithm")
        label = ast.unparse(link.right) if isinstance(link, ast.BinOp) else name
        if isinstance(link, ast.BinOp) and not isinstance(link.right, ast.Name):
            raise UserError(f"{text!r}: {label} is no name of a phase")
        taken = [phase.name for phase in found]
        own = label if isinstance(link, ast.BinOp) else free_label(_word(label), taken)
        found.append(Phase(method, until, own))
    return Phases(tuple(found))


def _word(name: str) -> str:
    """The last word of a recipe's name: "my_recipes.py:wide" -> "wide"."""
    return name.rpartition(":")[2]


def _unlabelled(link: ast.expr) -> ast.expr:
    labelled = isinstance(link, ast.BinOp) and isinstance(link.op, ast.MatMult)
    return link.left if labelled and isinstance(link, ast.BinOp) else link


def _until(node: ast.expr) -> ast.Call | None:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    found = called and isinstance(node, ast.Call) and ast.unparse(node.func) == "until"
    return node if found and isinstance(node, ast.Call) else None


def _parts(call: ast.Call, text: str) -> tuple[Until, ast.expr]:
    if len(call.args) != 2 or call.keywords:
        raise UserError(f"{text!r}: write a phase as until(step or condition, recipe)")
    when, inside = call.args
    constant = isinstance(when, ast.Constant)
    return read_until(when.value if constant else ast.unparse(when)), inside  # type: ignore[attr-defined]


def shown(method: Method) -> dict[str, list[str]]:
    """Every stage as notation, for people; where phases differ, each phase's own.

    The stage "phases" says which there are and when each is over.
    """
    if isinstance(method, Algorithm):
        return describe(method)
    stages = {phase.name: describe(phase.algorithm) for phase in method.phases}
    first = stages[method.names[0]]
    found = {"phases": [_phase_text(phase) for phase in method.phases]}
    for stage, texts in first.items():
        if all(each[stage] == texts for each in stages.values()):
            found[stage] = texts
        else:
            found |= {f"{stage} ({name})": each[stage] for name, each in stages.items()}
    return found


def _phase_text(phase: Phase) -> str:
    return phase.name if phase.until is None else f"{phase.name} until {phase.until.text}"
