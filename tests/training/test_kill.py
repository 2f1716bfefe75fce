"""Real processes that are killed or interrupted, and the resumed runs."""

import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import forked, from_the_same_server, launch
from models import without_times

from strop.cli.main import main
from strop.training import loop

STEPS = 5


@pytest.fixture(scope="module")
def unbroken(lab, tmp_path_factory):
    """Metrics of the run that nothing broke."""
    folder = tmp_path_factory.mktemp("unbroken")
    process = launch(words(lab, folder / "run"), folder / "output")
    process.join()
    assert process.exitcode == 0, (folder / "output").read_text()
    return without_times(folder / "run")


def words(lab, folder):
    return ["train", "entrocraft", *lab.arguments(f"training.steps={STEPS}"), "--out", folder]


def lines(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def wait_for(condition, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and process.is_alive():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


def test_a_killed_run_goes_on_exactly(lab, unbroken, tmp_path):
    """Killed twice at random moments; with a checkpoint a step many fall into writing one."""
    folder, output, rng = tmp_path / "run", tmp_path / "output", random.Random(0)
    command = words(lab, folder)
    for target in (2, 4):
        process = launch(command, output)
        wait_for(lambda least=target: lines(folder) >= least, process)
        time.sleep(rng.uniform(0, 0.06))
        assert process.is_alive()
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        command = ["train", "--resume", folder]
    process = launch(command, output)
    process.join()
    assert process.exitcode == 0, output.read_text()
    assert without_times(folder) == unbroken
    assert (folder / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_step_saves_and_says_how_to_go_on(number, lab, unbroken, tmp_path):
    folder, output = tmp_path / "run", tmp_path / "output"
    process = launch([*words(lab, folder), "training.save_every=0"], output)
    wait_for(lambda: lines(folder) >= 2, process)
    os.killpg(process.pid, number)  # a terminal interrupts the whole group
    if number != signal.SIGINT:
        os.kill(process.pid, number)  # as `timeout` does: at once, and meant once
    process.join()
    said = output.read_text()
    assert process.exitcode == 130, said
    done = len(without_times(folder))
    assert f"stopped after step {done}. Resume with: strop train --resume {folder}" in said
    assert "Traceback" not in said
    assert "failed" not in said  # the grader's process does not hear the interrupt
    assert [p.name for p in (folder / "checkpoints").iterdir()] == [f"step-{done:06d}"]
    assert (folder / "report.html").stat().st_size > 100_000
    process = launch(["train", "--resume", folder], output)
    process.join()
    assert process.exitcode == 0, output.read_text()
    assert without_times(folder) == unbroken


def test_a_run_that_was_killed_before_its_report_gets_one(lab, strop, tmp_path):
    folder = tmp_path / "run"
    assert strop(*words(lab, folder), "training.steps=1").code == 0
    before = without_times(folder)
    (folder / "report.html").unlink()
    assert strop("train", "--resume", folder).code == 0
    assert (folder / "report.html").stat().st_size > 100_000
    assert without_times(folder) == before


def test_a_second_ctrl_c_stops_at_once(lab, tmp_path):
    """The reward takes 30 seconds a call; the run does not wait for it."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import time\n\ndef slow(completions, **columns):\n"
        "    time.sleep(30 if any(completions) else 0)\n    return [0.0] * len(completions)\n"
    )
    folder, output = tmp_path / "run", tmp_path / "output"
    command = [*words(lab, folder), "--reward", f"{slow}:slow", "reward.timeout_seconds=60"]
    process = launch(command, output)
    wait_for(lambda: (folder / "config.toml").exists(), process)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    wait_for(lambda: "finishing this step" in output.read_text(), process)
    os.kill(process.pid, signal.SIGINT)
    process.join(timeout=10)
    assert process.exitcode == 130, output.read_text()
    assert "Traceback" not in output.read_text()
    broken = f"what the run saved stays. Resume with: strop train --resume {folder}"
    assert broken in output.read_text()


def test_a_preemption_may_come_while_a_line_waits_for_a_terminal_that_takes_none():
    reads, writes = os.pipe()
    run = SimpleNamespace(stop_asked=False)
    found = bytearray()

    def preempt():
        time.sleep(0.5)  # the line is being written by then
        os.kill(os.getpid(), signal.SIGTERM)
        while not run.stop_asked:
            time.sleep(0.01)
        while piece := os.read(reads, 1 << 16):
            found.extend(piece)

    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b"." * 4096)
    os.set_blocking(writes, True)
    thread = threading.Thread(target=preempt)
    with open(writes, "w") as terminal:
        watcher = SimpleNamespace(note=lambda text: print(text, file=terminal, flush=True))
        with loop.attended(run, watcher):
            thread.start()
            print("step 1", file=terminal, flush=True)
            wait_for(lambda: b"finishing this step" in found, thread)
    thread.join()
    os.close(reads)
    assert b"step 1" in found


def test_a_preemption_before_the_first_step_leaves_no_folder(lab, tmp_path):
    """The reward file holds the run up while it is read."""
    slow, folder, output = tmp_path / "slow.py", tmp_path / "run", tmp_path / "output"
    started = tmp_path / "begun"
    slow.write_text(
        f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(60)\n"
    )
    process = launch([*words(lab, folder), "--reward", f"{slow}:slow"], output)
    wait_for(started.exists, process)
    os.kill(process.pid, signal.SIGTERM)
    process.join(timeout=10)
    assert process.exitcode == 130, output.read_text()
    assert "Traceback" not in output.read_text()
    assert not folder.exists()


LOUD = """
def loud(completions, **columns):
    print("x" * 5000, flush=True)
    return [float(len(text)) for text in completions]
"""


@pytest.fixture
def loud(lab, tmp_path):
    """The words of a run that prints more than a pipe holds, and its folder."""
    (tmp_path / "loud.py").write_text(LOUD)
    given = ["train", *lab.arguments("--out", str(tmp_path / "run"))]
    given[given.index("--reward") + 1] = f"{tmp_path}/loud.py:loud"
    return given, tmp_path / "run"


def check_whole(folder):
    steps = without_times(folder)
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["rewards/frac_unscored"] == 0 for line in steps)
    assert (folder / "report.html").exists()


def test_a_full_disk_behind_the_output_ends_the_display_alone(loud):
    given, folder = loud
    process = launch(given, Path("/dev/full"))
    process.join(120)
    assert process.exitcode == 0
    check_whole(folder)


def test_a_reader_that_leaves_ends_the_display_alone(loud, tmp_path):
    given, folder = loud
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = launch(given, pipe)
    with pipe.open() as reader:
        assert reader.readline()
    process.join(120)
    assert process.exitcode == 0
    check_whole(folder)


def without_output(words):
    """The command as Python begins it behind `>&- 2>&-`: other files get the free numbers."""
    for number in (1, 2):
        os.close(number)
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None
    from_the_same_server()
    sys.argv = ["strop", *words]
    main()


def test_output_that_is_closed_ends_the_display_alone(loud):
    given, folder = loud
    process = forked(without_output, given)
    process.join(120)
    assert process.exitcode == 0
    check_whole(folder)
