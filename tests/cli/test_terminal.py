"""Output on a terminal of 80 columns: it starts at once, and nothing overlaps."""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from unittest import mock

import pytest
from commands import launch
from models import Lab
from rich.console import Console
from rich.markup import escape

from strop.api.progress import Progress
from strop.support.output import plain_console
from strop.tracking.base import Samples

SIZES = ("COLUMNS", "LINES", "NO_COLOR")  # which a terminal sets itself
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")


def on_a_terminal(words: list[str], environment: dict[str, str], columns: int = 80) -> list[str]:
    """The lines that a command writes to a pseudo-terminal, colours and cursor moves left out."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "strop", *words]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            new = os.read(terminal, 65536)
        except OSError:  # Linux says so of a terminal whose other end is closed
            new = b""
        if not new:
            break
        written += new
    process.wait()
    os.close(terminal)
    return lines_of(written)


def run_on_a_terminal(words: list[str], columns: int = 80) -> list[str]:
    """The same, of a copy of a process that has imported torch before."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = launch(words, Path(os.ttyname(theirs)))
    written = b""
    while process.is_alive() or select.select([terminal], [], [], 0)[0]:
        if select.select([terminal], [], [], 0.1)[0]:
            written += os.read(terminal, 65536)
    os.close(theirs)
    os.close(terminal)
    return lines_of(written)


def lines_of(written: bytes) -> list[str]:
    return re.split(r"\r\n|\r", CONTROL.sub("", written.decode()))


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in SIZES}
    return {**kept, "TERM": "xterm", **more}


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which the import of torch ends the process."""
    (tmp_path / "fake/torch").mkdir(parents=True)
    (tmp_path / "fake/torch/__init__.py").write_text("import os\nos._exit(7)\n")
    path = os.pathsep.join([str(tmp_path / "fake"), *sys.path])
    return environment(PYTHONPATH=path)


@pytest.mark.parametrize(
    "words",
    [["train"], ["train", "--resume", "run"], ["eval", "tiny"], ["sample", "tiny", "1"],
     ["export", "tiny", "out"], ["report", "run"], ["doctor", "--model", "tiny"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_something_shows_before_torch_is_imported(words, without_torch):
    shown = on_a_terminal(words, without_torch)
    assert "loading" in shown[0], shown


def test_a_run_at_80_columns(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    words = [
        "train",
        *lab.arguments("training.steps=3", "evaluation.every=2", "--out", str(tmp_path / "run")),
    ]
    shown = run_on_a_terminal(words)
    text = "\n".join(shown)
    assert "done in" in text, text
    assert max(map(len, shown)) <= 80, text
    order = ("loading", "sampling the first answers, of the validation before step 1", "step 3/3")
    places = [text.index(words) for words in order]
    assert places == sorted(places)


@pytest.mark.parametrize("columns", [80, 60])
def test_the_panel_fits_with_a_band_and_long_names(columns):
    progress = Progress()
    progress.console = Console(width=columns, record=True, file=io.StringIO())
    progress.steps = 2000
    for step in range(100):
        progress._take({
            "reward": 0.5, "entropy": 0.7, "completions/mean_length": 1000.0 + step,
            "groups/frac_mixed": 0.5, "grad_norm": 1.0, "entropy_control/low": 0.4,
            "entropy_control/high": 0.6, "eval/validation/pass@1024": step / 100,
            "perf/tokens_per_s": 123456.0, "step_time": 123.4,
        })  # fmt: skip
    progress.console.print(progress._panel(100))
    lines = progress.console.export_text().splitlines()
    assert max(map(len, lines)) <= columns
    names = ["reward", "entropy", "completions/mean_length", "groups/frac_mixed", "grad_norm"]
    assert [line.split()[0] for line in lines[:6]] == [*names, "eval/validation/pass@1024"]
    assert "0.700 (0.40-0.60)" in lines[1]
    assert all(line.rstrip()[-1] in " ▁▂▃▄▅▆▇█" for line in lines[:6]), "the curve is on the line"
    assert "step 100/2000" in " ".join(lines[6:])


def test_a_validation_without_scores_ends_on_none_of_an_earlier_one():
    progress = Progress()
    progress.console = Console(width=200, record=True, file=io.StringIO())
    low = {"eval/low/pass@1": 0.25, "eval/low/pass@1/low": 0.1, "eval/low/pass@1/high": 0.4}
    progress._take({"eval/high/pass@1": 0.5, "eval/high/num_unscored": 0.0, **low})
    progress._take({"reward": 0.5, "entropy": 0.25, "rewards/frac_unscored": 0.0})
    assert "reward 0.500  entropy 0.250" in progress._line(1)
    progress._take({"entropy": 0.25, "rewards/frac_unscored": 1.0, "eval/high/num_unscored": 8.0})
    assert "reward -  entropy 0.250" in progress._line(2)
    run = mock.MagicMock()
    run.race.description = run.race.why_over = ""
    run.algorithm.uses.return_value = []
    progress.finish(run)
    lines = progress.console.export_text().splitlines()
    assert lines[:2] == [
        "eval/high/pass@1: 0.500 -> - (the last validation has no score)",
        "eval/low/pass@1: 0.250 -> 0.250  (95% 0.100 to 0.400)",
    ]


def test_a_step_without_a_score_shows_no_reward_of_an_earlier_step():
    progress = Progress()
    progress.console = Console(width=80, record=True, file=io.StringIO())
    progress.steps = 3
    for unscored, reward, said in ((0.0, {"reward": 0.75}, "0.750"), (1.0, {}, "-"),
                                   (0.5, {"reward": 0.25}, "0.250")):  # fmt: skip
        progress._take({"entropy": 0.7, "rewards/frac_unscored": unscored, **reward})
        assert f"reward {said}  entropy 0.700" in progress._line(1)
        progress.console.print(progress._panel(1))
        assert progress.console.export_text().splitlines()[0].split()[:2] == ["reward", said]


HOSTILE = "7\x1b]52;c;ZXZpbA==\x1b\\\x1b[2J\x9b31m\x7f"
HARMLESS = r"7\x1b]52;c;ZXZpbA==\x1b\\x1b[2J\x9b31m\x7f"


def test_no_answer_of_a_model_controls_the_terminal(monkeypatch: pytest.MonkeyPatch):
    console = plain_console(file=io.StringIO(), soft_wrap=True)
    console.print(HOSTILE, markup=False)
    console.print(f"[yellow]note:[/] {escape(HOSTILE)}")
    assert console.file.getvalue() == f"{HARMLESS}\nnote: {HARMLESS}\n"
    progress = Progress(answers=1)
    progress.console = plain_console(file=io.StringIO(), width=120)
    samples = Samples(["prompt", "completion", "reward"], [[HOSTILE, HOSTILE, 1.0]])
    monkeypatch.setattr("strop.api.progress.sampled", lambda *_: samples)
    progress._answer(mock.Mock())
    shown = progress.console.file.getvalue()
    assert shown.count(HARMLESS) == 2
    assert not CONTROLS.search(shown)


def test_the_time_that_is_left_is_that_of_the_steps_until_now(monkeypatch: pytest.MonkeyPatch):
    progress = Progress()
    progress.steps, progress.first, progress.started = 40, 10, 1000.0
    for now, left in ((1040.0, "40 s"), (1090.0, "90 s"), (1100.0, "2 min"), (1300.0, "5 min")):
        monkeypatch.setattr(time, "perf_counter", lambda now=now: now)
        assert progress._left(25) == left  # 15 steps are done, 15 are left
