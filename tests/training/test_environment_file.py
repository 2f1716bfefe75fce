"""environment.json: versions and machine of each start, and nothing about the user or the place."""

import getpass
import json
import os
import re
import socket
from pathlib import Path

import pytest
import torch

import strop
from strop.support.errors import UserError
from strop.training.record import versions

KEYS = {
    "begun", "after_step", "strop", "python", "torch", "transformers", "platform", "device",
    "cores", "threads", "processes", "memory_gib",
}  # fmt: skip


def starts(folder):
    return json.loads((folder / "environment.json").read_text())


def test_a_start_and_each_resume_are_recorded_once(runner, lab, tmp_path):
    folder = tmp_path / "run"
    run = runner.start(lab.raw(training={"save_every": 1}), folder)
    assert [each["after_step"] for each in starts(folder)] == [0]
    runner.go(run, lambda run: setattr(run, "stop_asked", run.done == 2))
    first = starts(folder)
    assert len(first) == 1  # training adds nothing
    runner.go(runner.resume(folder))
    assert [each["after_step"] for each in starts(folder)] == [0, 2]
    assert starts(folder)[:1] == first
    runner.resume(folder).close()  # it is complete: nothing is run
    assert len(starts(folder)) == 2
    for each in starts(folder):
        assert set(each) == KEYS
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", each["begun"])
        assert (each["strop"], each["torch"]) == (strop.__version__, torch.__version__)
        assert 1 <= each["cores"] <= (os.cpu_count() or 1)
        assert each["memory_gib"] > 0


def test_nothing_tells_who_ran_it_or_where(tmp_path, monkeypatch):
    secrets = {"USER": "q7user", "LOGNAME": "q7log", "HOME": "/home/q7", "HF_TOKEN": "q7token"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    found = versions.now(torch.device("cpu"), 0, 1)
    assert set(found) == KEYS
    text = json.dumps(found)
    personal = (socket.gethostname(), getpass.getuser(), str(Path.cwd()), tmp_path.name, "q7")
    assert [word for word in personal if word in text] == []
    assert "/home" not in text


def test_a_run_that_comes_to_nothing_leaves_none(runner, lab, tmp_path):
    run = runner.start(lab.raw(), tmp_path / "run")
    run.close()
    run.record.discard()
    assert not (tmp_path / "run").exists()
    mine = tmp_path / "run/given/rows.jsonl"  # perhaps the data that it was to train on
    mine.parent.mkdir(parents=True)
    mine.touch()
    run = runner.start(lab.raw(), tmp_path / "run")
    run.close()
    run.record.discard()
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [mine]
    run.record.discard(given=True)
    assert not (tmp_path / "run").exists()


def test_a_run_from_before_has_none_and_a_damaged_one_is_named(runner, lab, tmp_path):
    assert versions.read_environment(tmp_path) == []
    folder = tmp_path / "run"
    run = runner.start(lab.raw(), folder)
    runner.go(run, lambda run: setattr(run, "stop_asked", True))
    before = (folder / "metrics.jsonl").read_bytes()
    for text in ("{", "{}", "[1]"):
        (folder / "environment.json").write_text(text)
        with pytest.raises(UserError, match=r"environment.json cannot be read: restore it"):
            runner.resume(folder)
    assert (folder / "metrics.jsonl").read_bytes() == before
