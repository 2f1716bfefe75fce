"""labs/trace_repair.py: the imitated data, and a short run of both arms."""

import re

import pytest
from opened import opened

lab = opened("trace_repair")


def test_solved_tasks_have_their_repair():
    sizes = lab.Sizes(lines=3, tests=2, solved=3)
    rows = {trace: lab.solved(trace, sizes) for trace in (True, False)}
    for traced, bare in zip(rows[True], rows[False], strict=True):
        assert traced["completion"] == bare["completion"]
        assert re.sub(r",\d{3},", ",", traced["prompt"]) == bare["prompt"]


def test_bounds():
    blind, reader = lab.bounds(lab.Sizes(lines=3, tests=2), 500)
    assert blind == pytest.approx(0.2, abs=0.02)
    assert blind < 0.9 < reader < 1


def test_a_short_run_and_its_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lab.Sizes.__init__, "__defaults__", tuple(
        {"solved": 64}.get(name, value) for name, value in vars(lab.Sizes()).items()
    ))  # fmt: skip
    words = "--seeds 4 --imitation 1 --steps 1 --prompts 2 --rollouts 2 --validation 2"
    drawn = tmp_path / "trace.svg"
    words = [*words.split(), "--out", str(tmp_path / "runs"), "--picture", str(drawn)]
    lab.main(words)
    said = capsys.readouterr().out
    assert re.search(r"\nseed 4, with a trace: [\d.]+, then [\d.]+\n", said)
    assert drawn.read_text().count("<path d=") == 10 + 3  # grids, two arms, a gap
    monkeypatch.setattr(lab.strop, "train", None)
    lab.main(words)  # runs that are there are read
    assert capsys.readouterr().out == said


def test_what_is_refused(tmp_path, refused):
    assert re.search(
        "error: --seeds one: give whole numbers", refused(lab.main, ["--seeds", "one"])
    )
    assert re.search(
        "there is no such folder", refused(lab.main, ["--picture", str(tmp_path / "none/a.svg")])
    )
