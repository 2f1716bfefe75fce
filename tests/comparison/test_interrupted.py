"""A comparison that is stopped or killed, or has a method that fails, and how it resumes."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import pytest
from compared import Begun, begin, compare, words_for
from models import Lab

from strop.comparison.plan import Entry
from strop.comparison.runs import Children, Job, Stopped, _begin, last_step, work
from strop.support.errors import RunStopped

STEPS = 12


def until_step(folder: Path, started: Begun, step: int = 2) -> None:
    """Wait until a run has done some steps."""
    last = time.monotonic() + 120
    while last_step(folder) < step:
        assert started.process.is_alive(), started.end()
        assert time.monotonic() < last
        time.sleep(0.05)


def contents(folder: Path) -> dict[str, bytes]:
    """What a run has that a second training or scoring would write anew."""
    names = ("metrics.jsonl", f"heldout-{STEPS}.json", "report.html")
    weights = folder / "checkpoints" / f"step-{STEPS:06d}" / "trainer.pt"
    return {path.name: path.read_bytes() for path in (*(folder / n for n in names), weights)}


def words(lab: Lab, *methods: str) -> list[str]:
    return words_for(lab, *methods, "--seeds", "1", "--steps", str(STEPS), "--k", "1")


def test_a_killed_comparison_goes_on_and_repeats_nothing(lab: Lab, tmp_path: Path) -> None:
    folder, given = tmp_path / "killed", words(lab, "grpo", "rloo")
    first, second = folder / "runs/grpo-0", folder / "runs/rloo-0"
    started = compare(given, folder)
    until_step(second, started)
    started.process.kill()
    started.end()
    done = contents(first)
    assert not (folder / "table.md").exists()
    assert not (folder / "runs/rloo-0/.complete").exists()
    again = compare(words(lab, "grpo", "rloo", "gspo"), folder).end()  # and a method is added
    assert again.code == 0, again.err
    assert contents(first) == done
    assert last_step(folder / "runs/gspo-0") == STEPS
    assert "grpo seed 0: training" not in again.out
    assert last_step(second) == STEPS
    lines = (second / "metrics.jsonl").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [f'{{"step": {s}' for s in range(STEPS + 1)]
    assert f"Held-out scores after step {STEPS}" in (folder / "table.md").read_text()


def test_an_interrupt_saves_the_runs_and_says_how_to_go_on(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    started = compare(words(lab, "grpo"), folder)
    until_step(folder / "runs/grpo-0", started)
    os.kill(started.process.pid, signal.SIGINT)
    result = started.end()
    assert result.code == 130, result.err
    assert "interrupted: strop compare was stopped; 0 of 1 runs are done, " in result.err
    assert f"Resume with: strop compare --resume {folder}" in result.err
    assert "grpo seed 0: stopped" in result.out
    assert "failed" not in result.out + result.err
    saved = last_step(folder / "runs/grpo-0")
    assert 2 <= saved < STEPS
    assert (folder / f"runs/grpo-0/checkpoints/step-{saved:06d}/trainer.pt").is_file()
    assert not (folder / "table.md").exists()
    other = begin(["compare", "--resume", folder, "--seeds", "9"], tmp_path).end()
    assert other.code == 2
    assert "--resume takes the folder's own plan: leave all but --jobs out" in other.err
    again = begin(["compare", "--resume", folder, "--jobs", "1"], tmp_path).end()
    assert again.code == 0, again.err
    assert last_step(folder / "runs/grpo-0") == STEPS
    assert (folder / "compare.html").exists()


def test_a_method_that_fails_is_named_and_the_others_are_shown(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "failing"
    given = words_for(lab, "grpo", 'rloo reward.functions=["nowhere.py:f"]', "--seeds", "1")
    result = compare(given, folder).end()
    assert result.code == 1
    assert 'failed: rloo reward.functions=["nowhere.py:f"] seed 0: ' in result.err
    assert "nowhere.py" in result.err
    last = " ".join(result.err.split())
    assert "1 of 2 runs failed; the first: rloo" in last
    assert f"Mend the cause and resume with: strop compare --resume {folder}" in last
    assert "grpo seed 0: done" in result.out
    assert "| pass@1 |" in (folder / "table.md").read_text()
    assert "failed: rloo" in (folder / "compare.html").read_text()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("note: one thing\nnote: another\nerror: the last line\n", "the last line"),
        ("stopped: alone\n", "alone"),
        ("stopped: the rate is 1. Resume with: strop train --resume runs/a-0\n", "the rate is 1."),
        ("", "exit code 3"),
    ],
)
def test_the_last_line_says_why_a_run_has_failed(
    told: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_failing(arguments: object, out: Path, error: Path) -> mock.Mock:
        error.write_text(told)
        read, write = os.pipe()
        os.close(write)
        return mock.Mock(exitcode=3, sentinel=read)  # a process that has ended

    monkeypatch.setattr("strop.comparison.runs._begin", begin_failing)
    with pytest.raises(RunStopped, match=f"^{message}$"):
        Children().run(["train"])


def test_a_start_takes_no_exit_code_from_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    read = forkserver.read_signed

    def slow(descriptor: int) -> int:
        time.sleep(0.3)  # so that a start falls between the end of a process and its code
        return read(descriptor)

    monkeypatch.setattr(forkserver, "read_signed", slow)
    children = Children()
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(children.run, [["--version"]] * 6))
    assert len(set(said)) == 1
    assert said[0]


def test_runs_stop_when_their_progress_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the output is piped to a program that has ended: rich then raises SystemExit."""
    stopped, gone_on = list[str](), list[str]()

    def train(plan: object, job: Job, children: Children) -> None:
        last = time.monotonic() + 2
        while not children.stopping and time.monotonic() < last:
            time.sleep(0.01)
        (stopped if children.stopping else gone_on).append(job.name)

    def closed() -> None:
        raise SystemExit(1)

    monkeypatch.setattr("strop.comparison.runs.train_and_score", train)
    entry, noted = Entry("grpo", ""), list[int]()
    jobs = [Job(entry, seed, tmp_path) for seed in range(3)]
    with pytest.raises(SystemExit):
        work(mock.Mock(), jobs, 1, closed, lambda: noted.append(1))
    assert (stopped, gone_on, noted) == (["grpo seed 0"], [], [])


@pytest.fixture
def own_server() -> Iterator[None]:
    """Comparisons begin a fork server of their own, not copies of the one that other tests have."""
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


@pytest.mark.usefixtures("own_server")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_does_not_end_the_server_that_knows_how_runs_end(
    number: int, tmp_path: Path
) -> None:
    """As `timeout`, a batch system or a closed terminal sends it."""
    child = _begin(["--version"], tmp_path / "out", tmp_path / "error")
    os.kill(forkserver._forkserver._forkserver_pid, number)
    child.join()
    assert child.exitcode == 0


@pytest.mark.usefixtures("own_server")
def test_a_run_that_is_stopped_before_it_has_begun_has_not_failed() -> None:
    children = Children()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(children.run, ["recipes"])
        while not children.running:
            time.sleep(0.001)
        children.stop()
        with pytest.raises(Stopped):
            run.result()


def test_no_process_begins_after_a_stop() -> None:
    children = Children()
    children.stop()
    with pytest.raises(RunStopped):
        children.run(["recipes"])
