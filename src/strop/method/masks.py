"""Applies `rollout.sampling_mask` to a method, and checks it.

The option says how the method treats draws that top_p, top_k or min_p cut.
"""

import dataclasses

from strop.catalogue import catalogue
from strop.method import part as parts
from strop.method.algorithm import Algorithm, advantage_of
from strop.method.part import Term, Use
from strop.support.errors import UserError

WEIGH = "weigh_by_kept_mass"
# How the names of columns end or begin that are computed from the whole vocabulary's distribution.
WHOLE = ("_TV", "mean_logp", "sum_pi_squared", "kl_ref_old_T", "min_p_")
# Services that score tokens without kept sets, or store rows without them.
BESIDE = {
    "scoring": "scores tokens that were not drawn there",
    "stores": "keeps rollouts in files, which kept sets are not in",
}


def with_mask(algorithm: Algorithm) -> Algorithm:
    """The algorithm with the changes of its `sampling_mask`. Raises UserError where it has none."""
    part = algorithm.rollout.part
    mask = getattr(part, "sampling_mask", "ignore")
    if mask == "weigh" and part.cuts:
        return _weighed(algorithm)
    if mask == "renormalise" and part.cuts:
        _check_renormalised(algorithm)
    return algorithm


def _weighed(algorithm: Algorithm) -> Algorithm:
    """The algorithm with every term that reads advantages weighed by the kept mass."""
    weigh = Use(catalogue.load("part", WEIGH)())
    paid = [t for t in algorithm.terms if t.learner == "policy" and advantage_of(t)]
    if not paid:
        raise UserError(
            "rollout.sampling_mask=weigh weighs the terms that read advantages, and this method "
            "has none: leave it out"
        )
    for term in paid:
        if term.correction is not None and not _is(term.correction, weigh):
            raise UserError(
                f"rollout.sampling_mask=weigh: the term {term.name} has the correction "
                f"{term.correction.label}, whose weights contain the kept mass already: leave one "
                "of the two out"
            )

    def changed(term: Term) -> Term:
        return dataclasses.replace(term, correction=weigh) if term in paid else term

    return dataclasses.replace(algorithm, terms=tuple(map(changed, algorithm.terms)))


def _is(use: Use, other: Use) -> bool:
    return type(use.part) is type(other.part)


def _check_renormalised(algorithm: Algorithm) -> None:
    """Raise UserError for a part that needs what a renormalised run does not have."""
    rollout = algorithm.rollout
    if any(getattr(rollout.part, f"needs_{what}") for what in ("traces", "live", "agent")):
        raise _refused(rollout.label, "takes answers from records, which kept sets are not in")
    for _, use in algorithm.uses():
        named = {parameter.name for parameter in parts.parameters(use.part)}
        for service in BESIDE.keys() & named:
            raise _refused(use.label, BESIDE[service])
        for read in parts.reads(use):
            if read.required and (
                read.column.endswith(WHOLE[0]) or read.column.startswith(WHOLE[1:])
            ):
                why = f"reads {read.column}, which is of the whole vocabulary"
                raise _refused(use.label, why)


def _refused(label: str, why: str) -> UserError:
    return UserError(
        f"rollout.sampling_mask=renormalise: {label} {why}, while the run's log-probabilities are "
        "over what top_p, top_k and min_p left: leave the part or the cuts out, or take "
        "sampling_mask=weigh or ignore"
    )
