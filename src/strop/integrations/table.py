"""docs/HOSTED.md: which recipes TRL and verl can host, and why not the others."""

from strop.catalogue import catalogue
from strop.catalogue.entries import Entry
from strop.integrations.hosting import TRL, VERL_ESTIMATOR, VERL_LOSS, Host, hosted, why_no_half

HEADER = """# Recipes inside TRL and verl

What each of the two can host, and why not the rest. In TRL a recipe is an argument of
`StropGRPOTrainer`; it is hosted where all that it needs between reward and gradient is there. verl
asks for advantages and for the loss apart, so either half stands alone.
[COMING_FROM_TRL_AND_VERL.md](COMING_FROM_TRL_AND_VERL.md#strops-recipes-in-trl) shows how.

Recipes stand here with their default parameters. Some that are refused have a parameter that takes
the hindrance away: `hosted as` names it where it is the asking for further rollouts, and without a
penalty towards a reference (`beta=0`) more losses are verl's. What a selection takes out of the
gradient has advantage 0 in verl, whose averages count it nevertheless. Terms that look at a whole
update look at one forward pass in verl, as its own do.

Written by `python tools/write_catalogue.py` from the recipes' compositions; change those, not this
file.
"""


def page() -> str:
    """The text of docs/HOSTED.md."""
    rows = {entry.name: _row(entry) for entry in catalogue.recipes()}
    counts = [sum(row[column].startswith("yes") for row in rows.values()) for column in range(3)]
    said = (
        f"Of {len(rows)} recipes TRL hosts {counts[0]}; verl takes the advantages of {counts[1]} "
        f"and the losses of {counts[2]}.\n"
    )
    some = {name: row for name, row in rows.items() if any(each.startswith("yes") for each in row)}
    none: dict[str, tuple[str, ...]] = {
        name: (row[0],) for name, row in rows.items() if name not in some
    }
    return "\n".join(
        [
            HEADER, said, *_table(("recipe", "TRL", "verl: advantages", "verl: loss"), some), "",
            "Hosted by neither:\n", *_table(("recipe", "it"), none), "",
        ]
    )  # fmt: skip


def _table(head: tuple[str, ...], rows: dict[str, tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return lines + [f"| `{name}` | {' | '.join(row)} |" for name, row in rows.items()]


def _row(entry: Entry) -> tuple[str, ...]:
    """What stands in the columns of a recipe."""
    how, why = hosted(entry.name, TRL)
    trl = why or ("yes" if how == entry.name else f"yes, hosted as `{how}`")
    return trl, _half(entry, VERL_ESTIMATOR), _half(entry, VERL_LOSS)


def _half(entry: Entry, host: Host) -> str:
    return why_no_half(entry.load()(), host) or "yes"
