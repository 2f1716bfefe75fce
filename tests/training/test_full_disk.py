"""A full disk: noticed before a checkpoint starts, alike for all files, and nothing is lost."""

import errno
import json
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import Strop
from models import without_times

from strop.report.page import write_report
from strop.support import writing as _writing
from strop.support.errors import RunStopped, UserError
from strop.training.record import checkpoint
from strop.training.record.lock import Lock
from strop.training.record.run_folder import Record


@pytest.fixture
def strop(monkeypatch, capsys):
    return Strop(monkeypatch, capsys)


def test_a_checkpoint_without_room_is_not_begun(runner, lab, tmp_path, monkeypatch):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    runner.whole(lab.raw(), whole)
    started = []
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path, **_: started.append(path))
    monkeypatch.setattr(torch, "save", lambda *_: pytest.fail("it was begun"))
    monkeypatch.setattr(_writing, "free_bytes", lambda _: 300 * 1024)
    run = runner.start(lab.raw(training={"save_every": 1}), folder)
    what = r"the checkpoint of step 1 could not be written to .*run/checkpoints: no room, "
    with pytest.raises(RunStopped, match=what + r"300.0 KiB are free, 1.\d MiB are needed"):
        runner.go(run)
    assert not (folder / "checkpoints").exists()
    monkeypatch.undo()
    runner.go(runner.resume(folder))
    assert without_times(folder) == without_times(whole)


def test_a_checkpoint_needs_its_tensors_and_as_much_as_the_last_one(tmp_path):
    loaded = SimpleNamespace(num_bytes=lambda: 100)
    contents = [{"a": torch.zeros(3)}, (torch.zeros(2, dtype=torch.float64), "b")]
    for taken, expected in ((0, 100 + 12 + 16), (50, 100 + 12 + 16), (200, 200)):
        if taken:
            place = tmp_path / f"step-{taken:06d}"
            place.mkdir()
            (place / "file").write_bytes(b"1" * taken)
        assert checkpoint._needed(tmp_path, loaded, contents) == expected + checkpoint.ROOM


def test_what_a_checkpoint_needs_is_what_it_takes(runner, lab, tmp_path, monkeypatch):
    asked = []
    check = _writing.check_room

    def noting(folder, what, needed):
        asked.append(needed)
        check(folder, what, needed)

    monkeypatch.setattr(checkpoint, "check_room", noting)
    runner.whole(lab.raw(training={"steps": 2, "save_every": 1}), tmp_path / "run")
    before = 0  # a checkpoint may be some bytes smaller than the one before it
    for needed, place in zip(asked, checkpoint.complete(tmp_path / "run/checkpoints"), strict=True):
        taken = sum(path.stat().st_size for path in place.iterdir())
        assert taken <= needed <= max(taken, before) + checkpoint.ROOM
        before = taken


def test_the_command_says_how_to_go_on(strop, lab, tmp_path, monkeypatch):
    monkeypatch.setattr(_writing, "free_bytes", lambda _: 7)
    result = strop("train", *lab.arguments("--out", str(tmp_path / "run")))
    assert result.code == 1
    assert "no room, 7 bytes are free" in result.err
    assert f"Resume with: strop train --resume {tmp_path / 'run'}" in result.err
    assert result.err.count("\n") == 1


def full(path):
    """From now on, whatever is written to the path meets a full disk."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/full")


def test_a_line_of_metrics_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    record = Record(tmp_path)
    record.metrics(1, {"reward": 1.0})
    before = record.metrics_path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(RunStopped, match=r"step 2's line of metrics.jsonl could .* no room, "):
            record.metrics(2, {"reward": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert record.metrics_path.read_bytes() == before

    def late(_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", late)
        with pytest.raises(RunStopped, match="no room, "):
            record.metrics(2, {"reward": 1.0})
    assert record.metrics_path.read_bytes() == before
    record.metrics(2, {"reward": 2.0})
    assert json.loads(record.metrics_path.read_text().splitlines()[1])["reward"] == 2.0
    full(record.metrics_path)
    with pytest.raises(RunStopped, match="no room, "):
        record.metrics(3, {"reward": 1.0})


def test_a_lock_without_room_is_not_held(tmp_path):
    lock = Lock(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(RunStopped, match=r"the run could not be written to .* no room, "):
            lock.take()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
    lock.take()
    lock.free()
    with pytest.raises(UserError, match=r"the run could not be written to .*: No such file"):
        Lock(tmp_path / "none").take()


def test_rollouts_without_room_stop_the_run(runner, lab, tmp_path):
    folder = tmp_path / "run"

    def fill(run):
        if run.done == 1:
            full(folder / "rollouts/step-000002.unfinished")

    with pytest.raises(RunStopped, match=r"the rollouts of step 2 could .* no room, "):
        runner.go(runner.start(lab.raw(training={"save_every": 1}), folder), fill)
    assert [path.name for path in (folder / "rollouts").iterdir()] == ["step-000001.parquet"]
    runner.go(runner.resume(folder))
    assert [line["step"] for line in without_times(folder)] == [1, 2, 3]


def test_a_report_without_room_leaves_the_old_one(runner, lab, tmp_path):
    folder = tmp_path / "run"
    runner.whole(lab.raw(training={"steps": 1}), folder)
    page = tmp_path / "page.html"
    page.write_text("old")
    full(tmp_path / ".page.html.unfinished")
    with pytest.raises(RunStopped, match=r"the report page.html could .* no room, .* needed"):
        write_report([folder], page)
    assert page.read_text() == "old"
    assert not (tmp_path / ".page.html.unfinished").is_symlink()
    with pytest.raises(UserError, match=r"the report x.html could not be written to .*page.html"):
        write_report([folder], page / "x.html")


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    _writing.write_whole(pipe, "page")
    assert os.read(reader, 10) == b"page"
    os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    with pytest.raises(OSError, match="No space left"):
        _writing.write_whole(Path("/dev/full"), "page")
    assert Path("/dev/full").is_char_device()


def test_an_export_without_room_leaves_nothing(strop, lab, tmp_path, monkeypatch):
    place = tmp_path / "there/model"
    monkeypatch.setattr(_writing, "free_bytes", lambda _: 7)
    result = strop("export", lab.model, place)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "no room, 7 bytes are free" in result.err
    assert not place.parent.exists()
    monkeypatch.undo()
    result = strop("export", lab.model, lab.data / "model")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "could not be written" in result.err


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("[enforce fail at inline_container.cc:626] . unexpected pos 576 vs 470"),
        RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_all_names_of_a_full_disk_are_one(error, tmp_path):
    with (
        pytest.raises(RunStopped, match=r"it could not be written to .*: no room, .*5.0 KiB are n"),
        _writing.writing(tmp_path, "it", 5120, (OSError, RuntimeError)),
    ):
        raise error
    with pytest.raises(KeyError), _writing.writing(tmp_path, "it"):
        raise KeyError


@pytest.mark.parametrize("text", ["mine", ""])
def test_a_link_in_a_folder_from_somebody_else_overwrites_nothing(text, tmp_path):
    mine = tmp_path / "mine"
    if text:
        mine.write_text(text)
    (tmp_path / ".inspect.html.unfinished").symlink_to(mine)
    _writing.write_whole(tmp_path / "inspect.html", "page")
    assert (tmp_path / "inspect.html").read_text() == "page"
    assert not (tmp_path / "inspect.html").is_symlink()
    assert (mine.read_text() if mine.exists() else "") == text
