"""A method as a picture: its stages in the order of a step, their parts, and what differs from its
parent.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from strop.catalogue.entries import Entry
from strop.method import part as parts
from strop.method import writing
from strop.method.algorithm import Algorithm, Method, Phases

WIDTH, LEFT, PAD = 440, 100, 10
STAGE_WORDS = {"terms": "loss", "rates": "rate"}


@dataclass(frozen=True)
class Placed:
    """A part at its place: the slot of a loss term, settings that differ from defaults, its state.

    state: differs from the parent ("changed"), as there ("same"), or only there ("gone").
    """

    stage: str
    slot: str
    name: str
    settings: str
    state: str = "same"


def placed(algorithm: Algorithm, parent: Sequence[Algorithm] = ()) -> list[Placed]:
    """The parts in the order of a step; parts that only the parent has come last in their stage."""
    theirs = [each for algorithm in parent for each in _parts(algorithm)]
    ours = _parts(algorithm)
    if not parent:
        return ours
    names = {(each.stage, each.name) for each in ours}
    gone = {
        (each.stage, each.name): Placed(each.stage, each.slot, each.name, "", "gone")
        for each in theirs
        if (each.stage, each.name) not in names
    }
    found: list[Placed] = []
    stages = dict.fromkeys([*(e.stage for e in ours), *(e.stage for e in theirs)])
    order = [stage for stage in writing.describe(algorithm) if stage in stages]
    for stage in order:
        for each in (each for each in ours if each.stage == stage):
            state = "same" if each in theirs else "changed"
            found.append(Placed(each.stage, each.slot, each.name, each.settings, state))
        found.extend(each for (at, _), each in gone.items() if at == stage)
    return found


def _parts(algorithm: Algorithm) -> list[Placed]:
    found = []
    for path, use in algorithm.uses():
        stage, *inside = path.split(".")
        name = parts.name_of(use.part)
        settings = writing.part_text(use.part).removeprefix(name).strip("()")
        slot = f"{inside[0]}: {inside[-1]}" if stage == "terms" else ""
        if stage == "terms" and inside[-1] == "objective":
            coef = next(term.coef for term in algorithm.terms if term.name == inside[0])
            settings += f"{', ' * bool(settings)}coef {writing.value_text(coef)}" * (coef != 1)
        found.append(Placed(stage, slot, name, settings))
    return found


def phases(method: Method) -> list[tuple[str, Algorithm]]:
    """The algorithms of a method with the names of their phases; one without a name."""
    if isinstance(method, Phases):
        return [(phase.name, phase.algorithm) for phase in method.phases]
    assert isinstance(method, Algorithm)
    return [("", method)]


def picture(found: Sequence[Placed], known: dict[str, Entry], up: str = "../parts/") -> str:
    """The SVG: one row per stage, one box per part, which links to the part's page."""
    pieces, y = [], 6
    for stage in dict.fromkeys(each.stage for each in found):
        top = y
        for each in (each for each in found if each.stage == stage):
            box, height = _box(each, known, y, up)
            pieces.append(box)
            y += height + 5
        middle = top + 19
        pieces.append(
            f'<text class="stage" x="{LEFT - 22}" y="{middle}" text-anchor="end">'
            f"{STAGE_WORDS.get(stage, stage)}</text>"
            f'<circle class="stop" cx="{LEFT - 10}" cy="{middle - 4}" r="3.5"/>'
        )
        y += 9
    line = f'<path class="way" d="M{LEFT - 10} 12V{y - 16}"/>'
    return (
        f'<svg class="drawing" viewBox="0 0 {WIDTH} {y}" role="group" '
        f'aria-label="stages and parts">'
        f"{line}{''.join(pieces)}</svg>"
    )


def _box(each: Placed, known: dict[str, Entry], y: int, up: str) -> tuple[str, int]:
    """One part's box and its height."""
    lines = textwrap.wrap(each.settings, 50)
    if each.slot:
        lines.insert(0, each.slot)
    height = 26 + 13 * len(lines)
    entry = known.get(each.name)
    effect = entry.summary if entry else ""
    rows = "".join(
        f'<tspan x="{LEFT + PAD}" dy="13">{escape(line, quote=False)}</tspan>' for line in lines
    )
    inside = (
        f"<title>{escape(effect, quote=False)}</title>"
        f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 2}" height="{height}" rx="5"/>'
        f'<text class="part" x="{LEFT + PAD}" y="{y + 17.5}">{each.name}</text>'
        f'<text class="settings" y="{y + 19}">{rows}</text>'
    )
    shown = f'<g class="{each.state}">{inside}</g>'
    return (f'<a href="{up}{each.name}.html">{shown}</a>' if entry else shown), height
