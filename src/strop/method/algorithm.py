"""Parts put together: the stages of a step as one value, and its options by path.

`check.py` says which compositions make sense; `seams.py` lists the stages.

A method is an `Algorithm`, or `Phases` of several algorithms, which switches to the next one at a
step or on a condition. The trainer asks it for the algorithm of a phase and runs that. Parts keep
their state between steps by label, also when the phase changes.
"""

import dataclasses
import functools
import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from strop.batch.columns import PROMPT_OF_REFERENCE, REFRESHED, is_head, old_value, slow_value
from strop.catalogue.seams import CHAINS, SINGLE, STAGES
from strop.method import part as parts
from strop.method.fitting import fitting
from strop.method.part import COPIES, Term, Use, distinct, knobs_of_copy
from strop.method.schedule import Schedule, extreme_steps, number_at
from strop.method.shown import Section, Shown
from strop.support.errors import UserError, nearest

U = TypeVar("U", Use, Term)
# Columns that say how good answers are. Those that VOTED names, answers give each other by votes.
JUDGED = frozenset(
    {"advantage_B", "outcome_B", "preferred_B", "reward_B", "reward_BM", "reward_K", "reward_T"}
)
VOTED = frozenset({"advantage_B", "reward_B"})
SCORING = ("reward", "advantage")  # the stages between an answer's score and what is learnt


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
        object.__setattr__(self, "terms", _several("terms", self.terms, Term))
        for stage in CHAINS:
            object.__setattr__(self, stage, distinct(_several(stage, getattr(self, stage), Use)))
        for stage in SINGLE:
            _several(stage, getattr(self, stage) or (), Use)
        for term in self.terms:
            _several(f"terms.{term.name}", [use for _, use in term.uses()], Use)
        names = [term.name for term in self.terms]
        if len(set(names)) != len(names):
            raise UserError(f"two loss terms share a name: {', '.join(names)}")
        for name in names:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise UserError(
                    f"a loss term is called {name!r}, which options and files cannot name: use "
                    "letters, digits and _"
                )

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
        """Every column that a part of these stages reads, in its call or at the end of the step."""
        return frozenset(
            column
            for path, use in self.uses()
            if path.split(".")[0] in stages
            for column in (*(read.column for read in parts.reads(use)), *parts.update_reads(use))
        )

    def reward_columns(self) -> frozenset[str]:
        """The columns of rewards that change what is learnt; empty where nothing learns from them,
        as where answers are given or a teacher says all.
        """
        needed = set(self.reads(tuple(each for each in STAGES if each not in SCORING)))
        for use in reversed(self.advantage):
            if needed & set(parts.writes(use)):
                needed |= {read.column for read in parts.reads(use)} | {*parts.update_reads(use)}
        return JUDGED & needed

    def needs_scores(self) -> bool:
        """Whether what is learnt depends on reward functions, and not on votes of answers alone."""
        grade = any(
            parameter.name == "grading"
            for path, use in self.uses()
            if path.split(".")[0] not in SCORING
            for parameter in parts.parameters(use.part)
        )
        return grade or bool(self.reward_columns() - (VOTED if "votes" in self.facts() else set()))

    def value_columns(self) -> tuple[str, ...]:
        """The critic's heads: the value columns that the objectives of its terms read, sorted."""
        found: set[str] = set()
        for term in self.terms:
            found |= set(trained_values(term))
        return tuple(sorted(found))

    def facts(self) -> frozenset[str]:
        """All facts that the parts state."""
        return frozenset(fact for _, use in self.uses() for fact in parts.facts(use))

    # -- a method of one phase; `Phases` has several -----------------------------------

    @property
    def sections(self) -> tuple[Section, ...]:
        """The algorithm of every phase: this one, under no name."""
        return (Section("", "", self),)

    @property
    def algorithms(self) -> tuple["Algorithm", ...]:
        """The algorithm of every phase: this one."""
        return (self,)

    def in_phase(self, number: int) -> "Algorithm":
        """The algorithm of a phase: this one."""
        return self

    def knobs_in(self, number: int, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """The knobs that take effect in a phase: all."""
        return dict(knobs)

    def each(self, change: Callable[["Algorithm"], "Algorithm"]) -> "Algorithm":
        """Return the changed algorithm."""
        return change(self)

    def check_steps(self, num_steps: int) -> None:
        """Accept any number of steps: a run always reaches its only phase."""

    def next(
        self, now: Mapping[str, int], step: int, num_steps: int, metrics: Mapping[str, float]
    ) -> dict[str, int]:
        """The phase of the step after `step`: the same."""
        return dict(now)

    # -- paths: "advantage.divide_by_group_std.eps", "terms.policy.objective.clip_low" ----------

    def paths(self) -> dict[str, Any]:
        """Every number and option by its full path."""
        return dict(self._paths)

    @functools.cached_property
    def _paths(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path, use in self.uses():
            for name, value in parts.fields_of(use.part).items():
                found[f"{path}.{name}"] = value
        for term in self.terms:
            found[f"terms.{term.name}.coef"] = term.coef
        return found

    def with_knobs(self, knobs: Mapping[str, Any]) -> "Algorithm":
        """The algorithm with values replaced along full paths, those of a part at once. Raises
        UserError for an unknown one.
        """
        at: dict[str, dict[str, Any]] = {}  # by the path of a part or term
        for path, value in knobs.items():
            if path not in self._paths:
                raise UserError(f"no option {path}")
            place, _, name = path.rpartition(".")
            at.setdefault(place, {})[name] = value
        if not at:
            return self

        def changed(place: str, use: Use) -> Use:
            if place not in at:
                return use
            return dataclasses.replace(use, part=parts.replace(use.part, **at[place]))

        def changed_term(term: Term) -> Term:
            path = f"terms.{term.name}"
            slots: dict[str, Any] = {s: changed(f"{path}.{s}", use) for s, use in term.uses()}
            if path in at:
                slots["coef"] = fitting(f"{path}.coef", float, term.coef, at[path]["coef"])
            return dataclasses.replace(term, **slots)

        stages: dict[str, Any] = {
            stage: tuple(changed(f"{stage}.{use.label}", use) for use in getattr(self, stage))
            for stage in CHAINS
        }
        stages["terms"] = tuple(map(changed_term, self.terms))
        for stage in SINGLE:
            use = getattr(self, stage)
            stages[stage] = use and changed(f"{stage}.{use.label}", use)
        return dataclasses.replace(self, **stages)

    def at_step(self, step: int, num_steps: int) -> "Algorithm":
        """Every schedule replaced by its number at `step` (counted from 1)."""
        found: dict[str, float] = {}
        for path, use in self.uses():
            numbers = parts.scheduled(use.part, step, num_steps, path)
            found |= {f"{path}.{name}": number for name, number in numbers.items()}
        for term in self.terms:
            if isinstance(term.coef, Schedule):
                path = f"terms.{term.name}.coef"
                found[path] = number_at(path, term.coef, step, num_steps)
        return self.with_knobs(found)

    def check_schedules(self, num_steps: int) -> None:
        """Raise UserError where a schedule leaves the range of its option at some step: it is
        enough to look at the extremes of each curve.
        """
        found = [v for v in self._paths.values() if isinstance(v, Schedule)]
        for step in sorted({1}.union(*(extreme_steps(each, num_steps) for each in found))):
            self.at_step(step, num_steps)


def _several(place: str, given: Any, kind: type[U]) -> tuple[U, ...]:
    """What a place of a method is given, as a tuple. Raises UserError for another kind."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    for each in several:
        if not isinstance(each, kind):
            form = "Use(part)" if kind is Use else "Term(name, Use(part), Use(part))"
            raise UserError(f"{place} of the method has {str(each)[:80]}: write {form}")
    return several


def wanted_columns(algorithm: Algorithm) -> frozenset[str]:
    """The columns to refresh: the ones that a part reads, and the value of every critic's head.

    A lone update takes its own log-probabilities as the old ones, so ratios and objectives do not
    need `logp_old_T` then; parts that run before the update (corrections, averages, rates) do.
    """
    lone = getattr(getattr(algorithm.plan, "part", None), "num_updates", None) == 1
    wanted = set(algorithm.reads(tuple(stage for stage in STAGES if stage != "terms")))
    for term in algorithm.terms:
        for slot, use in term.uses():
            columns = {read.column for read in parts.reads(use)}
            shortcut = lone and slot in ("ratio", "objective")
            wanted |= columns - {"logp_old_T"} if shortcut else columns
    values = set(algorithm.value_columns())
    copies = {copy(name) for name in values for copy in (old_value, slow_value)}
    return frozenset((wanted & (REFRESHED | copies)) | values)


def around_refresh(algorithm: Algorithm) -> tuple[tuple[Use, ...], tuple[Use, ...]]:
    """The probes that run before the columns are refreshed, since they write the prompts that the
    reference reads, and the probes that run after it.
    """
    shows = [PROMPT_OF_REFERENCE in parts.writes(use) for use in algorithm.probes]
    pairs = list(zip(shows, algorithm.probes, strict=True))
    return tuple(u for shown, u in pairs if shown), tuple(u for shown, u in pairs if not shown)


CONDITION = re.compile(r"(?P<metric>[^<>]+)(?P<sign>[<>])(?P<level>[^<>]+)")
# Metrics that a step lacks when the end of the phase is checked, or that differ between equal runs.
APART = ("eval/", "perf/", "timing_s/", "services/", "step_time")
SHARE = re.compile(r"(^|/)frac_|clip_ratio/|clipped_ratio$|^selection/dropped/")
NOT_NEGATIVE = re.compile(r"^(entropy|grad_norm|reward_std|learning_rate|num_\w+)$|^completions/")
EXAMPLE = "200, 0.5 (half of the run), entropy < 0.3, or 200 or entropy < 0.3"


@dataclass(frozen=True)
class Until:
    """When a phase ends: at a step, or after the first step whose metric crosses a level."""

    # The phase's last step; below 1: as a share of the run's steps; 0: none.
    step: float = 0
    # A metric that every step of the run has (`entropy`); empty: none.
    metric: str = ""
    # Whether the metric must fall below the level; otherwise it must rise above it.
    below: bool = True
    level: float = 0.0

    def __post_init__(self) -> None:
        whole = self.step < 1 or self.step == self.step // 1
        if not (whole and 0 <= self.step < math.inf) or not (self.step or self.metric):
            raise UserError(f"until {self.text}: a phase ends at a step or condition: {EXAMPLE}")
        if self.metric.startswith(APART):
            raise UserError(
                f"until {self.text}: {self.metric} is not a metric that every step has and that a "
                "second run repeats: take one such as entropy or reward"
            )
        if self.metric and not self._possible():
            raise UserError(
                f"until {self.text}: that never happens, so the next phase would never begin: give "
                "another level, or a step"
            )

    def _possible(self) -> bool:
        """Whether the metric may be on that side of the level."""
        share = bool(SHARE.search(self.metric))
        low = 0.0 if share or NOT_NEGATIVE.search(self.metric) else -math.inf
        high = 1.0 if share else math.inf
        return self.level > low if self.below else self.level < high

    @property
    def text(self) -> str:
        """The condition as `read_until` reads it."""
        step = f"{self.step:.0f}" if self.step == self.step // 1 else repr(self.step)
        crossed = f"{self.metric} {'<' if self.below else '>'} {self.level!r}"
        return " or ".join(([step] if self.step else []) + ([crossed] if self.metric else []))

    def last(self, num_steps: int) -> int:
        """The phase's last step in a run of `num_steps`; 0 where the metric alone decides."""
        share = 0 < self.step < 1
        return max(1, int(self.step * num_steps + 1e-9)) if share else int(self.step)

    def over(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> bool:
        """Whether `step` was the last one; a step without the metric leaves its condition unmet."""
        value = metrics.get(self.metric, math.nan)
        crossed = value < self.level if self.below else value > self.level
        return crossed or 0 < self.last(num_steps) <= step


def read_until(given: object) -> Until:
    """A step, a share of the run, `metric < level`, or a step `or` that. Raises UserError."""
    if isinstance(given, Until):
        return given
    number, crossed = 0.0, None
    for text in str(given).split(" or "):
        found = CONDITION.fullmatch("".join(text.split()))
        if (found and crossed) or (not found and number):
            raise UserError(f"until {given}: one step and one condition at most: {EXAMPLE}")
        crossed = found or crossed
        number = number if found else _number(text, given)
    if crossed is None:
        return Until(number)
    level = _number(crossed["level"], given)
    return Until(number, crossed["metric"], crossed["sign"] == "<", level)


def _number(text: str, whole: object) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"until {whole}: {text!r} is neither a step nor a condition: {EXAMPLE}")
    return number


@dataclass(frozen=True)
class Phase:
    """An algorithm, when it ends (None: with the run), and its name in messages and options."""

    algorithm: Algorithm
    until: Until | None = None
    name: str = ""


@dataclass(frozen=True, repr=False)
class Phases(Shown):
    """A method of several algorithms, one after another."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        named = tuple(
            dataclasses.replace(phase, name=phase.name or f"phase_{number}")
            for number, phase in enumerate(self.phases, 1)
        )
        object.__setattr__(self, "phases", named)
        if len(named) < 2:
            raise UserError("phases: give at least two; a single algorithm needs no phases")
        for phase in named:
            if not phase.name.isidentifier():
                raise UserError(f"phases: {phase.name!r} is no name: use letters, digits and _")
            if self.names.count(phase.name) > 1:
                raise UserError(f"phases: two are called {phase.name}: rename one of them")
        for phase in named[:-1]:
            if phase.until is None:
                raise UserError(
                    f"phase {phase.name}: nothing says when it ends, so the next phase would "
                    f"never begin: give it until ({EXAMPLE})"
                )
        if (until := named[-1].until) is not None:
            raise UserError(
                f"phase {named[-1].name} is until {until.text}, and nothing follows it: leave that "
                "out, the last phase lasts to the end of the run"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the phases, in order."""
        return tuple(phase.name for phase in self.phases)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The phases with their names, each with the condition that ends it."""
        return tuple(
            Section(phase.name, phase.until.text if phase.until else "", phase.algorithm)
            for phase in self.phases
        )

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """The algorithms of the phases, in order."""
        return tuple(phase.algorithm for phase in self.phases)

    def in_phase(self, number: int) -> Algorithm:
        """The algorithm of a phase, counted from 1."""
        return self.phases[number - 1].algorithm

    def knobs_in(self, number: int, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """The knobs that take effect in a phase: the ones that its own controls move.

        The copies of the weights keep their knobs in every phase.
        """
        counts = {path for use in self.in_phase(number).control for path in use.part.moves}
        counts |= {knobs_of_copy(name)[0] for name in COPIES}
        return {path: value for path, value in knobs.items() if path in counts}

    def uses(self) -> Iterator[tuple[str, Use]]:
        """(path, use) of every place of every phase; a path is relative to its algorithm."""
        for algorithm in self.algorithms:
            yield from algorithm.uses()

    def reads(self) -> frozenset[str]:
        """Every column that some part of some phase reads."""
        return frozenset().union(*(algorithm.reads() for algorithm in self.algorithms))

    def value_columns(self) -> tuple[str, ...]:
        """The critic's heads that some phase trains, sorted."""
        return tuple(sorted({c for each in self.algorithms for c in each.value_columns()}))

    def facts(self) -> frozenset[str]:
        """All facts that the parts of all phases state."""
        return frozenset().union(*(algorithm.facts() for algorithm in self.algorithms))

    def each(self, change: Callable[[Algorithm], Algorithm]) -> "Phases":
        """The same phases with every algorithm changed."""
        changed = (
            dataclasses.replace(phase, algorithm=change(phase.algorithm)) for phase in self.phases
        )
        return Phases(tuple(changed))

    def with_phase(self, name: str, **changes: Any) -> "Phases":
        """The phases with one phase's algorithm or `until` replaced. Raises UserError."""
        if name not in self.names:
            raise UserError(
                f"no phase {name!r}{nearest(name, self.names)}; there are {', '.join(self.names)}"
            )
        changed = (
            dataclasses.replace(phase, **changes) if phase.name == name else phase
            for phase in self.phases
        )
        return Phases(tuple(changed))

    def named(self, name: str) -> Phase:
        """The phase of a name. Raises UserError."""
        return self.with_phase(name).phases[self.names.index(name)]

    def paths(self) -> dict[str, Any]:
        """Every number and option by its full path, `phases.NAME.advantage.PART.FIELD`."""
        found: dict[str, Any] = {}
        for phase in self.phases:
            head = f"phases.{phase.name}"
            if phase.until is not None:
                found[f"{head}.until"] = phase.until.text
            found |= {f"{head}.{path}": v for path, v in phase.algorithm.paths().items()}
        return found

    def with_knobs(self, knobs: Mapping[str, Any]) -> "Phases":
        """The phases with values replaced along full paths; UserError if one is unknown."""
        result, of = self, dict[str, dict[str, Any]]()  # knobs by phase
        for path, value in knobs.items():
            head, name, inside = [*path.split(".", 2), "", ""][:3]
            if head != "phases":
                raise UserError(f"no option {path}")
            if inside == "until":
                result = result.with_phase(name, until=read_until(value))
            else:
                of.setdefault(name, {})[inside] = value
        for name, own in of.items():
            changed = result.named(name).algorithm.with_knobs(own)
            result = result.with_phase(name, algorithm=changed)
        return result

    def check_steps(self, num_steps: int) -> None:
        """Raise UserError for a phase that a run of `num_steps` never reaches."""
        before = 0
        for phase, then in zip(self.phases, self.phases[1:], strict=False):
            assert phase.until is not None
            last = phase.until.last(num_steps)
            if last >= num_steps and not phase.until.metric:
                raise UserError(
                    f"phase {then.name} would begin after step {last}, and the run has "
                    f"{num_steps}: give more training.steps, or an earlier "
                    f"phases.{phase.name}.until (below 1 it is a share of the run)"
                )
            if last and last <= before:
                raise UserError(
                    f"phase {phase.name} is until step {last}, and the one before it until step "
                    f"{before}: the steps count from the start of the run, so they must rise"
                )
            before = last or before

    def next(
        self, now: Mapping[str, int], step: int, num_steps: int, metrics: Mapping[str, float]
    ) -> dict[str, int]:
        """The phase of the step after `step`, as `phase_at` reads it.

        Raises UserError where the first step of a phase lacks the metric that it waits for.
        """
        phase = self.phases[now["number"] - 1]
        until = phase.until
        if until is None:
            return dict(now)
        if until.metric and until.metric not in metrics and step == now["begun"]:
            raise UserError(
                f"phase {phase.name} is until {until.text}, and its steps have no "
                f"{until.metric}{nearest(until.metric, metrics)}; docs/METRICS.md lists them"
            )
        if not until.over(step, num_steps, metrics):
            return dict(now)
        return {"number": now["number"] + 1, "begun": step + 1}


Method = Algorithm | Phases
BEGINNING = {"number": 1, "begun": 1}


def phase_at(state: Mapping[str, Any]) -> dict[str, int]:
    """The phase of the next step: its number, counted from 1, and its first step."""
    return dict(state.get("phase", BEGINNING))


def trained_values(term: Term) -> tuple[str, ...]:
    """The value columns that get a gradient from a term, sorted; none for the policy's terms."""
    if term.learner != "critic":
        return ()
    reads = (read.column for read in parts.reads(term.objective) if read.required)
    return tuple(sorted(filter(is_head, reads)))


def advantage_of(term: Term) -> str:
    """The column that the term's objective reads as a token's advantage; empty: none."""
    reads = parts.reads(term.objective)
    return next((read.column for read in reads if read.parameter == "advantage_T"), "")
