"""Every recipe on a GPU and on the CPU: two steps of each, and the largest metric difference.

    python benchmarks/gpu_agrees.py --out agrees.csv [--recipes grpo,hpt] [--part 0/1]
        [--device cuda] [--dtype float32]

Trains each recipe of the catalogue in its setting of `floor_settings.py` on both devices with the
same seed, in float32. The engine's random numbers depend only on seed and position, so both devices
have to sample the same tokens; everything else may differ by rounding, and by choices between
nearly equal values. `--device cpu --dtype float64` shows such choices without a GPU. All metrics
except times are compared: |a - b| over the larger of the two, or over 0.001 if both are smaller.
--part i/n takes every n-th recipe. It exits with 1 if a recipe fails on the device, or a step has
other tokens.
"""

import argparse
import csv
import math
import shutil
import sys
import tempfile
from pathlib import Path

from command_line import device_here
from floor import trained
from floor_settings import files, setting_of

from strop.catalogue import catalogue

STEPS, STEPS_OF = 2, {"drive": 8}  # its phases need more steps
TIMES = ("perf/", "timing_s/", "step_time")
HEAD = ("recipe", "step", "tokens", "same_tokens", "difference", "metric", "here", "there", "why")


def run(recipe: str, device: str, dtype: str) -> list[dict[str, float]]:
    """The metrics of a short run with a model on a device, of a dtype."""
    folder = Path(tempfile.mkdtemp())
    try:
        files(folder)
        setting = setting_of(recipe, folder)
        raw = setting.raw(STEPS_OF.get(recipe, STEPS), 0)
        raw["model"] = {"device": device, "dtype": dtype}
        raw["evaluation"]["every"] = 0
        return trained(raw, folder / "run")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def farthest(here: dict[str, float], there: dict[str, float]) -> tuple[float, str]:
    """The largest difference, and its metric; NaN for the first that one side alone has."""
    worst = (0.0, "")
    for name in sorted(here.keys() | there.keys()):
        if name.startswith(TIMES):
            continue
        a, b = here.get(name, math.nan), there.get(name, math.nan)
        if math.isnan(a) and math.isnan(b):
            continue
        difference = abs(a - b) / max(abs(a), abs(b), 1e-3)
        if math.isnan(difference):
            return difference, name
        if difference > worst[0]:
            worst = (difference, name)
    return worst


def rows_of(recipe: str, device: str, dtype: str) -> list[dict[str, object]]:
    """One line per step, or one with the reason if the recipe cannot be run."""
    try:
        here, there = run(recipe, "cpu", "float32"), run(recipe, device, dtype)
        return [row_of(recipe, step, *pair) for step, pair in
                enumerate(zip(here, there, strict=True))]  # fmt: skip
    except Exception as error:  # any error is reported, and the next recipe runs
        return [{"recipe": recipe, "why": f"{type(error).__name__}: {error}".splitlines()[0]}]


def row_of(recipe: str, step: int, a: dict[str, float], b: dict[str, float]) -> dict[str, object]:
    """The line of a step, by its metrics on both devices."""
    difference, metric = farthest(a, b)
    return {
        "recipe": recipe, "step": step, "tokens": a["num_tokens"],
        "same_tokens": a["num_tokens"] == b["num_tokens"], "difference": f"{difference:.1e}",
        "metric": metric, "here": a.get(metric, ""), "there": b.get(metric, ""),
    }  # fmt: skip


def main() -> None:
    """Write one line per recipe and step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", default="", help="only these, separated by commas")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--device", type=device_here, default="cuda")
    parser.add_argument("--dtype", default="float32", help="of the run on --device")
    options = parser.parse_args()
    first, every = map(int, options.part.split("/"))
    names = [entry.name for entry in catalogue.recipes()]
    if options.recipes:
        names = options.recipes.split(",")
    bad = []
    with options.out.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, HEAD, lineterminator="\n")
        table.writeheader()
        for name in names[first::every]:
            rows = rows_of(name, options.device, options.dtype)
            table.writerows(rows)
            stream.flush()
            if any("why" in row or not row["same_tokens"] for row in rows):
                bad.append(name)
    number, listed = len(names[first::every]), ", ".join(bad) or "none"
    print(f"{number} recipes; failed or with other tokens: {listed}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
