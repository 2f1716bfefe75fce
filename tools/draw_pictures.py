"""Draw docs/pictures: strop's pages on real runs, as a browser shows them.

    python tools/draw_pictures.py                        # all but the comparison and growth
    python tools/draw_pictures.py audit                  # one of them
    python tools/draw_pictures.py compare --comparison FOLDER

This needs chromium (on PATH, or named by CHROMIUM) and Pillow. The runs of the inspector's pictures
are made here, in two minutes; a comparison is one that `strop compare` has written (docs/COMPARE.md
has the command). The audit's picture shows the table in docs/AUDIT.md, and that of growth shows
docs/evidence/growth.csv, which `benchmarks/growth.py` writes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from docsite.known import numbers_of, tables
from PIL import Image

from strop.report.charts import COLOURS, GREY, Chart
from strop.report.html import charts_grid, document
from strop.support.tables import read_rows

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
WIDTH = 1200
MOST_BYTES = 150_000
COMMON = ("evaluation.every=0", "--quiet")


class Shot(NamedTuple):
    """A run, one of its steps, and the script that acts on its page before the picture is taken."""

    train: tuple[str, ...]
    step: int
    script: str
    height: int


SHOTS = {
    "inspect_tree": Shot(
        ("spo_tree(branching=(3,3,2), segment_tokens=2)", "sampling.num_prompts=16",
         "training.steps=12", "training.rollouts_every=12"),
        12,
        """while (all("#list > *")[0].id !== "group-1") all("#list > *")[0].remove();
           await wait(200);
           all("article")[4].querySelectorAll(".said .t")[0].click(); await wait(200);
           scrollTo(0, 0);""",
        920,
    ),
    "inspect_turns": Shot(
        ("gigpo", "data.task=corridor", "training.steps=20", "training.rollouts_every=5"),
        5,
        """document.querySelector("#shade").value = "advantage_T";
           document.querySelector("#shade").dispatchEvent(new Event("change")); await wait(200);
           all("article")[0].querySelectorAll(".said .t")[3].click(); await wait(200);
           scrollTo(0, 0);""",
        920,
    ),
}  # fmt: skip
# The recipes of the audit's left picture: each weighs prompts in its own way.
WEIGHING = (
    "rloo", "cispo", "grpo", "entropic", "dapo", "gpg", "reinforce_plus_plus", "mapo",
    "entrocraft", "gspo_n", "riskpo", "grpo_passk", "optimal_token_baseline", "capo",
)  # fmt: skip


def main() -> None:
    """Draw the requested pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="pictures; default: all but compare and growth")
    parser.add_argument("--comparison", type=Path, help="folder that strop compare has written")
    given = parser.parse_args()
    known = (*SHOTS, "audit", "compare", "growth")
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"there is no picture {', '.join(unknown)}, there are {', '.join(known)}")
    if "compare" in given.names and not (given.comparison and given.comparison.is_dir()):
        parser.error("compare needs --comparison FOLDER, which strop compare has written")
    FOLDER.mkdir(exist_ok=True)
    for name in given.names or (*SHOTS, "audit"):
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder)
            if name == "compare":
                page, script, height = given.comparison / "compare.html", "", 1370
            elif name == "audit":
                page, script, height = audit_page(made), "", 560
            elif name == "growth":
                page, script, height = growth_page(made), "", 1070
            else:
                page, script, height = run_page(SHOTS[name], made)
            draw(page, script, height, FOLDER / f"{name}.png", made)


