"""Groups recipes into families by what a method changes, where a reader would look for it.

A recipe names its family in its docstring. Listings and pages follow the order given here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from strop.catalogue.entries import Entry
from strop.support.errors import UserError, nearest


@dataclass(frozen=True)
class Family:
    """Its name in recipes, the title of its page, and a sentence on what its members change."""

    name: str
    title: str
    sentence: str


FAMILIES = (
    Family(
        "baselines",
        "Group baselines and scales",
        "These methods choose the baseline that is subtracted from an answer's reward, and the "
        "scale or weight of the difference: one number for each answer.",
    ),
    Family(
        "ratios",
        "Clipping and ratios",
        "These methods limit how far an update may move a token or an answer, or replace the "
        "clipped ratio.",
    ),
    Family(
        "entropy",
        "Entropy and exploration",
        "These methods keep the policy's entropy up: by bonuses, targets and controllers, or by "
        "sparing or favouring certain tokens and answers.",
    ),
    Family(
        "credit",
        "Credit over tokens, steps and trees",
        "These methods decide which tokens, steps or branches of an answer get credit for its "
        "reward.",
    ),
    Family(
        "turns",
        "Turns, tools and players",
        "These methods assign credit and update by turn, where an environment, tools or other "
        "players answer.",
    ),
    Family(
        "critics",
        "Learned values",
        "These methods learn a value of tokens, turns or subgoals instead of comparing with a "
        "group.",
    ),
    Family(
        "staleness",
        "Old answers and asynchrony",
        "These methods correct for answers that another policy drew: older weights, or an engine "
        "that computes other log-probabilities.",
    ),
    Family(
        "draws",
        "Prompts, draws and replay",
        "These methods choose which prompts are drawn, how many answers each gets, and which "
        "earlier answers are replayed.",
    ),
    Family(
        "rewards",
        "Rewards, lengths and formats",
        "These methods change the reward: by length or format, by rank, by sound or fast "
        "solutions, by agreement, or by votes where there are no labels.",
    ),
    Family(
        "demonstrations",
        "Demonstrations and preferences",
        "These methods learn from given answers, alone or together with the policy's own.",
    ),
)
# For recipes of other packages, which need not name a family.
OTHER = Family("other", "Of no family", "These methods name none of the families above.")


def find(name: str) -> Family:
    """The family called `name`. Raises UserError with the nearest names."""
    for family in FAMILIES:
        if family.name == name:
            return family
    names = [family.name for family in FAMILIES]
    raise UserError(f"no family {name!r}{nearest(name, names)}; they are {', '.join(names)}")


def grouped(entries: Iterable[Entry]) -> dict[Family, list[Entry]]:
    """The recipes of every non-empty family, in order, each parent before its children."""
    found: dict[Family, list[Entry]] = {family: [] for family in (*FAMILIES, OTHER)}
    known = {family.name: family for family in FAMILIES}
    for entry in entries:
        found[known.get(entry.line("Family"), OTHER)].append(entry)
    return {family: _as_tree(members) for family, members in found.items() if members}


def _as_tree(entries: list[Entry]) -> list[Entry]:
    """Sort by name, but with every recipe right after its parent, if the parent is listed."""
    names = {entry.name for entry in entries}
    children: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.name):
        parent = entry.line("Parent")
        children.setdefault(parent if parent in names else "", []).append(entry)

    def below(name: str) -> list[Entry]:
        return [e for child in children.get(name, ()) for e in (child, *below(child.name))]

    return below("")
