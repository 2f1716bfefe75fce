"""`strop compare --by sampled` and `--by trained`: runs are scored where the thriftiest ended."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from compared import compare, words_for
from models import Lab


def tokens(folder: Path, by: str, line: dict[str, float]) -> float:
    """Those of a step: lengths of its answers, or their mean times those that had a gradient."""
    table = pq.read_table(folder / f"rollouts/step-{line['step']:06d}.parquet")
    lengths, advantages = table["length"].to_pylist(), table["advantage"].to_pylist()
    counts = sum(
        learns and a != 0
        for learns, a in zip(table["gradient"].to_pylist(), advantages, strict=True)
    )
    return float(sum(lengths) if by == "sampled" else sum(lengths) / len(lengths) * counts)


def course(folder: Path, by: str) -> tuple[list[float], list[float]]:
    """Tokens spent until each validation, and its pass@1."""
    spent, at, scores = 0.0, [], []
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        spent += tokens(folder, by, line) if line["step"] else 0.0
        if "eval/validation/pass@1" in line:
            at.append(spent)
            scores.append(line["eval/validation/pass@1"])
    return at, scores


@pytest.mark.parametrize("by", ["sampled", "trained"])
def test_scores_are_read_at_equal_tokens(lab: Lab, tmp_path: Path, by: str) -> None:
    folder = tmp_path / by
    words = words_for(lab, "grpo", "grpo sampling.num_rollouts=2", "--seeds", "1", "--by", by)
    words[words.index("--steps") + 1] = "4"
    for option in ("--score-on", "--k"):  # scores are those of validation
        at = words.index(option)
        del words[at : at + 2]
    result = compare(words, folder).end()
    assert result.code == 0, result.err
    names = {"grpo": "grpo-0", "grpo sampling.num_rollouts=2": "grpo_sampling_num_rollouts_2-0"}
    courses = {label: course(folder / "runs" / name, by) for label, name in names.items()}
    budget = min(at[-1] for at, _ in courses.values())
    assert budget < max(at[-1] for at, _ in courses.values())
    table = {
        line["method"]: line
        for line in csv.DictReader((folder / "scores.csv").read_text().splitlines())
    }
    assert list(table) == list(names)
    for label, (at, scores) in courses.items():
        assert len(scores) == 3  # before the first step, and every two
        expected = np.interp(budget, at, scores)
        assert float(table[label]["pass@1"]) == pytest.approx(expected, abs=1e-5)
        assert float(table[label][by]) == pytest.approx(budget, rel=1e-5)
    assert not list(folder.glob("runs/*/heldout-*.json"))
    text = (folder / "table.md").read_text()
    assert f"{budget:,.0f}" in text
    assert text in result.out
    assert f"tokens {by}" in (folder / "compare.html").read_text()
