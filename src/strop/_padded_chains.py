"""Which parts of an algorithm a call at the padded door runs, and what they ask for."""

import dataclasses
from collections.abc import Collection, Sequence

from strop import part as parts
from strop.algorithm import Algorithm, Term
from strop.part import Use
from strop.services import NAMES as SERVICES


def leading_to(uses: Sequence[Use], wanted: Collection[str]) -> tuple[Use, ...]:
    """Of a chain of parts those that the wanted columns, as they are at its end, depend on."""
    live = {*wanted}
    kept: list[Use] = []
    for number, use in reversed([*enumerate(uses)]):
        written = {*parts.writes(use)}
        if not written & live:
            continue
        if any(parameter.name == "batch" for parameter in parts.parameters(use.part)):
            return (*uses[: number + 1], *kept[::-1])  # it may read anything
        kept.append(use)
        live = (live - written) | {read.column for read in parts.reads(use)}
    return tuple(kept[::-1])


def asks(use: Use) -> bool:
    """Whether a part asks for more than columns: texts, verifiers, an engine."""
    return bool(SERVICES & {parameter.name for parameter in parts.parameters(use.part)})


def is_penalty(term: Term) -> bool:
    """Whether the term is a bonus or a divergence beside what the policy learns."""
    return parts.kind_of(term.objective.part) == "loss/penalty"


def over_the_mask(term: Term) -> Term:
    """A term by itself: where it is of tokens of one origin, they are those of the mask."""
    of_origin = term.on is not None and any(r.column == "origin_T" for r in parts.reads(term.on))
    return dataclasses.replace(term, on=None) if of_origin else term


def learning(algorithm: Algorithm) -> list[tuple[str, Use, str]]:
    """The parts that keep a state by `update` or `observe`, with path and the name of that."""
    return [
        (path, use, hook)
        for path, use in algorithm.uses()
        for hook in ("observe", "update")
        if hasattr(use.part, hook)
    ]
