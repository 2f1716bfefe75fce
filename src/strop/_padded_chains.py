"""Which parts of an algorithm a call at the padded door runs, and what they ask for."""

import dataclasses
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from strop import part as parts
from strop.algorithm import Algorithm, Term
from strop.batch import Batch
from strop.chains import Chains
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


def asks(use: Use) -> frozenset[str]:
    """What a part asks for beside columns: texts, verifiers, an engine."""
    return SERVICES & {parameter.name for parameter in parts.parameters(use.part)}


def told_to_plan(algorithm: Algorithm) -> tuple[str, ...]:
    """The columns of the plan's own: what updates have measured, where it is given."""
    declared = getattr(algorithm.plan.part, "declares", ()) if algorithm.plan else ()
    return tuple(column.name for column in declared)


def carried(algorithm: Algorithm, chains: Chains, batch: Batch) -> Tensor:
    """Advantages [T] with the factors of a plan whose updates changed turns by `turn_change_K`."""
    advantage_T: Tensor = batch["advantage_T"]
    if algorithm.plan is None or "turn_change_K" not in batch:
        return advantage_T
    plan = chains.call("plan", algorithm.plan, batch).value
    change_T = batch["turn_change_K"].nan_to_num()[batch["turn_T"]]
    none_T, factor_T = torch.zeros_like(change_T), torch.ones_like(advantage_T)
    update = next(plan, None)
    while update is not None:
        factor_T = torch.where(update.tokens_T, update.factor_T, factor_T)
        changed_T = torch.where(update.tokens_T, change_T, none_T)
        try:
            update = plan.send((batch, {"logp_old_T": none_T, "logp_T": changed_T}))
        except StopIteration:
            update = None
    return advantage_T * factor_T


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
