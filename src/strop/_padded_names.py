"""The names of one recipe's tensors at the padded door, and which of them a call takes.

They follow from the records of the columns that the recipe's parts read, and from the words that
its own file brings (`recipes/_door.py`).
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from strop import part as parts
from strop._padded_chains import (
    asks,
    is_penalty,
    leading_to,
    learning,
    over_the_mask,
    told_to_plan,
)
from strop._padded_given import DTYPES
from strop._padded_tournament import PAIR_SCORES, plays
from strop.algorithm import OUTSIDE, Algorithm, Term
from strop.batch import level_of
from strop.columns import Column
from strop.errors import UserError, nearest
from strop.part import Use

# What each call runs, and the names that it takes whether or not a part reads them.
SCORED = ("rewards", "groups", "mask")
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "advantages": ("advantage", SCORED),
    "selection": ("selection", ("advantages", "groups", "mask")),
    "policy_loss": ("terms", ("logp", "logp_old", "advantages", "mask")),
    "rewards": ("reward", SCORED),
    "returns": ("advantage", SCORED),
    "next_state": ("advantage", SCORED),
}
ALWAYS = ("logp", "rewards", "mask")  # of those, what must be given
ANSWERED = ("rewards", "next_state")  # calls that may be given what a run would be asked for
CREDITING = ("rewards", "advantages", "returns", "next_state")  # calls that begin with rewards
# Names that say how rows and tokens make up turns; taken where something reads turns.
STRUCTURE = ("turn_ids", "turn_end", "turn_valid", "trajectories", "turn_index", "steps")
# What may stand beside the tensors of a term by itself.
ALONE = (*STRUCTURE, "groups", "step", "total_steps", "length")


@dataclass(frozen=True)
class Names:
    """What an algorithm's columns are called. `known`: their records; `own`: the recipe's words
    for some of them, name to column; `which`: of several returns those that are asked for;
    `num_parts`: of how many micro-batches of an update the tensors are one."""

    algorithm: Algorithm
    known: Mapping[str, Column]
    own: Mapping[str, str]
    which: str = ""
    num_parts: int = 1

    def of(self, column: str) -> list[str]:
        """The names of a column, the usual one first: the recipe's words, or those it has."""
        own = [name for name, filled in self.own.items() if filled == column]
        record = self.known[column]
        return [*own, *((record.door or ()) if own else record.names)]

    @functools.cached_property
    def fills(self) -> dict[str, tuple[str, ...]]:
        """The columns that each name fills."""
        found: dict[str, tuple[str, ...]] = {}
        for column in self.known:
            for name in self.of(column):
                found[name] = (*found.get(name, ()), column)
        return found

    def dtype(self, name: str) -> str:
        """What a tensor of this name holds: "float", "int" or "bool"."""
        if name in DTYPES:
            return DTYPES[name]
        record = self.known[self.fills[name][0]]
        return "bool" if name in dict(record.where) else record.dtype

    def filled(self, name: str, call: str, axes: int) -> tuple[str, ...]:
        """The columns that a tensor with so many axes fills.

        Columns of several tables may share a name without having been given it: then what the call
        reads decides, and among several the number of axes.
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
        """The columns that the call's stage reads from outside, and whether each must be given."""
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
            answered = call in ANSWERED and asks(use)  # what it lacks is said with what it asks for
            for one in parts.reads(use):
                read(one.column, one.required and use in run and not answered)
            for column in parts.writes(use) if call in ANSWERED and asks(use) else ():
                if self.known[column].writer != "reward":
                    read(column, False)
            inside |= set(parts.writes(use))
        for _, use, hook in learning(self.algorithm) if call == "next_state" else ():
            for column in parts.update_reads(use, hook):
                read(column, True)
        if call == "advantages":
            found |= dict.fromkeys(told_to_plan(self.algorithm), False)
        return found

    @property
    def learns_rewards(self) -> bool:
        """Whether a reward part keeps a state: then next_state begins with the reward chain."""
        return any(path.startswith("reward.") for path, _, _ in learning(self.algorithm))

    @property
    def tracks(self) -> bool:
        """Whether an advantage part carries what it has learnt to the next step."""
        return any(path.startswith("advantage.") for path, _, _ in learning(self.algorithm))

    @property
    def credits_edges(self) -> bool:
        """Whether a tree's edges are credited before the advantage chain."""
        return any("credit_T" in parts.writes(use) for use in self.run_by("rewards"))

    def run_by(self, call: str) -> tuple[Use, ...]:
        """The parts of the call's stage that its result depends on.

        A call for advantages or returns leaves out what only the other one needs.
        """
        stage = CALLS[call][0]
        uses = tuple(use for path, use in self.algorithm.uses() if path.split(".")[0] == stage)
        if call == "rewards":  # what the reward functions gave is given
            return tuple(use for use in uses if parts.name_of(use.part) != "score_with_verifiers")
        if call == "advantages":
            return leading_to(uses, {"advantage_T"})
        return leading_to(uses, {*self.returns()[-1:]}) if call == "returns" else uses

    def answered(self, given: Collection[str]) -> "Names":
        """Of the algorithm without reward parts that would ask a run for what is given.

        Not of those that write rewards: the rewards that are given are what they begin with.
        """

        def is_answered(use: Use) -> bool:
            written = [self.of(column) for column in parts.writes(use)]
            found = all("rewards" not in names and bool({*names} & {*given}) for names in written)
            return bool(asks(use)) and found

        kept = tuple(use for use in self.algorithm.reward if not is_answered(use))
        if kept == self.algorithm.reward:
            return self
        return dataclasses.replace(self, algorithm=dataclasses.replace(self.algorithm, reward=kept))

    def without(self, labels: Collection[str]) -> "Names":
        """Of the algorithm without these parts of its advantage chain."""
        if not labels:
            return self
        kept = tuple(use for use in self.algorithm.advantage if use.label not in labels)
        algorithm = dataclasses.replace(self.algorithm, advantage=kept)
        return dataclasses.replace(self, algorithm=algorithm)

    def begun(self) -> "Names":
        """Of the algorithm whose advantage chain goes on from advantages of rollouts."""
        rest = list(self.algorithm.advantage)
        while rest and parts.kind_of(rest[0].part) in ("advantage/baseline", "advantage/scale"):
            rest.pop(0)
        for use in rest:
            if {"reward_B", "outcome_B"} & {read.column for read in parts.reads(use)}:
                raise UserError(f"advantages_seq: {use.label} reads rewards; give rewards in place")
        algorithm = dataclasses.replace(self.algorithm, advantage=tuple(rest))
        return dataclasses.replace(self, algorithm=algorithm)

    def returns(self) -> tuple[str, ...]:
        """The columns of returns that the advantage chain writes, the one asked for at the end."""
        found = [name for use in self.algorithm.advantage for name in parts.writes(use)]
        named = dict.fromkeys(name for name in found if name.startswith("return_"))
        return tuple(sorted(named, key=lambda name: name == self.which))

    def reads_turns(self, call: str) -> bool:
        """Whether some part of the call's stage looks at turns."""
        read = {*self.algorithm.reads((CALLS[call][0],)), *self.reads(call)}
        return "turn_T" in read or any(level_of(column) == "K" for column in read)

    def inputs(self, call: str) -> dict[str, bool]:
        """The names that the call takes, and whether each must be there."""
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
        if call in ("rewards", "advantages", "returns") and plays(self.algorithm):
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
        """Of the algorithm with the policy's terms alone: what a loss without values is."""
        return self.of_terms(term for term in self.algorithm.terms if term.learner == "policy")

    def with_knobs(self, knobs: Mapping[str, Any]) -> "Names":
        """Of the algorithm with options as controls have set them."""
        inside = {path: value for path, value in knobs.items() if path not in OUTSIDE}
        if not inside:
            return self
        return dataclasses.replace(self, algorithm=self.algorithm.with_knobs(inside))

    def of_terms(self, terms: Iterable[Term]) -> "Names":
        """Of the algorithm with these terms alone."""
        chosen = tuple(terms)
        if chosen == self.algorithm.terms:
            return self
        algorithm = dataclasses.replace(self.algorithm, terms=chosen)
        return dataclasses.replace(self, algorithm=algorithm)

    def fed(self, given: dict[str, Any]) -> tuple["Names", dict[str, Any]]:
        """Of the penalties that `given` feeds, where it does not feed the policy's own term.

        So a bonus or a divergence is had by itself; `logp` is then that of the update's start, too,
        where a term reads that alone. Nothing may be given that they do not read; otherwise these
        names, whose policy term then lacks something.
        """
        terms = self.algorithm.terms
        if len(terms) < 2 or self._has_all(given) or self.of_terms(terms[:1])._has_all(given):
            return self, given
        alone = [over_the_mask(term) for term in terms if is_penalty(term)]
        started = {"logp_old" if name == "logp" else name: value for name, value in given.items()}
        for found in (given, started):
            chosen = [term for term in alone if self.of_terms([term])._has_all(found)]
            names = self.of_terms(chosen)
            read = {name for column in names.reads("policy_loss") for name in self.of(column)}
            if chosen and {*found} <= read | {*ALONE}:
                return names, found
        return self, given

    def _has_all(self, given: Collection[str]) -> bool:
        """Whether the loss finds all that it needs among the given names."""
        reads = self.reads("policy_loss")
        return all(
            any(name in given for name in self.of(column)) for column, must in reads.items() if must
        )

    def refuse(self, call: str, name: str, given: Mapping[str, Any]) -> None:
        """Raise UserError for a tensor that nothing reads, and for a column that is not there."""
        known = self.inputs(call)
        for key in given:
            if key not in known:
                raise UserError(
                    f"{call}({name!r}) takes no {key}{nearest(key, known)}; it takes "
                    f"{', '.join(known)}"
                )
        if known.get("rewards") and not {"rewards", *self.of("reward_K")} & given.keys():
            raise UserError(f"{call}({name!r}) needs rewards (column reward_B)")
        reads = self.reads(call)
        enough = {"rewards", "token_rewards"} | ({"turn_rewards"} & known.keys())
        if "reward_T" in reads and not enough & given.keys():
            raise UserError(f"{call}({name!r}) needs token_rewards, or rewards")
        for column, must in reads.items():
            names = self.of(column) + ["token_rewards"] * (column == "reward_K")
            if must and not any(key in given for key in names):
                raise UserError(f"{call}({name!r}) needs {' or '.join(names)} (column {column})")
