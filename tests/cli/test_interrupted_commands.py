"""Ctrl-C in any command: one line says what was stopped, what is saved and how to continue."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import launch, lives
from every import every

from strop.api import inference
from strop.cli import main
from strop.training import loop
from strop.training.cluster import connect


def interrupt(*_: Any, **__: Any) -> None:
    """Ctrl-C, and once more where the first lets a step be finished."""
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


@every("name", sorted(main._command().commands))
def test_every_command_says_that_it_was_stopped(name, strop, monkeypatch):
    command = main._command().commands[name]
    monkeypatch.setattr(command, "invoke", interrupt)
    result = strop(name, *("x" for each in command.params if each.required))
    assert (result.code, result.err) == (
        130,
        f"interrupted: strop {name} was stopped; it has saved nothing: the same command starts "
        "again\n",
    )


@every("name", sorted(main._command().commands))
def test_every_command_says_that_it_was_told_to_end(name, strop, monkeypatch):
    """SIGTERM, as `timeout` sends it: once more in a moment."""

    def end(*_: Any, **__: Any) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)

    command = main._command().commands[name]
    monkeypatch.setattr(command, "invoke", end)
    result = strop(name, *("x" for each in command.params if each.required))
    assert (result.code, result.out) == (130, "")
    assert result.err.startswith(f"interrupted: strop {name} was stopped; it has saved nothing")


def test_an_evaluation_that_is_told_to_end_leaves_no_process(tmp_path: Path):
    """Its reward works in a process of its own, and waits there."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "3,5:8=", "answer": "3+5"}\n')
    (tmp_path / "own.py").write_text(
        "import os, pathlib, time\n"
        "def slow(completions, **_):\n"
        "    pathlib.Path('there').write_text(str(os.getpid()))\n"
        "    time.sleep(60)\n"
    )
    words = ("eval", "tiny", "--data", "rows.jsonl", "--reward", "own.py:slow", "--trust-files",
             "--max-tokens", "4", "--set", "reward.timeout_seconds=100")  # fmt: skip
    process = launch(words, tmp_path / "out", error=tmp_path / "error", folder=tmp_path)
    end = time.monotonic() + 120
    while not (number := read(tmp_path / "there")):
        assert process.is_alive(), read(tmp_path / "error")
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    assert (process.exitcode, read(tmp_path / "out")) == (130, "")
    assert read(tmp_path / "error") == (
        "interrupted: strop eval was stopped; it has saved nothing: the same command starts again\n"
    )
    end = time.monotonic() + 10
    while lives(int(number)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not lives(int(number))


def read(path: Path) -> str:
    """What a file holds, nothing where it is not there."""
    return path.read_text() if path.exists() else ""


def test_a_table_of_an_audit_is_written_whole_or_not(strop, monkeypatch, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("of before\n")
    monkeypatch.setattr(csv.DictWriter, "writerows", interrupt)
    result = strop("audit", "grpo", "--depth", "2", "--csv", table)
    assert (result.code, table.read_text()) == (130, "of before\n")
    assert list(tmp_path.iterdir()) == [table]


def test_what_is_stopped_at_work_says_it_too(strop, monkeypatch):
    monkeypatch.setattr(inference, "scored", interrupt)
    result = strop("eval", "tiny")
    assert (result.code, result.out) == (130, "")
    assert result.err.startswith("interrupted: strop eval was stopped; ")


def test_a_page_that_is_served_ends_with_a_word(strop, lab, runner, monkeypatch, tmp_path):
    runner.whole(
        lab.raw(training={"steps": 1, "rollouts_every": 1, "inspect": 1}), tmp_path / "run"
    )
    monkeypatch.setattr("socketserver.BaseServer.serve_forever", interrupt)
    for name, more in (("watch", ", the runs continue"), ("inspect", "")):
        result = strop(name, tmp_path / "run")
        assert (result.code, result.err) == (
            130, f"interrupted: strop {name} was stopped; the page is no longer served{more}\n"
        )  # fmt: skip


@pytest.mark.parametrize("where", ["start", "steps"])
def test_a_run_that_is_stopped_at_once_says_what_there_is_of_it(
    where, strop, lab, monkeypatch, tmp_path
):
    folder = tmp_path / "run"
    monkeypatch.setattr(loop, where, interrupt)
    result = strop("train", *lab.arguments("--out", str(folder)))
    there = f"what the run saved stays. Resume with: strop train --resume {folder}\n"
    none = "no run was started: the same command starts one\n"
    assert (result.code, result.err) == (
        130, f"interrupted: strop train was stopped; {none if where == 'start' else there}"
    )  # fmt: skip
    assert folder.exists() == (where == "steps")
    if where == "steps":
        result = strop("train", "--resume", folder)  # before it has gone on
        assert (result.code, result.err) == (130, f"interrupted: strop train was stopped; {there}")


def test_a_run_that_is_told_to_end_while_it_connects_to_ray_says_so(
    strop, lab, monkeypatch, tmp_path
):
    """Ray installs a handler that ends the process, and another one that Python does not see."""

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(connect, "library", lambda: ray)
    for trainers in ("0", "1"):
        result = strop(
            "train", *lab.arguments("--ray", "local", f"ray.num_trainers={trainers}", "--out",
                                    str(tmp_path / "run"))
        )  # fmt: skip
        assert (result.code, result.err) == (
            130,
            "interrupted: strop train was stopped; no run was started: the same command starts "
            "one\n",
        )
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "run").exists()


def test_other_handlers_may_be_installed_while_one_is_held():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    own = signal.signal
    with connect.holding(signal.SIGTERM):
        assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is before[signal.SIGTERM]
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
        own(signal.SIGTERM, signal.SIG_IGN)  # as what does not come by Python
    assert signal.signal is own
    assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
    assert signal.signal(signal.SIGUSR1, before[signal.SIGUSR1]) is signal.SIG_IGN


def test_a_command_that_is_stopped_before_it_is_found_says_so(strop, monkeypatch):
    monkeypatch.setattr(main, "_command", interrupt)
    result = strop("recipes")
    assert (result.code, result.err) == (130, "interrupted: strop was stopped before it started\n")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_command_that_is_stopped_while_it_is_loaded_says_so(number: str, tmp_path: Path):
    (tmp_path / "typer.py").write_text(f"import signal\nsignal.raise_signal(signal.{number})\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup a child would ignore it
    try:
        said = subprocess.run(
            [sys.executable, "-m", "strop", "recipes"], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (said.returncode, said.stdout) == (130, "")
    assert said.stderr == "interrupted: strop was stopped before it started\n"
