"""The folder that the generator reads: a copy of docs/, and the pages that only the site has."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from docsite import house, method_map, notebooks, pages, part_page, recipe_page, start
from docsite.known import Known, coded
from strop.catalogue.seams import KINDS

ROOT = Path(__file__).parents[2]
COPIED = ("CONTRIBUTING.md", "CHANGELOG.md")
# How much the search favours pages other than those of the guide, which have 1: lists and records
# contain every word and are seldom looked for; the run folder, and how a run is resumed, often is.
# Pages of recipes and parts set their own (known.boost).
BOOSTS = {
    "families": 0.2, "CONTRIBUTING": 0.2, "CHANGELOG": 0.05, "docs/evidence": 0.05,
    "docs/ATLAS": 0.05, "docs/CLAIMS": 0.05, "docs/LOG": 0.05, "docs/METHODS": 0.05,
    "docs/PARTS": 0.05, "docs/RUN_FOLDER": 2,
}  # fmt: skip
KATEX = "katex", "0.16.47"  # it typesets the equations


def fetched(package: str, version: str) -> Path:
    """A package's folder, fetched from npm once. Raises OSError, CalledProcessError."""
    place = ROOT / f"build/{package}-{version}"
    folder = place / f"node_modules/{package}"
    if not folder.exists():
        install = ["npm", "install", "--silent", "--prefix", str(place), f"{package}@{version}"]
        subprocess.run(install, check=True)
    return folder


def write(folder: Path, known: Known) -> list[Any]:
    """Write all pages into a new folder; returns the navigation."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.ipynb"))
    for name in COPIED:
        shutil.copy(ROOT / name, folder / name)
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        text, pictures = notebooks.page(notebook)
        _write(folder / f"docs/notebooks/{notebook.stem}.md", text)
        for name, picture in pictures.items():
            _write(folder / f"docs/notebooks/{name}", picture)
    for path in sorted((folder / "docs/methods").glob("*.md")):
        (folder / "families" / path.stem).mkdir(parents=True)
        path.rename(folder / f"families/{path.stem}/index.md")
    for family in known.families:
        place = folder / f"families/{family.name}/index.md"
        head, rest = place.read_text(encoding="utf-8").split("\n| recipe |", 1)
        picture = method_map.block(family, known, "../../")
        shown = f'<div class="map" markdown="0" data-search-exclude>{picture}</div>'
        _write(place, f"{head}\n{shown}\n\n| recipe |{rest}")
    for path in folder.rglob("*.md"):
        place = path.relative_to(folder)
        text = of_the_site(path.read_text(encoding="utf-8"), place)
        _write(path, _boosted(named(text, known) if path.name in pages.INDEXES else text, place))
    for name in known.recipes:
        _write(folder / f"recipes/{name}.md", recipe_page.page(name, known))
    for name in known.parts:
        _write(folder / f"parts/{name}.md", part_page.page(name, known))
    _write(folder / "map.md", method_map.page(known))
    _write(folder / "house.md", house.page())
    _write(folder / "index.md", start.page(known))
    assets = folder / "assets/katex"
    left_out = shutil.ignore_patterns("*.ttf", "*.woff")
    katex = fetched(*KATEX)
    shutil.copytree(katex / "dist/fonts", assets / "fonts", ignore=left_out)
    for name in ("dist/katex.min.css", "dist/katex.min.js", "LICENSE"):
        shutil.copy(katex / name, assets)
    return navigation(known)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _boosted(text: str, place: Path) -> str:
    """A page with its search boost, if that differs from the guide's."""
    for started, boost in BOOSTS.items():
        if place.as_posix().startswith(started):
            return f"---\nsearch:\n  boost: {boost}\n---\n\n{text}"
    return text


def of_the_site(text: str, place: Path) -> str:
    """A page of docs/ with its links adapted to pages that have another place on the site.

    These are the first page, notebooks, families of methods, and recipes, which have a page each.
    """
    up = "../" * (len(place.parts) - 1)
    text = text.replace(f"]({up}README.md)", f"]({up}index.md)")
    text = re.sub(r"(\]\(notebooks/\w+)\.ipynb\)", r"\1.md)", text)
    methods = r"\]\((?:\.\./)*(?:docs/)?methods/"
    text = re.sub(methods + r"\w+\.md#(\w+)\)", rf"]({up}recipes/\1.md)", text)
    text = re.sub(methods + r"(\w+)\.md\)", rf"]({up}families/\1/index.md)", text)
    if place.parts[0] != "families":
        return text
    text = re.sub(r"\]\((?:\w+\.md)?#(\w+)\)", rf"]({up}recipes/\1.md)", text)
    return (
        text.partition("\n[METHODS.md](../METHODS.md) lists")[0]
        + "\nStages: those that differ from the parent's. Cost: work of a step besides sampling "
        f"its rollouts and one update on them. [All methods]({up}docs/METHODS.md), "
        f"[the map]({up}map.md).\n"
    )


def named(text: str, known: Known) -> str:
    """A page whose tables have names set as code, which become links."""
    lines = []
    for line in text.splitlines():
        if line.startswith("| "):
            *cells, users = line.strip("| ").split(" | ")
            names = [f"`{n}`" if n in known.recipes else n for n in users.split(", ")]
            cells = [f"`{cell}`" if cell in known.recipes else coded(cell) for cell in cells]
            line = f"| {' | '.join([*cells, ', '.join(names)])} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def navigation(known: Known) -> list[Any]:
    """The pages in their order, in the form that the generator takes."""
    written = {
        head: [f"docs/{name}" for name in names]
        for head, names in pages.placed(ROOT / "docs").items()
    }
    methods = [
        {
            family.title: [
                f"families/{family.name}/index.md", *(f"recipes/{e.name}.md" for e in members)
            ]
        }
        for family, members in known.families.items()
    ]  # fmt: skip
    parts = [
        {kind: [f"parts/{name}.md" for name, e in known.parts.items() if e.folder == kind]}
        for kind in KINDS
    ]
    apart = ("Tutorials", "Guide", "Reference", "Evidence")
    inside = [{head: names} for head, names in written.items() if head not in apart]
    return [
        {"Home": "index.md"},
        {"Tutorials": written["Tutorials"]},
        {"Guide": [*written["Guide"], *inside]},
        {"Methods": [{"All methods": "docs/METHODS.md"}, {"Map": "map.md"}, *methods]},
        {"Parts": [{"All parts": "docs/PARTS.md"}, *parts]},
        {"Reference": written["Reference"]},
        {"Evidence": written["Evidence"]},
        {"Contribute": [*COPIED, {"The house": "house.md"}]},
    ]
