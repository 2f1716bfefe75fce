"""Values that rewards log reach the run: columns of the rollouts' files and metrics."""

import json

import pyarrow.parquet as pq
import pytest
from models import Lab
from runs import Runner

from strop.training.record.run_folder import _arrow

REWARDS = """
def logs(completions, log_extra, log_metric):
    log_extra("shown", [text.upper() + "!" for text in completions])
    log_extra("length", [len(text) for text in completions])  # a column of every run
    log_extra("parts", [{"n": len(text), "empty": {}} for text in completions])
    log_extra("listed", [[len(text), text] for text in completions])
    log_metric("parts/longest", max(len(text) for text in completions))
    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str.startswith(ground_truth)
    return {"score": float(right), "digits": sum(c.isdigit() for c in solution_str),
            "said": solution_str}

def reward_func(queries, prompts, labels):
    assert all(query.startswith(prompt) for query, prompt in zip(queries, prompts))
    sizes = [len(query) for query in queries]
    return {"rewards": [float(size % 2) for size in sizes], "extra_logs": {"size": sizes}}


def shortest(completions, states):
    return [float(len(c) == min(map(len, completions))) for c in completions]
"""


@pytest.mark.parametrize("recipe", ["grpo", "dapo"])  # dapo drops rollouts and joins batches
def test_logged_values_stand_beside_their_rollouts(tmp_path, recipe):
    lab, runner = Lab.make(tmp_path), Runner()
    rewards = tmp_path / "mine.py"
    rewards.write_text(REWARDS)
    names = ("logs", "compute_score", "reward_func", "shortest")
    raw = lab.raw(recipe)
    raw["reward"] = {"functions": [f"{rewards}:{name}" for name in names]}
    raw["training"] = {**raw["training"], "rollouts_every": 1}
    runner.whole(raw, tmp_path / "run")
    files = sorted((tmp_path / "run/rollouts").glob("*.parquet"))
    assert len(files) == 3
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert len({row["completion"] for row in rows}) > 4
    shortest: dict[tuple[int, int, int], list[tuple[int, float]]] = {}
    for row in rows:
        text = row["completion"]
        assert row["shown"] == text.upper() + "!"
        assert row["extra/length"] == len(text)
        assert json.loads(row["parts"]) == {"n": len(text), "empty": {}}
        assert json.loads(row["listed"]) == [len(text), text]
        assert row["compute_score/said"] == text
        assert row["compute_score/digits"] == sum(c.isdigit() for c in text)
        assert row["reward_func/size"] == len(row["prompt"]) + len(text)
        key = (row["step"], row["uid"], row["draw"])
        shortest.setdefault(key, []).append((len(text), row["reward/shortest"]))
    if recipe == "grpo":  # whole groups
        for group in shortest.values():
            least = min(length for length, _ in group)
            assert all(score == (length == least) for length, score in group)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    for name in ("parts/longest", "rewards/compute_score/digits", "rewards/reward_func/size"):
        assert last[name] > 0


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1, None, 3], [1, None, 3]),
        ([0.5, 2], [0.5, 2.0]),
        ([None, None], [None, None]),
        ([1, "a", None], ["1", '"a"', None]),
        ([True, 2.5], ["true", "2.5"]),
        ([2**70, 1], [str(2**70), "1"]),
        ([{}], ["{}"]),
        ([], []),
    ],
)
def test_values_of_several_kinds_become_json_text(tmp_path, values, kept):
    import pyarrow as pa

    pq.write_table(pa.table({"column": _arrow(values)}), tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet")["column"].to_pylist() == kept
