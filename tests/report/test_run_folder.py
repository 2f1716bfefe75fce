"""Reading a run's folder, whole, partial and damaged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from strop.report.run_folder import read_run
from strop.support.errors import UserError

MakeRun = Callable[..., Path]


def test_whole_run(make_run: MakeRun) -> None:
    run = read_run(make_run("a", num_steps=40))
    assert run.name == "a"
    assert run.notes == ()
    assert run.num_steps == 40
    assert run.series("num_tokens")[1][-1] == 160_000
    assert run.series("eval/countdown/pass@1")[0].tolist() == [10, 20, 30, 40]
    assert "step" not in run.numbers
    assert [recorded.step for recorded in run.rollouts] == list(range(29, 41))
    assert {len(recorded.rewards) for recorded in run.rollouts} == {4}


def test_series_takes_the_later_value_and_finite_numbers_only(tmp_path: Path) -> None:
    lines = [
        {"step": 2, "a": 1.0, "b": True},
        {"step": 1, "a": 5, "b": "text"},
        {"step": 2, "a": 3.0},
        {"step": 3, "a": float("nan")},
        {"step": 4, "a": None},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    run = read_run(tmp_path)
    assert [column.tolist() for column in run.series("a")] == [[1, 2], [5.0, 3.0]]
    assert [len(column) for column in (*run.series("b"), *run.series("never"))] == [0] * 4
    assert tuple(run.numbers) == ("a",)
    assert run.notes == ("There is no config.toml.", "There are no rollouts to show.")


def test_cut_last_line_is_left_out_with_a_note(make_run: MakeRun) -> None:
    folder = make_run(num_steps=3)
    path = folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + '{"step": 4, "é'.encode()[:-1])
    run = read_run(folder)
    assert run.series("reward")[0].tolist() == [1, 2, 3]
    assert any("cut off" in note for note in run.notes)


def test_unreadable_rollouts_are_left_out_with_a_note(make_run: MakeRun) -> None:
    folder = make_run(num_steps=12)
    (folder / "rollouts" / "step_12.parquet").write_bytes(b"PAR1 half")
    run = read_run(folder)
    assert max(recorded.step for recorded in run.rollouts) == 11
    assert any("step_12.parquet" in note for note in run.notes)


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run.*metrics\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="not a run"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": 1}\n{"step": \n{"step": 3}\n', "line 2 is not a line of metrics"),
        ('{"step": 1}\n{"reward": 1}\n', "line 2 is not a line of metrics"),
        ('{"step": 1.5}\n', "line 1 is not a line of metrics"),
        ("[1]\n", "line 1 is not a line of metrics"),
    ],
)
def test_damaged_lines_are_refused_by_number(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(UserError, match=message):
        read_run(tmp_path)


def test_the_validation_before_training_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1}\n{"step": 1, "a": 2}\n')
    run = read_run(tmp_path)
    assert run.num_steps == 1
    assert run.series("a")[0].tolist() == [0, 1]
