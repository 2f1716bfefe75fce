"""Draw the runs of laboratory.py: entropy, pass@1 and pass@16 over steps, one line per method.

    python benchmarks/plot_laboratory.py lab --to picture.svg METHOD ...

Lines are means over the seeds in the folder, averaged over ten steps for entropy; the scores are
those of the checkpoints that laboratory.py has scored. The grey field is the band.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from laboratory import folder_of

COLOURS = ("#333333", "#d1495b", "#00798c", "#edae49", "#7a5195", "#66a182")
WIDTH, HEIGHT, MARGIN = 300, 230, 46
MANY = 10  # points of a line that are not marked one by one

Point = tuple[float, float]


class Panel(NamedTuple):
    """A chart: title, lines by method, and the range of its upright axis."""

    title: str
    lines: dict[str, list[Point]]
    low: float
    high: float
    field: tuple[float, float] | None = None


def entropy(folders: list[Path], window: int = 10) -> list[Point]:
    """(step, mean entropy of the last `window` steps), over all runs; to the shortest run's end."""
    runs = []
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        runs.append([line["entropy"] for line in lines if line["step"] > 0])
    mean = [sum(values) / len(values) for values in zip(*runs, strict=False)]
    ends = range(window, len(mean) + 1, window)
    return [(end, sum(mean[end - window : end]) / window) for end in ends]


def scores(folders: list[Path], start: Path, name: str) -> list[Point]:
    """(step, mean held-out score) of the steps that every run has been scored at."""
    steps = set.intersection(
        *({int(path.stem.split("-")[1]) for path in f.glob("heldout-*.json")} for f in folders)
    )
    points = [(0.0, float(json.loads(start.read_text())[name]))]
    for step in sorted(steps):
        found = [json.loads((f / f"heldout-{step}.json").read_text())[name] for f in folders]
        points.append((step, sum(found) / len(found)))
    return points


def draw(panels: list[Panel], methods: list[str]) -> str:
    """The panels side by side, and the legend below, as SVG."""
    height = HEIGHT + 2 * MARGIN + 18 * len(methods)
    total = (WIDTH + MARGIN) * len(panels) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" '
        f'width="{total}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{total}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, MARGIN + number * (WIDTH + MARGIN))
    for number, method in enumerate(methods):
        y = HEIGHT + 2 * MARGIN + 18 * number
        parts.append(
            f'<rect x="{MARGIN}" y="{y - 6}" width="22" height="3" fill="{COLOURS[number]}"/>'
            f'<text x="{MARGIN + 30}" y="{y}">{method}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: float) -> list[str]:
    last = max(step for line in panel.lines.values() for step, _ in line)

    def x(step: float) -> float:
        return left + WIDTH * step / last

    def y(value: float) -> float:
        return MARGIN + HEIGHT * (panel.high - value) / (panel.high - panel.low)

    parts = [f'<text x="{left}" y="{MARGIN - 14}" font-weight="bold">{panel.title}</text>']
    if panel.field:
        low, high = panel.field
        parts.append(
            f'<rect x="{left}" y="{y(high):.1f}" width="{WIDTH}" '
            f'height="{y(low) - y(high):.1f}" fill="#dddddd"/>'
        )
    for tick in range(5):
        value, step = panel.low + (panel.high - panel.low) * tick / 4, last * tick / 4
        parts.append(
            f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#bbbbbb" stroke-width="0.5"/>'
            f'<text x="{left - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
            f'<text x="{x(step):.1f}" y="{MARGIN + HEIGHT + 16}" '
            f'text-anchor="middle">{step:.0f}</text>'
        )
    for colour, line in zip(COLOURS, panel.lines.values(), strict=False):
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in line)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        if len(line) < MANY:
            parts += [
                f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
                for step, value in line
            ]
    return parts


def main() -> None:
    """Read the runs and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder of laboratory.py")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--low", type=float, default=0.3, help="lower edge of the band, nats")
    parser.add_argument("--high", type=float, default=0.4, help="upper edge of the band, nats")
    parser.add_argument("methods", nargs="+")
    options = parser.parse_args()
    places = {m: [folder_of(options.out, m, s) for s in range(options.seeds)]
              for m in options.methods}  # fmt: skip
    start = options.out / "start.json"
    solved = [
        {m: scores(folders, start, name) for m, folders in places.items()}
        for name in ("pass@1", "pass@16")
    ]
    panels = [
        Panel("entropy, nats, over steps", {m: entropy(f) for m, f in places.items()},
              0.0, 0.6, (options.low, options.high)),
        Panel("held-out pass@1", solved[0], 0.1, 0.7),
        Panel("held-out pass@16", solved[1], 0.7, 0.94),
    ]  # fmt: skip
    options.to.write_text(draw(panels, options.methods))


if __name__ == "__main__":
    main()
