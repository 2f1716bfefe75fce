"""The names of one recipe's tensors at the padded door, and which of them a call takes.

They follow from the records of the columns that the recipe's parts read, and from the words that
its own file brings (`recipes/_door.py`).
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop import catalogue, columns, notation
from strop import part as parts
from strop._padded_given import DTYPES, tensor_of
from strop.algorithm import Algorithm
from strop.batch import level_of
from strop.columns import Column
from strop.errors import UserError, nearest

# What each call runs, and the names that it takes whether or not a part reads them.
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "advantages": ("advantage", ("rewards", "groups", "mask")),
    "selection": ("selection", ("advantages", "groups", "mask")),
    "policy_loss": ("terms", ("logp", "logp_old", "advantages", "mask")),
}
ALWAYS = ("logp", "rewards", "mask")  # of those, what must be given
# Names that say how rows and tokens make up turns; taken where something reads turns.
STRUCTURE = ("turn_ids", "turn_end", "turn_valid", "trajectories", "turn_index", "steps")


@dataclass(frozen=True)
class Names:
    """What an algorithm's columns are called. `known`: their records; `own`: the recipe's words
    for some of them, name to column."""

    algorithm: Algorithm
    known: Mapping[str, Column]
    own: Mapping[str, str]

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
        return self._reads[call]

    @functools.cached_property
    def _reads(self) -> dict[str, dict[str, bool]]:
        return {call: self._reads_of(stage) for call, (stage, _) in CALLS.items()}

    def _reads_of(self, stage: str) -> dict[str, bool]:
        inside: set[str] = set()
        found: dict[str, bool] = {}
        for path, use in self.algorithm.uses():
            if path.split(".")[0] == stage:
                for read in parts.reads(use):
                    record = self.known[read.column]
                    follows = record.door is None or record.writer == stage
                    if not follows and read.column not in inside:
                        must = read.required and not record.presumed
                        found[read.column] = found.get(read.column, False) or must
                inside |= set(parts.writes(use))
        return found

    def reads_turns(self, call: str) -> bool:
        """Whether some part of the call's stage looks at turns."""
        read = self.algorithm.reads((CALLS[call][0],))
        return "turn_T" in read or any(level_of(column) == "K" for column in read)

    def inputs(self, call: str) -> dict[str, bool]:
        """The names that the call takes, and whether each must be there."""
        found = dict.fromkeys(("step", "total_steps"), False)
        found |= {name: name in ALWAYS for name in CALLS[call][1]}
        filled = {self.fills[name] for name in found if name in self.fills}
        found = {name: False for name, columns in self.fills.items() if columns in filled} | found
        reads, always = self.reads(call), self.without_critic.reads(call)
        for column, must in reads.items():
            for name in self.of(column):
                found[name] = found.get(name, False) or (must and column in always)
        if {"reward_T", "reward_BM"} & reads.keys():
            found["rewards"] = False
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
        terms = tuple(term for term in self.algorithm.terms if term.learner == "policy")
        return dataclasses.replace(self, algorithm=dataclasses.replace(self.algorithm, terms=terms))

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


def compose(
    name: str, params: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Names, dict[str, Any]]:
    """A recipe's names, and the given tensors under the usual ones, with those numbers for the
    whole run that stood in `params`.

    Raises UserError for a parameter that the recipe does not have and a tensor given twice.
    """
    name = catalogue.recipe_called(name)
    recipe = catalogue.load("recipe", name)
    words = getattr(recipe, "door", None)
    params = {words.parameters.get(k, k) if words else k: v for k, v in params.items()}
    parameters = inspect.signature(recipe).parameters
    own = {key: value for key, value in params.items() if key in parameters}
    names = _names(name, recipe, own)
    numbers = {n for n, filled in names.fills.items() if not level_of(filled[0])}
    run_wide = {key: value for key, value in params.items() if key in numbers - own.keys()}
    if len(run_wide) + len(own) < len(params):
        notation.build_recipe(name, {k: v for k, v in params.items() if k not in run_wide})
    return names, {**_usual(names, words.tensors if words else {}, given), **run_wide}


_PLAIN = (bool, int, float, str, type(None))


def _names(name: str, recipe: Any, own: Mapping[str, Any]) -> Names:
    """The names of a recipe with parameters; those of plain values are kept for the next call."""
    if all(isinstance(value, _PLAIN) for value in own.values()):
        return _kept(name, recipe, tuple((key, type(own[key]), own[key]) for key in own))
    return _made(name, recipe, own)


@functools.lru_cache(maxsize=256)
def _kept(name: str, recipe: Any, own: tuple[tuple[str, type, Any], ...]) -> Names:
    return _made(name, recipe, {key: value for key, _, value in own})


def _made(name: str, recipe: Any, own: Mapping[str, Any]) -> Names:
    words = getattr(recipe, "door", None)
    algorithm = notation.build_recipe(name, own).algorithms[-1]  # what a method of phases comes to
    return Names(algorithm, _known(algorithm), words.columns if words else {})


def _known(algorithm: Algorithm) -> dict[str, Column]:
    """The records of the algorithm's columns, also of those that another part declares."""
    uses = list(algorithm.uses())
    read = {name for _, use in uses for r in parts.reads(use) for name in (r.parameter, r.column)}
    kinds = [type(use.part) for _, use in uses]
    elsewhere = (catalogue.declarer(name) for name in read - columns.together(kinds).keys())
    kinds += [entry.load() for entry in elsewhere if entry]
    found = columns.of(uses, kinds)
    return found | {name: Column(name, "float", "") for name in sorted(read - found.keys())}


def _usual(names: Names, words: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors under their usual names. Raises UserError for one that is there twice."""
    also = {other: (c.names[0], None) for c in names.known.values() for other in c.also}
    found = dict(given)
    for name, (usual, make) in {**also, **words}.items():
        if name not in given:
            continue
        if usual in found:
            raise UserError(f"{name} is {usual}: give one of the two")
        tensor = tensor_of(name, found.pop(name))
        found[usual] = make(tensor) if make else tensor
    return found
