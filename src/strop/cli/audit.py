"""`strop audit`: what a method does to a policy that is small enough to enumerate."""

import csv
import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from strop.cli import completing
from strop.door.words import OVERRIDE
from strop.errors import UserError

Numbers = Annotated[str, typer.Option()]
SHORT = {"staleness": "stale"}
COLUMNS = {
    "scale": "scale",
    "bias": "bias",
    "cosine": "cosine",
    "noise": "noise",
    "success_change": "success'",
    "entropy_change": "entropy'",
    "ess": "ESS",
    "no_signal": "silent",
    "thrown_away": "refilled",
}


def audit(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... [OPTION=VALUE]...",
            help="Methods, and options that all of them get, as `strop train` takes them.",
            autocompletion=completing.methods,
        ),
    ],
    group: Annotated[str, typer.Option(help="Answers to a prompt.")] = "2,4,8",
    success: Annotated[str, typer.Option(help="Success rates of the policy.")] = "0.1,0.3,0.7",
    staleness: Annotated[
        str, typer.Option(help="Steps that the policy has taken since the answers were drawn.")
    ] = "0,2,8",
    updates: Annotated[str, typer.Option(help="Updates on the same answers.")] = "1,4",
    step: Annotated[
        float, typer.Option(help="Learning rate, on free logits, of such a step or update.")
    ] = 0.3,
    depth: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 3,
    branching: Annotated[int, typer.Option(help="Actions at every node.")] = 2,
    ragged: Annotated[bool, typer.Option(help="Action 0 ends an answer.")] = True,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a step, a tree each.")] = 1,
    share: Annotated[float, typer.Option(help="Share of the paths that are right.")] = 0.5,
    most: Annotated[int, typer.Option(min=1, help="Of more groups some are drawn.")] = 1500,
    draws: Annotated[int, typer.Option(min=40, help="How many are drawn then.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the tree's rewards and the policy.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
    out: Annotated[Path | None, typer.Option("--csv", help="Also write the numbers here.")] = None,
) -> None:
    """Bias, variance and first-order effects of a method's gradient, by enumeration.

    Of every list of values the middle one (the first of staleness, the method's own updates) is the
    base setting; the others are tried one at a time.

    scale: how many times the true policy gradient the mean step goes; bias: the rest of it over
    that; noise: its standard deviation over its length; success', entropy': their change, first
    order, per unit of step; ESS: effective sample size of the answers, as a share; silent: share of
    groups that move nothing; refilled: share of groups for which the method asks for others.
    """
    from strop.auditing.estimate import Limits
    from strop.auditing.vary import Setting

    recipes = [text for text in arguments if not OVERRIDE.match(text)]
    options = [text for text in arguments if OVERRIDE.match(text)]
    if not recipes:
        raise UserError("name a recipe to audit, such as `strop audit grpo`")
    if not 0 < step < math.inf:
        raise UserError(f"--step {step}: it must be a number above 0")
    texts = {"group": group, "success": success, "staleness": staleness, "updates": updates}
    changes = {name: _values(name, text) for name, text in texts.items()}
    groups, rates = changes["group"], changes["success"]
    base = Setting(
        depth, branching, ragged, prompts, share, groups[len(groups) // 2], rates[len(rates) // 2],
        changes["staleness"][0], 0, step, seed,
    )  # fmt: skip
    rows = []
    for recipe in recipes:
        rows += _audited(recipe, options, base, changes, Limits(most, draws), as_json)
    if out is not None:
        _write(rows, out)


def _audited(
    recipe: str, options: list[str], base: Any, changes: dict[str, Any], limits: Any, as_json: bool
) -> list[dict[str, Any]]:
    """Every setting's numbers of one recipe, shown as they come, phase by phase.

    Raises Uncountable where no phase can be enumerated; of several, those that can be are.
    """
    from strop.auditing.bench import Uncountable
    from strop.auditing.vary import phases_of
    from strop.door.options import settings_of

    settings = settings_of([recipe, *options], {}, None)
    rows, phases = [], phases_of(settings)
    for number, phase in enumerate(phases, 1):
        label = f"{recipe}: {phase}" if phase else recipe
        try:
            rows += _audited_phase(label, settings, number, base, changes, limits, as_json)
        except Uncountable as error:
            if number == len(phases) and not rows:
                raise
            print(f"{label} is left out: {error}", file=sys.stderr)
    return rows


def _audited_phase(
    recipe: str, settings: Any, phase: int, base: Any, changes: dict[str, Any], limits: Any,
    as_json: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """Every setting's numbers of one phase of a recipe, shown as they come."""
    from strop.auditing.vary import one, variations

    rows, lines = [], []
    for name, setting in variations(base, **changes):
        found = one(settings, setting, limits, phase)
        label = f"{SHORT.get(name, name)} {getattr(setting, name):g}" if name else "base"
        numbers = {key: getattr(found, key) for key in COLUMNS}
        row = {"recipe": recipe, **dataclasses.asdict(setting), "exact": found.exact}
        row |= {key: value if key == "ess" else value.value for key, value in numbers.items()}
        rows.append(row)
        if as_json:
            print(json.dumps({k: v if v == v else None for k, v in row.items()}), flush=True)
        if not name:
            first = found
        lines.append((label, {key: _shown(number) for key, number in numbers.items()}))
    if not as_json:
        _show(recipe, base, first, _table(lines))
    return rows


def _show(recipe: str, base: Any, found: Any, table: Table) -> None:
    console = Console(highlight=False)
    tree = base.tree()
    how = "all" if found.exact else "drawn,"
    console.print(
        f"[bold]{recipe}[/] on a tree of {len(tree.paths)} answers of up to {base.depth} tokens: "
        f"group {base.group}, success {base.success:g}, entropy {found.truth.entropy:.3f} nats a "
        f"token; base setting: {how} {found.num_groups} groups"
    )
    console.print(table)


def _table(lines: list[tuple[str, dict[str, str]]]) -> Table:
    """The settings' numbers; ESS and refilled stand there where they say something."""
    told = {"ess": "1.000", "thrown_away": "0.000"}
    kept = [k for k in COLUMNS if any(numbers[k] != told.get(k) for _, numbers in lines)]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("setting", no_wrap=True)
    for key in kept:
        table.add_column(COLUMNS[key], justify="right", no_wrap=True)
    for label, numbers in lines:
        table.add_row(label, *(numbers[key] for key in kept))
    return table


def _shown(number: Any) -> str:
    """Three digits, and how far off it may be where groups were drawn."""
    value, within = (number, 0.0) if isinstance(number, float) else number
    if not math.isfinite(value):
        return "-"
    if not within:
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.3g}"
    digits = max(0, min(3, 1 - math.floor(math.log10(within))))
    return f"{value:.{digits}f}±{within:.{digits}f}"


def _values(name: str, text: str) -> tuple[Any, ...]:
    """The numbers of an option. Raises UserError."""
    try:
        found = tuple((float if name == "success" else int)(piece) for piece in text.split(","))
    except ValueError:
        raise UserError(f"--{name} takes numbers with commas between them, not {text!r}") from None
    low = {"group": 1, "success": -math.inf, "staleness": 0, "updates": 1}[name]
    if any(not math.isfinite(value) or value < low for value in found):
        raise UserError(f"--{name} {text}: every number must be finite and {low} or more")
    return found


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)
