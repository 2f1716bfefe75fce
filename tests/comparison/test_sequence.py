"""`strop sequence`: its runs, its measured numbers, how it resumes, what it refuses."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from commands import CommandResult, Strop
from models import Lab, save_data
from safetensors.torch import load_file

import strop
from strop import UserError
from strop.cli import sequence as command
from strop.comparison import sequence
from strop.comparison.sequence import Cell, Cost, Plan, Result, result
from strop.comparison.sequence_page import markdown, render

Call = Callable[..., CommandResult]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Call:
    """`strop sequence` on two tasks and a suite, with more words behind."""
    lab = Lab.make(tmp_path)
    other, _ = save_data(tmp_path / "other", num_rows=5)
    words = [
        "sequence", "--model", lab.model, "--data", f"first={lab.data}", "--data",
        f"second={other}", "--validation", f"first={lab.data}", "--validation", f"second={other}",
        "--validation", f"suite={other}", "--reward", f"{lab.rewards}:even", "training.steps=2",
        "training.lr=1e-2", "training.save_every=1", "training.token_budget=48",
        "evaluation.num_samples=2", "evaluation.max_prompts=4", "rollout.max_tokens=6",
        "sampling.num_prompts=2", "sampling.num_rollouts=4", "--quiet",
    ]  # fmt: skip
    strop = Strop(monkeypatch, capsys)
    return lambda *more: strop(*words, "--out", tmp_path / "out", *more)


def weights(folder: Path, run: str, step: int = 2) -> dict:
    return load_file(folder / run / f"checkpoints/step-{step:06d}/model.safetensors")


def same(left: dict, right: dict) -> bool:
    return all(bool((left[name] == right[name]).all()) for name in left)


def test_a_script_gives_rows_by_task(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path)
    rows = {"first": [{"prompt": "1"}, {"prompt": "2"}], "second": [{"prompt": "3"}]}
    given = {
        "model": lab.model, "reward": lambda completions, **_: [1.0 for _ in completions],
        "training_steps": 1, "sampling_num_prompts": 1, "sampling_num_rollouts": 2,
        "rollout_max_tokens": 2, "evaluation_num_samples": 1, "out": tmp_path / "out",
        "progress": False,
    }  # fmt: skip
    with pytest.raises(UserError, match="no recipe 'grpoo'"):
        strop.sequence("grpoo", rows, rows, **given)
    assert not (tmp_path / "out/given").exists()
    found = strop.sequence("grpo", rows, rows, **given)
    assert found.kept.learnt == 1.0
    assert [run.folder.name for run in found.runs] == ["1-first", "2-second"]
    assert found.page.exists()
    with pytest.raises(UserError, match="resume it with `strop sequence --resume"):
        strop.sequence("grpo", rows, rows, **given)
    with pytest.raises(UserError, match=r"data is .*: give a dict of rows by the name"):
        strop.sequence("grpo", "rows.jsonl", rows)


def test_tasks_follow_each_other_and_a_rerun_goes_on(call: Call, tmp_path: Path) -> None:
    result, out = call("--replay", "0.25"), tmp_path / "out"
    assert result.code == 0, result.err
    found = json.loads((out / "result.json").read_text())
    # the second task starts where the first has ended: its step 0 scores what that scored last
    first, second = (
        [json.loads(line) for line in (out / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("1-first", "2-second")
    )
    for name in ("first", "second", "suite"):
        key = f"eval/{name}/pass@1"
        assert second[0][key] == first[-1][key]
    assert [row[0][0] for row in found["rows"]] == [
        line["eval/first/pass@1"] for line in (first[0], first[-1], second[-1])
    ]
    assert found["prompts"] == [4, 4, 4]
    drawn = sum(line.get("data/tokens_sampled", 0) for line in first)
    assert 0 < found["costs"][0]["tokens"] == drawn < first[-1]["num_tokens"]  # without prompts
    assert found["learnt"] == pytest.approx((found["rows"][1][0][0] + found["rows"][2][1][0]) / 2)
    data = tomllib.loads((out / "2-second/config.toml").read_text())["data"]
    assert [text.partition("=")[0] for text in data["files"]] == ["second", "first"]
    assert data["weights"] == [0.75, 0.25]
    assert {line["sources/first/share"] for line in second[1:]} <= {0.0, 0.5, 1.0}
    page = (out / "sequence.html").read_text()
    assert all(text in page for text in ("first → second", "2-second/report.html", "retention"))

    # killed after the first step of the second task: what is complete is not repeated
    last, ended = weights(out, "2-second"), (out / "1-first/metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(out / "2-second/checkpoints/step-000002")
    (out / "result.json").unlink()
    result = call("--replay", "0.25")
    assert result.code == 0, result.err
    assert "task 1 of 2, first: complete" in result.out
    assert "task 2 of 2, second: resumes" in result.out
    assert (out / "1-first/metrics.jsonl").stat().st_mtime_ns == ended
    assert same(weights(out, "2-second"), last)
    again = json.loads((out / "result.json").read_text())
    assert again["rows"] == found["rows"]

    result = call("--replay", "0.25", "--metric", "maj@2")  # read from the same validations
    assert result.code == 0, result.err
    other = json.loads((out / "result.json").read_text())["rows"]
    assert other[0][0][0] == first[0]["eval/first/maj@2"]

    result = call()
    assert result.code == 2
    assert "holds another sequence" in result.err


def test_one_whose_first_task_was_refused_may_be_corrected(call: Call, tmp_path: Path) -> None:
    result = call("rollout.max_tokens=4096")
    assert result.code == 2
    assert "leaves no prompt beside max_tokens=4096" in result.err
    again = call("rollout.max_tokens=2048")
    assert "leaves no prompt beside max_tokens=2048" in again.err
    (tmp_path / "out/1-first").mkdir()
    assert "holds another sequence" in call("rollout.max_tokens=4096").err


def test_of_adapters_the_next_task_begins_with_the_sum(call: Call, tmp_path: Path) -> None:
    result = call("model.lora_rank=2")
    assert result.code == 0, result.err
    second = tomllib.loads((tmp_path / "out/2-second/config.toml").read_text())
    assert second["model"]["name"] == str(tmp_path / "out/1-first/model")
    rows = json.loads((tmp_path / "out/result.json").read_text())["rows"]
    line = json.loads((tmp_path / "out/2-second/metrics.jsonl").read_text().splitlines()[0])
    assert line["eval/first/pass@1"] == rows[1][0][0]


def test_an_interrupt_says_how_to_go_on_and_several_processes_are_refused(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(job: object, lead: object) -> None:
        raise typer.Exit(130)

    monkeypatch.setattr(command, "work", stopped)
    result = call()
    assert result.code == 130
    assert f"the sequence is saved: strop sequence --resume {tmp_path / 'out'}" in result.out
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "without torchrun" in call().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "third=x.jsonl"], "the task third has no rows to be scored on"),
        (["--data", "first=x.jsonl"], "names two sources 'first'"),
        (["--metric", "pass@7"], "--metric pass@7: the validations have k of 1, 2"),
        (["data.weights=[1, 2]"], "data.weights: a sequence sets them itself"),
        (["--resume", "out"], "leave all but --metric and --quiet out"),
        (["--validation", "more=none.jsonl"], "none.jsonl"),
        (["training.wrong=1"], "no option training.wrong"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(
    words: list[str], message: str, call: Call, tmp_path: Path
) -> None:
    found = call(*words)
    assert found.code == 2
    assert message in found.err
    assert not (tmp_path / "out").exists()


PLAN = Plan("grpo", ("a", "b"), (), ("", ""), (10, 10), "pass@1")


def test_a_table_without_a_suite_has_no_retention_and_says_the_error_of_a_cell() -> None:
    def cell(value: float) -> Cell:
        return Cell(value, value - 0.0588, value + 0.0588)

    rows = tuple((cell(x), cell(y)) for x, y in ((0.1, 0.2), (0.8, 0.3), (0.5, 0.7)))
    found = Result(PLAN, rows, (Cost(1000, 2, 0.5), Cost(2000, 4, 0.6)))
    text = markdown(found)
    assert "| b | 0.500 (0.441 to 0.559) | 0.700 (0.641 to 0.759) |" in text
    assert "| forgetting | 0.300 |" in text
    assert "| standard error | 0.030 |" in text
    assert "| b | 2,000 | 4 | 0.60 |" in text
    assert "retention" not in text
    (start, *_) = json.loads(re.findall(r"<script type=.application/json.[^>]*>(.*?)</script>",
                                        render(found, Path("out")))[0])["data"]  # fmt: skip
    assert start["error_y"]["array"] == start["error_y"]["arrayminus"] == [0.0588] * 3
    assert "Accumulation against retention" not in render(found, Path("out"))


def test_a_folder_that_is_none_and_a_metric_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(sequence.UserError, match="is not a sequence"):
        sequence.read_plan(tmp_path)
    (tmp_path / "sequence.json").write_text("[]")
    with pytest.raises(sequence.UserError, match="not a plan"):
        sequence.read_plan(tmp_path)
    for run in ("1-a", "2-b"):
        (tmp_path / run).mkdir()
        line = {"step": 0, "eval/a/pass@1": 0.5, "eval/a/pass@1/low": 0.4}
        (tmp_path / run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(sequence.UserError, match=r"no eval/b/pass@1 at step 0: .* nothing"):
        result(PLAN, tmp_path)
