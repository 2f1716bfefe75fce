"""The names of a recipe's tensors in padded calls, and the tensors that each call takes.

The names follow from the records of the columns that the recipe's parts read, and from the names
that its own file declares (`recipes/_door.py`).
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.batch.batch import level_of
from strop.batch.columns import Column, has_gradient
from strop.catalogue.seams import SERVICES
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.part import OUTSIDE, Term, Use
from strop.method.schedule import Schedule
from strop.padded.given import DTYPES, PaddedCall
from strop.support.errors import UserError, nearest

# The stage that each call runs, and the names that it takes whether or not a part reads them.
SCORED = ("rewards", "groups", "mask")
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "advantages": ("advantage", SCORED),
    "selection": ("selection", ("advantages", "groups", "mask")),
    "policy_loss": ("terms", ("logp", "logp_old", "advantages", "mask")),
    "rewards": ("reward", SCORED),
    "returns": ("advantage", SCORED),
    "next_state": ("advantage", SCORED),
}
ALWAYS = ("logp", "rewards", "mask")  # of these names, the required ones
ANSWERED = ("rewards", "next_state")  # calls that take columns which a run's services would give
CREDITING = ("rewards", "advantages", "returns", "next_state")  # calls that start with rewards
# Names that assign rows and tokens to turns; taken where a part reads turns.
STRUCTURE = ("turn_ids", "turn_end", "turn_valid", "trajectories", "turn_index", "steps")
# Names allowed besides the tensors of a term by itself.
ALONE = (*STRUCTURE, "groups", "step", "total_steps", "length")
PAIR_SCORES = "pair_scores"  # replaces rewards for a recipe with a tournament


@dataclass(frozen=True)
class Names:
    """The names of an algorithm's columns.

    known: the records of the columns. own: the recipe's names for some of them, name to column.
    which: the requested column of returns. num_parts: the number of micro-batches of an update, of
    which the tensors are one. Methods that change the algorithm return new names.
    """

    algorithm: Algorithm
    known: Mapping[str, Column]
    own: Mapping[str, str]
    which: str = ""
    num_parts: int = 1

    def of(self, column: str) -> list[str]:
        """Returns a column's names, the usual one first: the recipe's names, or the record's."""
        return [*self._of[column]]

    @functools.cached_property
    def _of(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for column, record in self.known.items():
            own = tuple(name for name, filled in self.own.items() if filled == column)
            found[column] = own + ((record.door or ()) if own else record.names)
        return found

    @functools.cached_property
    def also(self) -> dict[str, str]:
        """Alternative names of columns, each mapped to the usual one."""
        return {other: each.names[0] for each in self.known.values() for other in each.also}

    @functools.cached_property
    def with_gradient(self) -> frozenset[str]:
        """The columns through which gradient flows."""
        return frozenset(column for column in self.known if has_gradient(column))

    @functools.cached_property
    def schedules(self) -> tuple[str, ...]:
        """The paths of the options that follow a schedule."""
        paths = self.algorithm.paths()
        return tuple(path for path, value in paths.items() if isinstance(value, Schedule))

    @functools.cached_property
    def fills(self) -> dict[str, tuple[str, ...]]:
        """The columns that each name fills."""
        found: dict[str, tuple[str, ...]] = {}
        for column in self.known:
            for name in self.of(column):
                found[name] = (*found.get(name, ()), column)
        return found

    def dtype(self, name: str) -> str:
        """Returns the dtype of a tensor of this name: "float", "int" or "bool"."""
        if name in DTYPES:
            return DTYPES[name]
        record = self.known[self.fills[name][0]]
        return "bool" if name in dict(record.where) else record.dtype

    def filled(self, name: str, call: str, axes: int) -> tuple[str, ...]:
        """Returns the columns that a tensor with this number of axes fills.

        Columns of several tables share a name that is theirs without the suffix. Then the call
        fills the ones that it reads, and among several the one with this number of axes.
        """
        named = self.fills[name]
        if len({level_of(column) for column in named}) == 1 or any(
            name in (self.known[column].door or ()) for column in named
        ):
            return named
        reads = self.reads(call)
        usual = name + ("", "_B", "_T")[min(axes, 2)]
        read = sorted(column for column in named if column in reads) or [*named]
        return (usual,) if usual in read else (read[0],)

    def reads(self, call: str) -> Mapping[str, bool]:
        """Returns the columns that the stage reads from outside, and whether each must be given."""
        if call not in self._read:
            self._read[call] = self._reads_of(call)
        return self._read[call]

    @functools.cached_property
    def _read(self) -> dict[str, dict[str, bool]]:
        return {}

    def _reads_of(self, call: str) -> dict[str, bool]:
        stage = CALLS[call][0]
        uses = [use for path, use in self.algorithm.uses() if path.split(".")[0] == stage]
        run = self.run_by(call)
        if call == "rewards":
            uses = [*run]
        if call == "next_state" and self.learns_rewards:
            rewarding = self.run_by("rewards")
            uses, run = [*rewarding, *uses], (*rewarding, *run)
        inside: set[str] = set()
        found: dict[str, bool] = {}

        def read(column: str, required: bool) -> None:
            record = self.known[column]
            follows = record.door is None or record.writer == stage != "reward"
            if not follows and column not in inside:
                must = required and not record.presumed
                found[column] = found.get(column, False) or must

        for use in uses:
            answered = call in ANSWERED and services_asked(
                use
            )  # `services_for` raises for what these lack
            for one in parts.reads(use):
                read(one.column, one.required and use in run and not answered)
            for group in parts.any_of(use):
                for column in group if len(group) == 1 else ():
                    read(column, use in run and not answered)
            for column in parts.writes(use) if call in ANSWERED and services_asked(use) else ():
                if self.known[column].writer != "reward":
                    read(column, False)
            inside |= set(parts.writes(use))
        for _, use, hook in learning_parts(self.algorithm) if call == "next_state" else ():
            for column in parts.update_reads(use, hook):
                read(column, True)
        if call == "advantages":
            found |= dict.fromkeys(columns_of_plan(self.algorithm), False)
        return found

    @property
    def learns_rewards(self) -> bool:
        """Whether a reward part keeps a state, so that next_state starts with the reward chain."""
        return any(path.startswith("reward.") for path, _, _ in learning_parts(self.algorithm))

    @property
    def tracks(self) -> bool:
        """Whether an advantage part carries what it has learnt to the next step."""
        return any(path.startswith("advantage.") for path, _, _ in learning_parts(self.algorithm))

    @property
    def credits_edges(self) -> bool:
        """Whether a tree's edges are credited before the advantage chain."""
        return any("credit_T" in parts.writes(use) for use in self.run_by("rewards"))

    def run_by(self, call: str) -> tuple[Use, ...]:
        """Returns the parts of the call's stage that its result depends on.

        A call for advantages or returns leaves out parts that only the other one needs.
        """
        stage = CALLS[call][0]
        uses = tuple(use for path, use in self.algorithm.uses() if path.split(".")[0] == stage)
        if call == "rewards":  # the caller gives the scores of the reward functions
            return tuple(use for use in uses if parts.name_of(use.part) != "score_with_verifiers")
        if call == "advantages":
            return parts_for(uses, {"advantage_T"})
        return parts_for(uses, {*self.returns()[-1:]}) if call == "returns" else uses

    def without_answered(self, given: Collection[str]) -> "Names":
        """Drops the reward parts that would ask a run's services for columns that are given.

        Parts that write rewards stay, for they start from the given rewards.
        """

        def is_answered(use: Use) -> bool:
            written = [self.of(column) for column in parts.writes(use)]
            found = all("rewards" not in names and bool({*names} & {*given}) for names in written)
            return bool(services_asked(use)) and found

        kept = tuple(use for use in self.algorithm.reward if not is_answered(use))
        if kept == self.algorithm.reward:
            return self
        return self._with(reward=kept)

    def without(self, labels: Collection[str]) -> "Names":
        """Drops these parts of the advantage chain."""
        if not labels:
            return self
        kept = tuple(use for use in self.algorithm.advantage if use.label not in labels)
        return self._with(advantage=kept)

    def from_rollouts(self) -> "Names":
        """Lets the advantage chain continue from advantages of rollouts."""
        rest = list(self.algorithm.advantage)
        while rest and parts.kind_of(rest[0].part) in ("advantage/baseline", "advantage/scale"):
            rest.pop(0)
        for use in rest:
            if {"reward_B", "outcome_B"} & {read.column for read in parts.reads(use)}:
                raise UserError(f"advantages_seq: {use.label} reads rewards; give rewards in place")
        return self._with(advantage=tuple(rest))

    def returns(self) -> tuple[str, ...]:
        """Returns the columns of returns of the advantage chain, the requested one last."""
        found = [name for use in self.algorithm.advantage for name in parts.writes(use)]
        named = dict.fromkeys(name for name in found if name.startswith("return_"))
        return tuple(sorted(named, key=lambda name: name == self.which))

    def reads_turns(self, call: str) -> bool:
        """Whether some part of the call's stage reads turns."""
        read = {*self.algorithm.reads((CALLS[call][0],)), *self.reads(call)}
        return "turn_T" in read or any(level_of(column) == "K" for column in read)

    def inputs(self, call: str) -> dict[str, bool]:
        """Returns the names that the call takes, and whether each must be given."""
        if call not in self._inputs:
            self._inputs[call] = self._inputs_of(call)
        return dict(self._inputs[call])

    @functools.cached_property
    def _inputs(self) -> dict[str, dict[str, bool]]:
        return {}

    def _inputs_of(self, call: str) -> dict[str, bool]:
        found = dict.fromkeys(("step", "total_steps"), False)
        found |= {name: name in ALWAYS for name in CALLS[call][1]}
        found["mask"] = call not in CREDITING  # one advantage a rollout or turn needs none
        filled = {self.fills[name] for name in found if name in self.fills}
        found = {name: False for name, columns in self.fills.items() if columns in filled} | found
        reads, always = self.reads(call), self.without_critic.reads(call)
        for column, must in reads.items():
            for name in self.of(column):
                found[name] = found.get(name, False) or (must and column in always)
        if {"reward_T", "reward_BM"} & reads.keys():
            found["rewards"] = False
        if call in ("rewards", "advantages", "returns") and has_tournament(self.algorithm):
            found[PAIR_SCORES] = call == "rewards"
            found["rewards"] &= call != "rewards"
        if self.reads_turns(call):
            found |= dict.fromkeys(STRUCTURE, False)
            found.setdefault("turn_rewards", False)
            if "reward_K" in reads:
                found.setdefault("token_rewards", False)
            found["rewards"] = found.get("rewards", False) and "reward_K" not in reads
        return found

    @functools.cached_property
    def without_critic(self) -> "Names":
        """The names of the algorithm without the critic's terms, for a loss without values."""
        return self.of_terms(term for term in self.algorithm.terms if term.learner == "policy")

    def with_knobs(self, knobs: Mapping[str, Any]) -> "Names":
        """Sets options as controls have left them."""
        inside = {path: value for path, value in knobs.items() if path not in OUTSIDE}
        if not inside:
            return self
        return dataclasses.replace(self, algorithm=self.algorithm.with_knobs(inside))

    def of_terms(self, terms: Iterable[Term]) -> "Names":
        """Keeps only these terms."""
        chosen = tuple(terms)
        if chosen == self.algorithm.terms:
            return self
        return self._with(terms=chosen)

    def _with(self, **stages: Any) -> "Names":
        algorithm = dataclasses.replace(self.algorithm, **stages)
        return dataclasses.replace(self, algorithm=algorithm)

    def for_given(self, given: dict[str, Any]) -> tuple["Names", dict[str, Any]]:
        """Keeps only the penalties whose tensors are given, where those of the policy term are not.

        So a call can compute a bonus or a divergence by itself. Where a term then reads only
        `logp_old`, `logp` stands for it. Where a tensor is given that no penalty reads, all terms
        stay, and `refuse` names the tensors that the policy term lacks.
        """
        terms = self.algorithm.terms
        if len(terms) < 2 or self._has_all(given) or self.of_terms(terms[:1])._has_all(given):
            return self, given
        alone = [on_the_mask(term) for term in terms if is_penalty(term)]
        started = {"logp_old" if name == "logp" else name: value for name, value in given.items()}
        for found in (given, started):
            chosen = [term for term in alone if self.of_terms([term])._has_all(found)]
            names = self.of_terms(chosen)
            read = {name for column in names.reads("policy_loss") for name in self.of(column)}
            if chosen and {*found} <= read | {*ALONE}:
                return names, found
        return self, given

    def _has_all(self, given: Collection[str]) -> bool:
        """Tells whether the loss finds all that it needs among the given names."""
        reads = self.reads("policy_loss")
        return all(
            any(name in given for name in self.of(column)) for column, must in reads.items() if must
        )

    def refuse(self, call: PaddedCall, given: Collection[str]) -> None:
        """Raises UserError for a tensor that nothing reads, and for a column that is missing."""
        known, reads = self.inputs(call.call), self.reads(call.call)
        for key in given:
            if key not in known:
                raise UserError(
                    f"{call} takes no {key}{nearest(key, known)}; it takes {', '.join(known)}"
                )
        if known.get("rewards") and not {"rewards", *self.of("reward_K")} & {*given}:
            raise UserError(f"{call} needs rewards (column reward_B)")
        if known.get(PAIR_SCORES) and "rewards" not in given:  # a table has become rewards by now
            raise UserError(f"{call} needs {PAIR_SCORES} [B, B]")
        enough = {"rewards", "token_rewards"} | ({"turn_rewards"} & known.keys())
        if "reward_T" in reads and not enough & {*given}:
            raise UserError(f"{call} needs token_rewards, or rewards")
        for column, must in reads.items():
            names = self.of(column) + ["token_rewards"] * (column == "reward_K")
            if must and not any(key in given for key in names):
                raise UserError(f"{call} needs {' or '.join(names)} (column {column})")


def has_tournament(algorithm: Algorithm) -> bool:
    """Whether rewards come from a tournament of answers."""
    return any(parts.name_of(use.part) == "rank_in_tournament" for use in algorithm.reward)


def parts_for(uses: Sequence[Use], wanted: Collection[str]) -> tuple[Use, ...]:
    """Returns the parts of a chain on which the final values of the wanted columns depend."""
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


def services_asked(use: Use) -> frozenset[str]:
    """Returns the services that a part takes besides columns: texts, verifiers, an engine."""
    return SERVICES & {parameter.name for parameter in parts.parameters(use.part)}


def columns_of_plan(algorithm: Algorithm) -> tuple[str, ...]:
    """Returns the columns that the plan declares, which hold measurements of updates."""
    declared = getattr(algorithm.plan.part, "declares", ()) if algorithm.plan else ()
    return tuple(column.name for column in declared)


def is_penalty(term: Term) -> bool:
    """Whether the term is a bonus or a divergence besides the policy's objective."""
    return parts.kind_of(term.objective.part) == "loss/penalty"


def on_the_mask(term: Term) -> Term:
    """Lets a term for tokens of one origin cover all tokens of the mask."""
    of_origin = term.on is not None and any(r.column == "origin_T" for r in parts.reads(term.on))
    return dataclasses.replace(term, on=None) if of_origin else term


def learning_parts(algorithm: Algorithm) -> list[tuple[str, Use, str]]:
    """Returns the parts that keep a state, with their paths, and `update` or `observe` of each."""
    return [
        (path, use, hook)
        for path, use in algorithm.uses()
        for hook in ("observe", "update")
        if hasattr(use.part, hook)
    ]
