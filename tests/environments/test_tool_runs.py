"""Tools from the command line: calls are shown, read, made, answered and counted."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scripted_model import TEMPLATE, save_scripted

TAGGED = '<tool_call>{"name": "calculator", "arguments": {"expression": "2*3"}}</tool_call>'
LINE = 'call calculator {"expression": "2*3"}'


def train(strop, folder, model, *words):
    """One step of grpo on questions of arithmetic; the metrics and the turns of all rollouts."""
    result = strop(
        "train", "grpo", "--model", model, "data.task=tool_questions",
        "data.task_config={'kinds': ['arithmetic'], 'max_turns': 3}", "training.steps=1",
        "evaluation.every=0", "sampling.num_prompts=2", "sampling.num_rollouts=8",
        "training.rollouts_every=1", "data.train_size=4", "data.validation_size=1",
        "data.heldout_size=1", "--out", folder, "--quiet", *words,
    )  # fmt: skip
    assert result.code == 0, result.err
    (line,) = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    table = pq.read_table(next(folder.glob("rollouts/**/*.parquet"))).to_pylist()
    return line, [json.loads(row["turns"]) for row in table]


@pytest.mark.parametrize(("template", "call"), [(TEMPLATE, TAGGED), ("", LINE)])
def test_calls_are_made_and_counted(tmp_path: Path, strop, template, call):
    wrong = call.replace("2*3", "?")
    unread = call.replace('"2*3"}', '"2*3')
    answers = {call: 0.5, wrong: 0.2, unread: 0.1, "6": 0.2}
    model = save_scripted(tmp_path / "model", answers, template)
    metrics, turns = train(strop, tmp_path / "run", model)
    calls = [c for rollout in turns for turn in rollout for c in turn.get("calls", [])]
    status = [c["status"] for c in calls]
    assert {"ok", "failed"} <= set(status)
    well = {"name": "calculator", "arguments": {"expression": "2*3"}, "status": "ok", "answer": "6"}
    assert all(c == well for c in calls if c["status"] == "ok")
    for kind in set(status):
        assert metrics[f"tools/{kind}"] == pytest.approx(status.count(kind) / len(status))
    assert metrics["tools/calls_mean"] == len(calls) / 16
