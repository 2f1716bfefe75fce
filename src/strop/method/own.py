"""Finds the parts that a method's parent lacks, and the metrics that they log."""

from collections.abc import Iterable, Mapping

from strop.catalogue import catalogue
from strop.catalogue.entries import Entry
from strop.catalogue.logged import logged_by
from strop.method.algorithm import Method
from strop.method.part import Term, Use, kind_of, reads
from strop.support.loading import name_to_load

Placed = Mapping[str, Use]  # by path


def own_uses(method: Method, parent: Method | None) -> Placed:
    """The parts, by path, that the parent has nowhere with these fields and columns.

    Without a parent these are all parts.
    """
    theirs = [(use.part, use.columns) for _, use in parent.uses()] if parent else []
    return {path: use for path, use in method.uses() if (use.part, use.columns) not in theirs}


def entry_of(part: object) -> Entry | None:
    """The part's entry: of a listed one, or of a class in a user's file; None for any other."""
    place = name_to_load(type(part))
    file, _, name = place.partition(":")
    if file.endswith(".py") and name.isidentifier():
        return catalogue.find("part", place)
    listed = catalogue.parts(kind_of(part))
    own = (type(part).__module__, type(part).__name__)
    return next((entry for entry in listed if (entry.module, entry.attribute) == own), None)


def logged_at(path: str, use: Use) -> frozenset[str]:
    """The metrics that the part at a place logs; none where it has no entry.

    A part's `unlogged` names the metrics that its current fields keep it from logging. A selection
    that narrows a term drops nothing from the step.
    """
    entry = entry_of(use.part)
    unlogged: frozenset[str] = getattr(use.part, "unlogged", frozenset())
    found = frozenset(logged_by(entry)) - unlogged if entry is not None else frozenset()
    of_term = path.startswith("terms.")
    return frozenset(n for n in found if not (of_term and n.startswith("selection/dropped/")))


def own_metrics(method: Method, parent: Method | None) -> tuple[str, ...]:
    """The metrics that a run of the method logs for its own parts and terms, sorted.

    Metrics that the parent logs too are included only where there are no others.
    """
    found = _logged(method, own_uses(method, parent))
    before = _logged(parent, dict(parent.uses())) if parent is not None else frozenset[str]()
    return tuple(sorted(found - before or found))


def _logged(method: Method, placed: Placed) -> frozenset[str]:
    """The metrics that a run logs for these places, and for the terms whose objective is one."""
    of_parts = [logged_at(path, use) for path, use in placed.items()]
    return frozenset().union(*of_parts, *map(metrics_of, terms_at(method, placed)))


def terms_at(method: Method, placed: Placed) -> Iterable[Term]:
    """The terms whose objective is at one of these places."""
    terms = [term for algorithm in method.algorithms for term in algorithm.terms]
    return [term for term in terms if f"terms.{term.name}.objective" in placed]


def metrics_of(term: Term) -> tuple[str, ...]:
    """The metrics of a policy term: its loss, and its mean over whole distributions."""
    if term.learner != "policy":
        return ()
    asked = [read.column for read in reads(term.objective) if read.required]
    whole = any(column.endswith("_TV") for column in asked)
    names = [f"objective/{term.name}"] if whole else []
    return (*names, *([f"loss/{term.name}"] if term.name != "policy" else []))
