"""Makes docs/HOSTED.md, for `write_catalogue.py`: which recipes other trainers can host."""

from strop.catalogue import catalogue
from strop.catalogue.entries import Entry
from strop.integrations.hosting import (
    TINKER,
    TRL,
    VERL_ESTIMATOR,
    VERL_LOSS,
    Host,
    hosted,
    why_no_half,
)

HEADER = """# Recipes inside TRL, in verl, and on Tinker's API

This page lists which recipes each of them can host, and why the others are refused. In TRL, a
recipe is an argument of `StropGRPOTrainer`; it is hosted if TRL provides everything that the recipe
needs between reward and gradient. verl requests advantages and the loss separately, so either half
can be used alone. [COMING_FROM_TRL_AND_VERL.md](COMING_FROM_TRL_AND_VERL.md#strops-recipes-in-trl)
shows how. A server of Tinker's API has only the model, and strop's own trainer does the rest:
recipes refused there need more of the model than log-probabilities of tokens
([TINKER.md](TINKER.md)).

The table shows recipes with their default parameters. Some that are refused have a parameter that
removes the obstacle: `hosted as` names it if the obstacle is a request for further rollouts, and
without a penalty towards a reference (`beta=0`) verl can use more losses. In verl, tokens that a
selection takes out of the gradient have advantage 0, but verl's averages count them. Terms that
read a whole update read one forward pass in verl, as verl's own terms do.

Written by `python tools/write_catalogue.py` from the recipes' compositions; change
those, not this file.
"""


def page() -> str:
    """The text of docs/HOSTED.md."""
    rows = {entry.name: _row(entry) for entry in catalogue.recipes()}
    counts = [sum(row[column].startswith("yes") for row in rows.values()) for column in range(4)]
    intro = (
        f"Of {len(rows)} recipes, TRL hosts {counts[0]}; verl can use advantages of {counts[1]} "
        f"and losses of {counts[2]}; {counts[3]} run on Tinker's API.\n"
    )
    some = {
        name: row for name, row in rows.items() if any(each.startswith("yes") for each in row[:3])
    }
    none: dict[str, tuple[str, ...]] = {
        name: (row[0], row[3]) for name, row in rows.items() if name not in some
    }
    return "\n".join(
        [
            HEADER, intro,
            *_table(("recipe", "TRL", "verl: advantages", "verl: loss", "Tinker"), some), "",
            "Hosted by neither TRL nor verl:\n", *_table(("recipe", "it", "Tinker"), none), "",
        ]
    )  # fmt: skip


def _table(head: tuple[str, ...], rows: dict[str, tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return lines + [f"| `{name}` | {' | '.join(row)} |" for name, row in rows.items()]


def _row(entry: Entry) -> tuple[str, ...]:
    """The table's columns for a recipe."""
    trl, tinker = (_whole(entry, host) for host in (TRL, TINKER))
    return trl, _half(entry, VERL_ESTIMATOR), _half(entry, VERL_LOSS), tinker


def _whole(entry: Entry, host: Host) -> str:
    how, why = hosted(entry.name, host)
    return why or ("yes" if how == entry.name else f"yes, hosted as `{how}`")


def _half(entry: Entry, host: Host) -> str:
    return why_no_half(entry.load()(), host) or "yes"
