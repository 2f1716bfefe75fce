"""The map: every method by family, and the stages at which it differs from its parent."""

from html import escape

from docsite.drawing import STAGE_WORDS
from docsite.known import Known
from strop.catalogue.entries import Entry
from strop.catalogue.families import Family
from strop.catalogue.seams import STAGES

ROW, LEFT, STEP, HEAD, WIDTH = 19, 200, 14, 66, 396
LETTER = 6.6  # width of a character of a name
PHASES = "phases"
TEXT = """# Map of the methods

Every method, and the stages of a step at which it **differs from its parent**. A method stands
below its parent if both belong to one family. Choose a stage to see which methods change it; a name
leads to the method's page.

"""


def page(known: Known) -> str:
    """The page in Markdown."""
    chips = "".join(
        f'<button data-stage="{stage}" aria-pressed="false">{STAGE_WORDS.get(stage, stage)}'
        f" <small>{len(_changing(stage, known))}</small></button>"
        for stage in _shown(known)
    )
    blocks = "".join(block(family, known) for family in known.families)
    return (
        "---\ntitle: Map of the methods\nhide:\n  - navigation\n  - toc\n---\n\n"
        + TEXT
        + f'<div class="map" markdown="0" data-search-exclude><div class="chips">{chips}</div>'
        + f'<p class="chosen" hidden></p><div class="blocks">{blocks}</div></div>\n'
    )


def _changing(stage: str, known: Known) -> list[str]:
    return [name for name, stages in known.changed.items() if stage in stages]


def _shown(known: Known) -> list[str]:
    """The stages at which some method differs from its parent."""
    return [stage for stage in (*STAGES, PHASES) if _changing(stage, known)]


def block(family: Family, known: Known, up: str = "") -> str:
    """The picture of one family; up: the path from the page to the site's root folder."""
    members = known.families[family]
    height = HEAD + ROW * len(members) + 6
    at = {stage: LEFT + STEP * (n + 0.5) for n, stage in enumerate(_shown(known))}
    heads = "".join(
        f'<text class="head" data-stage="{stage}" transform="translate({x + 4} {HEAD - 8}) '
        f'rotate(-60)">{STAGE_WORDS.get(stage, stage)}</text>'
        for stage, x in at.items()
    )
    depth: dict[str, int] = {}
    rows = []
    for n, entry in enumerate(members):
        parent = entry.line("Parent")
        depth[entry.name] = depth.get(parent, -1) + 1
        rows.append(_row(entry, HEAD + ROW * n, depth[entry.name], at, known, up))
    label = f"{family.title}: methods and the stages they change"
    return (
        f'<figure><figcaption><a href="{up}families/{family.name}/index.html">{family.title}</a>'
        f'</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="group" aria-label="{label}">'
        f"{heads}{''.join(rows)}</svg></figure>"
    )


def _row(entry: Entry, y: int, depth: int, at: dict[str, float], known: Known, up: str) -> str:
    middle, x = y + ROW / 2, 4 + 11 * depth
    root = entry.name not in known.changed  # it has no parent to differ from
    changed = known.changed.get(entry.name, [])
    marked = [stage for stage in (known.stages[entry.name] if root else changed) if stage in at]
    dots = "".join(
        f'<circle class="{"off" if stage not in marked else "root" if root else "on"}" '
        f'cx="{place}" cy="{middle}" r="{4.6 if stage in marked else 1.6}"/>'
        for stage, place in at.items()
    )
    ends = [at[stage] for stage in marked]
    line = f'<path class="run" d="M{min(ends)} {middle}H{max(ends)}"/>' if len(ends) > 1 else ""
    bend = f'<path class="bend" d="M{x - 7} {y - 3}V{middle}H{x - 2}"/>' if depth else ""
    about = entry.line("In short") or entry.summary
    said = escape(f"{entry.name}: {about} (parent: {entry.line('Parent')})", quote=False)
    room = int((LEFT - x) / LETTER)
    name = entry.name if len(entry.name) <= room else entry.name[: room - 1] + "…"
    return (
        f'<a href="{up}recipes/{entry.name}.html" data-stages="{" ".join(changed)}">'
        f'<title>{said}</title><rect class="row" x="0" y="{y}" width="{WIDTH}" height="{ROW}" '
        f'rx="3"/>{bend}<text class="name" x="{x}" y="{middle + 4}">{name}</text>{line}{dots}</a>'
    )
