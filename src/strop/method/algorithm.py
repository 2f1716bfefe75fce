"""Parts put together: the stages of a step as one value, and its options by path.

`check.py` says which compositions make sense; `seams.py` lists the stages.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strop.catalogue.seams import CHAINS, SINGLE, STAGES
from strop.method import part as parts
from strop.method.fitting import fitting
from strop.method.part import Use, distinct
from strop.method.schedule import Schedule, number_at
from strop.method.shown import Section, Shown
from strop.method.term import Term, trained_values
from strop.support.errors import UserError


@dataclass(frozen=True, repr=False)
class Algorithm(Shown):
    """One training method: which parts run at each stage of a step."""

    sampling: tuple[Use, ...]
    rollout: Use
    reward: tuple[Use, ...] = ()
    curation: tuple[Use, ...] = ()
    probes: tuple[Use, ...] = ()
    advantage: tuple[Use, ...] = ()
    selection: tuple[Use, ...] = ()
    terms: tuple[Term, ...] = ()
    rates: tuple[Use, ...] = ()
    plan: Use | None = None
    control: tuple[Use, ...] = ()

    def __post_init__(self) -> None:
        for stage in CHAINS:
            object.__setattr__(self, stage, distinct(getattr(self, stage)))
        names = [term.name for term in self.terms]
        if len(set(names)) != len(names):
            raise UserError(f"two loss terms share a name: {', '.join(names)}")

    def uses(self) -> Iterator[tuple[str, Use]]:
        """(path, use) of every place, in the order of a step."""
        for stage in STAGES:
            if stage == "terms":
                for term in self.terms:
                    yield from ((f"terms.{term.name}.{slot}", use) for slot, use in term.uses())
            elif stage in SINGLE:
                use = getattr(self, stage)
                if use is not None:
                    yield f"{stage}.{use.label}", use
            else:
                yield from ((f"{stage}.{use.label}", use) for use in getattr(self, stage))

    def reads(self, stages: tuple[str, ...] = STAGES) -> frozenset[str]:
        """Every column that some part of these stages reads, in its call or at the step's end."""
        return frozenset(
            column
            for path, use in self.uses()
            if path.split(".")[0] in stages
            for column in (*(read.column for read in parts.reads(use)), *parts.update_reads(use))
        )

    def value_columns(self) -> tuple[str, ...]:
        """The critic's heads: the value columns that the objectives of its terms read, sorted."""
        found: set[str] = set()
        for term in self.terms:
            found |= set(trained_values(term))
        return tuple(sorted(found))

    def facts(self) -> frozenset[str]:
        """All facts that the parts state."""
        return frozenset(fact for _, use in self.uses() for fact in parts.facts(use))

    # -- a method of one phase; `phases.py` has those of several ------------------------

    @property
    def sections(self) -> tuple[Section, ...]:
        """The algorithm of every phase: this one, which has no name."""
        return (Section("", "", self),)

    @property
    def algorithms(self) -> tuple["Algorithm", ...]:
        """The algorithm of every phase: this one."""
        return (self,)

    def in_phase(self, number: int) -> "Algorithm":
        """The algorithm of a phase: this one."""
        return self

    def knobs_in(self, number: int, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the knobs that count in a phase: all."""
        return dict(knobs)

    def each(self, change: Callable[["Algorithm"], "Algorithm"], only: str = "") -> "Algorithm":
        """The algorithm changed. Raises UserError where `only` names a phase."""
        if only:
            raise UserError(f"no phase {only!r}: this method has one algorithm from end to end")
        return change(self)

    def check_steps(self, num_steps: int) -> None:
        """One phase comes in any run."""

    def next(
        self, now: Mapping[str, int], step: int, num_steps: int, metrics: Mapping[str, float]
    ) -> dict[str, int]:
        """The phase of the step after `step`: the same."""
        return dict(now)

    # -- paths: "advantage.divide_by_group_std.eps", "terms.policy.objective.clip_low" ----------

    def paths(self) -> dict[str, Any]:
        """Every number and option by its full path."""
        found: dict[str, Any] = {}
        for path, use in self.uses():
            for name, value in parts.fields_of(use.part).items():
                found[f"{path}.{name}"] = value
        for term in self.terms:
            found[f"terms.{term.name}.coef"] = term.coef
        return found

    def with_knobs(self, knobs: Mapping[str, Any]) -> "Algorithm":
        """The algorithm with values replaced along full paths; UserError if one is unknown."""
        result = self
        for path, value in knobs.items():
            *where, name = path.split(".")
            if path not in result.paths():
                raise UserError(f"no option {path}")
            if where[0] == "terms" and name == "coef" and len(where) == 2:
                old = result._term(where[1]).coef
                result = result._with_term(where[1], coef=fitting(path, float, old, value))
            elif where[0] == "terms":
                old = getattr(result._term(where[1]), where[2])
                result = result._with_term(where[1], **{where[2]: _changed(old, name, value)})
            elif where[0] in SINGLE:
                changes: dict[str, Any] = {
                    where[0]: _changed(getattr(result, where[0]), name, value)
                }
                result = dataclasses.replace(result, **changes)
            else:
                changes = {
                    where[0]: tuple(
                        _changed(use, name, value) if use.label == where[1] else use
                        for use in getattr(result, where[0])
                    )
                }
                result = dataclasses.replace(result, **changes)
        return result

    def _term(self, name: str) -> Term:
        return next(term for term in self.terms if term.name == name)

    def _with_term(self, name: str, **changes: Any) -> "Algorithm":
        terms = tuple(
            dataclasses.replace(term, **changes) if term.name == name else term
            for term in self.terms
        )
        return dataclasses.replace(self, terms=terms)

    def at_step(self, step: int, num_steps: int) -> "Algorithm":
        """Every schedule replaced by its number at `step` (counted from 1)."""
        scheduled = {
            path: number_at(path, value, step, num_steps)
            for path, value in self.paths().items()
            if isinstance(value, Schedule)
        }
        return self.with_knobs(scheduled)


def _changed(use: Use, name: str, value: Any) -> Use:
    return dataclasses.replace(use, part=parts.replace(use.part, **{name: value}))
