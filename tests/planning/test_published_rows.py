"""Planned and published seconds of a step, with one set of assumptions for all of them.

    python tests/planning/test_published_rows.py      # the table of docs/PLAN.md

The rows for which the assumptions were chosen must be within a quarter. The others show the plan's
accuracy elsewhere: those of H100 are within a quarter too, those of GB200 too fast.
"""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.planning.assumed import Assumed, Only
from strop.planning.hardware import Assumptions, gpu_of
from strop.planning.lengths import log_normal
from strop.planning.model_costs import model_of
from strop.planning.parallel import Case
from strop.planning.work import Layout, Work

PLACE = Path(__file__).with_name("published_rows.toml")
TOLD = tomllib.loads(PLACE.read_text(encoding="utf-8"))
ROWS = [
    {"experiment": name, **{k: v for k, v in experiment.items() if k != "rows"}, **row}
    for name, experiment in TOLD["experiments"].items()
    for row in experiment["rows"]
]
WITHIN = 0.25


def named(row: dict[str, Any]) -> str:
    """An experiment and its GPUs: all, or those that generate and those that train."""
    generating = row.get("generating", 0)
    who = f"{generating}:{row['gpus'] - generating}" if generating else str(row["gpus"])
    return f"{row['experiment']} {who}"


def planned(row: dict[str, Any], *assume: str) -> float:
    """Seconds of a step, with the published layout."""
    model = model_of(TOLD["models"][row["model"]], row["model"], PLACE)
    groups = log_normal((row["mean"], row["p99"]), row["answers"], row["max_tokens"])
    lengths = np.concatenate(groups).astype(float)
    held = row["prompt_tokens"] + (lengths**2).mean() / (2 * lengths.mean())
    longest = row["prompt_tokens"] + row["max_tokens"]
    gpu, assumed = gpu_of(row["kind"]), Assumptions().with_(assume)
    case = Case(model, gpu, assumed, longest, held, row["passes"])
    work = Work(tuple(groups), row["prompts"], row["prompt_tokens"], 1.0, 1, row.get("updates", 1))
    generating = row.get("generating", 0)
    only = Only(row["engine"], tuple(row["trainer"]), generating, row.get("in_flight", 1))
    bound = row.get("staleness", 1) if generating else 0
    kind = Layout(1, 1, not generating, bound, row.get("spare", 0.0))
    found = Assumed(case, work, only).best(row["gpus"], kind)
    assert found is not None, "the published layout does not fit"
    return found.step_seconds


@pytest.mark.parametrize("row", [row for row in ROWS if row["fitted"]], ids=named)
def test_rows_are_within_a_quarter(row):
    assert planned(row) == pytest.approx(row["seconds"], rel=WITHIN)


@pytest.mark.parametrize("row", [row for row in ROWS if not row["fitted"]], ids=named)
def test_other_rows_are_within_a_factor_of_two(row):
    within = WITHIN if row["kind"] == "H100" else 0.5  # by the data sheet a GB200 is faster than so
    assert planned(row) == pytest.approx(row["seconds"], rel=within)


if __name__ == "__main__":
    print("| row | planned | published | ratio |\n| --- | --- | --- | --- |")
    for each in ROWS:
        seconds = planned(each)
        ratio = seconds / each["seconds"]
        star = "" if each["fitted"] else " (not fitted)"
        print(f"| {named(each)}{star} | {seconds:.1f} | {each['seconds']} | {ratio:.2f} |")