def run_page(shot: Shot, folder: Path) -> tuple[Path, str, int]:
    """Makes a run, and writes the inspector's page of it."""
    strop = [sys.executable, "-m", "strop"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run, page = folder / shot.train[0].partition("(")[0], folder / "page.html"
    subprocess.run([*strop, "train", *shot.train, *COMMON, "--out", str(run)],
                   check=True, env=environment)  # fmt: skip
    step = ["--step", str(shot.step), "--out", str(page)]
    subprocess.run([*strop, "inspect", str(run), *step], check=True)
    return page, shot.script, shot.height


def draw(page: Path, script: str, height: int, out: Path, folder: Path) -> None:
    """Draws the top of a page after a script has acted on it; a palette keeps the file small."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.exit("no chromium on PATH or in CHROMIUM")
    acting = (
        "<script>const wait = (ms) => new Promise((done) => setTimeout(done, ms));"
        "const all = (query) => [...document.querySelectorAll(query)];"
        f"(async () => {{ await wait(1500); {script} }})();</script>"
    )
    acted = folder / "acted.html"
    text = page.read_text(encoding="utf-8")
    acted.write_text(text.replace("</body>", acting + "</body>"), encoding="utf-8")
    shot = folder / "shot.png"
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=6000",
        f"--window-size={WIDTH},{height}", f"--screenshot={shot}", f"file://{acted}",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    with Image.open(shot) as image:
        image.convert("RGB").quantize(256).save(out, optimize=True)
    size = out.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{out} has {size:,} bytes, more than {MOST_BYTES:,}: make it lower")
    print(f"{out.relative_to(ROOT)}: {size:,} bytes")


def audit_page(folder: Path) -> Path:
    """A page with two charts of docs/AUDIT.md."""
    table = audited()
    page = folder / "audit.html"
    charts = charts_grid((weighing(table), spread(table)), "audit")
    body = f"<main style='padding-top: 20px'>{charts}</main>"
    page.write_text(document("strop audit", body), encoding="utf-8")
    return page


def growth_page(folder: Path) -> Path:
    """A page with a chart of each curve of docs/evidence/growth.csv."""
    rows = read_rows(ROOT / "docs" / "evidence" / "growth.csv")
    charts = [
        growth("Start over so many prompts", "prompts", ("start",), "cpu_s", "s", rows),
        growth("Memory over so many prompts", "prompts", ("start",), "peak_mb", "MB", rows),
        growth(
            "A step of so many rollouts", "rollouts", ("step",), "each_us", "µs a rollout", rows
        ),
        growth("Answers of so many tokens", "tokens", ("step",), "each_us", "µs a token", rows),
        growth("Steps, of a run that goes on", "steps", (), "each_us", "µs a step", rows, "linear"),
        growth("Report and resume", "report resume", (), "cpu_s", "s", rows),
    ]
    page = folder / "growth.html"
    body = f"<main style='padding-top: 20px'>{charts_grid(charts, 'growth')}</main>"
    page.write_text(document("strop growth", body), encoding="utf-8")
    return page


def growth(
    title: str, curves: str, what: tuple[str, ...], key: str, unit: str,
    rows: list[dict[str, str]], kind: str = "log",
) -> Chart:  # fmt: skip
    """A column of the table over the size, one line per curve; from 0, so that flat looks flat."""
    data = []
    for colour, curve in zip(COLOURS, curves.split(), strict=False):
        kept = [r for r in rows if r["curve"] == curve and (not what or r["what"] in what)]
        x, y = ([float(row[name]) for row in kept] for name in ("size", key))
        line = {"mode": "lines+markers", "line": {"color": colour, "width": 2}, "name": curve}
        data.append({"x": x, "y": y, **line})
    ticks = {"tickvals": data[0]["x"], "ticktext": [f"{x:,.0f}" for x in data[0]["x"]]}
    over = "steps" if "report" in curves else curves
    axis = {"type": kind, "title": {"text": over}}
    axis |= ticks if kind == "log" else {"rangemode": "tozero"}
    kind_y = "log" if key == "cpu_s" else "linear"
    upright = {
        "type": kind_y,
        "rangemode": "tozero",
        **({} if kind_y == "log" else {"tickformat": ","}),
    }
    layout = {"xaxis": axis, "yaxis": upright, "showlegend": len(data) > 1}
    return Chart(title, f"{unit}; processor time" if unit != "MB" else unit, tuple(data), layout)


def audited() -> dict[str, dict[str, float]]:
    """The numbers of each recipe by column, from the first table of docs/AUDIT.md."""
    heads, rows = tables("AUDIT.md")[0]
    return {name.replace("`", ""): numbers_of(heads, cells) for name, cells in rows.items()}


def weighing(table: dict[str, dict[str, float]]) -> Chart:
    """How a method weighs an easy and a hard prompt, one line per method."""
    names = [name for name in WEIGHING if name in table][::-1]
    data = []
    for key, colour, said in (("easy", COLOURS[2], "easy, success 0.7"),
                              ("hard", COLOURS[1], "hard, success 0.1")):  # fmt: skip
        x = [table[name][key] for name in names]
        marker = {"size": 10, "color": colour}
        data.append({"x": x, "y": names, "mode": "markers", "name": said, "marker": marker})
    ends = [(table[name]["easy"], table[name]["hard"]) for name in names]
    lines = {"x": [v for pair in ends for v in (*pair, None)],
             "y": [v for name in names for v in (name, name, None)]}  # fmt: skip
    line = {"color": GREY, "width": 1.5}
    data.insert(0, {**lines, "mode": "lines", "line": line, "showlegend": False})
    ticks = [0.1, 0.25, 0.5, 1, 2, 4]
    axis = {"type": "log", "title": {"text": "weight over that of a prompt of success 0.3"},
            "tickvals": ticks, "ticktext": list(map(str, ticks)), "showgrid": True}  # fmt: skip
    layout = {"xaxis": axis, "yaxis": {"tickfont": {"size": 11}}, "showlegend": True}
    return Chart("Which prompts count", "True gradient: 1 for all.", tuple(data), layout, 430)


def spread(table: dict[str, dict[str, float]]) -> Chart:
    """Bias and noise of every recipe; points that stand apart from the others are labelled."""
    points = {name: (row["bias"], row["noise"]) for name, row in table.items()}
    inside = {name: at for name, at in points.items() if at[0] < 0.5}
    named = {at: name for name, at in reversed(inside.items())}
    apart = {
        name
        for at, name in named.items()
        if all(
            x < at[0] or x > at[0] + 0.11 or abs(at[1] - y) > 0.03 for x, y in named if (x, y) != at
        )
    }
    under = {"grpo", "rloo"}  # amid many others, so labelled below the point
    data = {
        "x": [at[0] for at in inside.values()], "y": [at[1] for at in inside.values()],
        "mode": "markers+text", "textfont": {"size": 10},
        "textposition": ["bottom center" if n in under else "middle right" for n in inside],
        "marker": {"size": 8, "color": COLOURS[0], "opacity": 0.6},
        "text": [f" {name}" if name in apart | under else "" for name in inside],
    }  # fmt: skip
    left = ", ".join(sorted(set(points) - set(inside)))
    text = f"Of the mean step, and around it. Beyond the right edge: {left}."
    layout = {"xaxis": {"title": {"text": "bias"}, "range": [-0.01, 0.5], "dtick": 0.1},
              "yaxis": {"title": {"text": "noise"}, "rangemode": "tozero"},
              "showlegend": False}  # fmt: skip
    return Chart("Bias and noise", text, (data,), layout, 430)


if __name__ == "__main__":
    main()
