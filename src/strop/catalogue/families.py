"""The families of recipes, by what a method changes, which is where a reader looks for it.

A recipe names its family in its docstring. Listings and pages follow the order given here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from strop.catalogue.entries import Entry
from strop.support.errors import UserError, nearest


@dataclass(frozen=True)
class Family:
    """Name as recipes write it, title of its page, and what its members change."""

    name: str
    title: str
    sentence: str


FAMILIES = (
    Family(
        "baselines",
        "Group baselines and scales",
        "What an answer's reward is compared with, and what the difference is divided or weighted "
        "by: one number an answer.",
    ),
    Family(
        "ratios",
        "Clipping and ratios",
        "How far an update may move a token or an answer, and what can stand in place of the "
        "clipped ratio.",
    ),
    Family(
        "entropy",
        "Entropy and exploration",
        "How open the policy's choices stay: bonuses, targets and controllers, and tokens or "
        "answers that are spared or favoured for it.",
    ),
    Family(
        "credit",
        "Credit over tokens, steps and trees",
        "Which tokens, steps or branches of an answer are praised and blamed for its reward.",
    ),
    Family(
        "turns",
        "Turns, tools and players",
        "Credit and updates by turn, where an environment, tools or other players answer.",
    ),
    Family(
        "critics",
        "Learned values",
        "A learned value in place of the comparison with a group: of tokens, turns or subgoals.",
    ),
    Family(
        "staleness",
        "Old answers and asynchrony",
        "What to do when another policy drew the answers: older weights, or an engine that "
        "computes other log-probabilities.",
    ),
    Family(
        "draws",
        "Prompts, draws and replay",
        "Which prompts are drawn, how many answers each gets, and which earlier answers come back.",
    ),
    Family(
        "rewards",
        "Rewards, lengths and formats",
        "What earns: a length or a form of answering, a rank, a sound or a fast solution, "
        "agreement, votes where there are no labels.",
    ),
    Family(
        "demonstrations",
        "Demonstrations and preferences",
        "Learning from answers that are given, alone or beside the policy's own.",
    ),
)
# For recipes of other packages, which need not name a family.
OTHER = Family("other", "Of no family", "Recipes that name none of the families above.")


def find(name: str) -> Family:
    """The family called `name`. Raises UserError with the nearest names."""
    for family in FAMILIES:
        if family.name == name:
            return family
    names = [family.name for family in FAMILIES]
    raise UserError(f"no family {name!r}{nearest(name, names)}; they are {', '.join(names)}")


def grouped(entries: Iterable[Entry]) -> dict[Family, list[Entry]]:
    """The recipes of every family that has some, in order, each parent before its children."""
    found: dict[Family, list[Entry]] = {family: [] for family in (*FAMILIES, OTHER)}
    known = {family.name: family for family in FAMILIES}
    for entry in entries:
        found[known.get(entry.line("Family"), OTHER)].append(entry)
    return {family: _as_tree(members) for family, members in found.items() if members}


def _as_tree(entries: list[Entry]) -> list[Entry]:
    """Sort by name, but with every recipe right after its parent, where that is among them."""
    names = {entry.name for entry in entries}
    children: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.name):
        parent = entry.line("Parent")
        children.setdefault(parent if parent in names else "", []).append(entry)

    def below(name: str) -> list[Entry]:
        return [e for child in children.get(name, ()) for e in (child, *below(child.name))]

    return below("")
