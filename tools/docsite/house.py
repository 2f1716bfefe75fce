"""The page "The house": the source's rooms on their floors, and their imports, measured at build.

The floors are the contracts of type "layers" in pyproject.toml; each contract has its own picture.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH, BOX, FLOOR, GAP, BOW = 960, 40, 78, 14, 48
LETTER, LINE = 7.4, 0.016  # width of a character, and of a line of source, in a box
TEXT = """---
title: The house
hide:
  - toc
---

# The house

Rooms are folders of the source, and floors are the `layers` of `pyproject.toml`: a room imports
only rooms below it. A room with more lines has a wider box. An arrow leads from a room to one that
it imports, and is wider if there are more imports. Point at a room to see its arrows and their
numbers of imports. An arrow that ran upwards, or between rooms of a floor that may not import each
other, would be red.

The first row is of version 0.1. There were no floors then, a file beside the folders counted as a
room too, and the largest import cycle had 73 files.

| | rooms | arrows | import cycles of files | upward arrows |
| --- | --- | --- | --- | --- |
| `strop` 0.1 | 86 | 486 | 6 | |
"""


@dataclass
class House:
    """The rooms of a container; `imports` counts the imports of one room from another."""

    name: str
    floors: list[list[str]]
    open_floors: set[int]  # floors whose rooms may import each other
    lines: Counter[str]
    imports: Counter[tuple[str, str]]

    def upward(self) -> list[tuple[str, str]]:
        level = {room: at for at, rooms in enumerate(self.floors) for room in rooms}
        shut = {room for room, at in level.items() if at not in self.open_floors}
        return [(a, b) for a, b in self.imports if level[a] + (a in shut) > level[b]]


def imports_of(package: Path) -> dict[str, tuple[Counter[str], int]]:
    """By module: how often it imports other modules, anywhere in its text, and its lines."""
    paths = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"):
        path for path in sorted(package.rglob("*.py")) if "init" not in path.parts
    }  # fmt: skip
    found = {}
    for name, path in paths.items():
        text, seen = path.read_text(encoding="utf-8"), Counter[str]()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                seen.update(alias.name for alias in node.names if alias.name in paths)
            elif isinstance(node, ast.ImportFrom):
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & {*paths}
                seen.update(inside or {str(node.module)} & {*paths})
        found[name] = (seen, len(text.splitlines()))
    return found


def houses(imports: dict[str, tuple[Counter[str], int]], settings: Path) -> Iterator[House]:
    """One house for each container that has a contract of layers in import-linter's settings."""
    contracts = tomllib.loads(settings.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    for contract in (each for each in contracts if each["type"] == "layers"):
        (container,) = contract["containers"]
        floors = [re.findall(r"\w+", layer) for layer in contract["layers"]]
        opened = {at for at, layer in enumerate(contract["layers"]) if ":" in layer}
        rooms = {f"{container}.{room}": room for rooms in floors for room in rooms}
        size = container.count(".") + 2
        room_of = {m: rooms.get(".".join(m.split(".")[:size])) for m in imports}
        house = House(container, floors, opened, Counter(), Counter())
        for module, (seen, lines) in imports.items():
            if here := room_of[module]:
                house.lines[here] += lines
                for other, number in seen.items():
                    if (there := room_of[other]) and there != here:
                        house.imports[here, there] += number
        yield house


def circles(imports: dict[str, tuple[Counter[str], int]]) -> int:
    """The number of import cycles: groups of these files that import each other on some path."""
    reached: dict[str, set[str]] = {}
    for name in imports:
        reached[name], left = set(), [name]
        while left:
            new = {*imports[left.pop()][0]} & {*imports} - reached[name]
            reached[name] |= new
            left.extend(new)
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in imports}
    return sum(len(group) > 1 for group in groups)


def picture(house: House) -> str:
    """The SVG: one row per floor, one box per room."""
    place: dict[str, tuple[float, float, float]] = {}
    for at, rooms in enumerate(house.floors):
        widths = [max(LETTER * len(r) + 20, LINE * house.lines[r], 84) for r in rooms]
        x = (WIDTH - sum(widths) - GAP * (len(rooms) - 1)) / 2
        for room, width in zip(rooms, widths, strict=True):
            place[room] = (x, at * FLOOR + 6, width)
            x += width + GAP
    upward, pieces = {*house.upward()}, []
    for (a, b), number in sorted(house.imports.items()):
        (ax, ay, aw), (bx, by, bw) = place[a], place[b]
        x, end = ax + aw / 2, bx + bw / 2
        bow = (1 if (x + end) / 2 >= WIDTH / 2 else -1) * BOW * ((by - ay) / FLOOR - 1)
        start, stop = (ay + BOX, by) if by > ay else (ay, by + BOX if by < ay else by)
        turn = (stop - start) / 3 if by != ay else -30
        way = f"M{x} {start}C{x + bow} {start + turn} {end + bow} {stop - abs(turn)} {end} {stop}"
        pieces.append(
            f'<g class="arrow{" upward" * ((a, b) in upward)}" data-rooms="{a} {b}">'
            f'<path d="{way}" stroke-width="{0.6 + number**0.5 / 6:.2f}"/>'
            f'<text x="{(x + end) / 2 + bow * 0.75}" y="{(start + stop) / 2}">{number}</text></g>'
        )
    for room, (x, y, width) in place.items():
        pieces.append(
            f'<g class="room" data-room="{room}"><rect x="{x}" y="{y}" width="{width}" '
            f'height="{BOX}" rx="5"/><text x="{x + width / 2}" y="{y + 17}">{room}</text>'
            f'<text class="lines" x="{x + width / 2}" y="{y + 32}">{house.lines[room]:,}</text></g>'
        )
    height = len(house.floors) * FLOOR - FLOOR + BOX + 12
    label = f'role="img" aria-label="rooms of {house.name} on their floors"'
    return f'<svg class="house" viewBox="0 0 {WIDTH} {height}" {label}>{"".join(pieces)}</svg>'


def page() -> str:
    """The page in Markdown."""
    imports = imports_of(ROOT / "src/strop")
    rows, shown = [], []
    for house in houses(imports, ROOT / "pyproject.toml"):
        among = circles({name: each for name, each in imports.items() if house.name in name})
        numbers = (len(house.lines), len(house.imports), among, len(house.upward()))
        rows.append(f"| `{house.name}` | {' | '.join(map(str, numbers))} |")
        shown.append(f'## {house.name}\n\n<div markdown="0">{picture(house)}</div>\n')
    return TEXT + "\n".join(rows) + "\n\n" + "\n".join(shown)
