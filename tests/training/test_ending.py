"""end.json: how a run ended, for those who did not see its terminal."""

import os
import signal

import pytest
from commands import launch
from test_kill import lines, wait_for

from strop.diagnosis.run import examine
from strop.support.errors import UserError
from strop.training.record import ending

FAILS = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class FailAtTwo:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, advantage_B: Tensor, step: Tensor) -> Tensor:
        if step == 2 and not Path(__file__).with_name("mended").exists():
            raise ArithmeticError("no luck")
        return advantage_B
"""


def first_finding(folder):
    found = examine(folder)[0]
    assert found.question == "Did the run end as planned?"
    return found


def test_an_error_is_recorded_and_gone_once_the_run_has_resumed(strop, lab, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    chain = f'advantage=subtract_group_mean | "{tmp_path}/fails.py:FailAtTwo" | spread_evenly'
    folder = tmp_path / "run"
    failed = strop(
        "train", *lab.arguments(chain, "training.steps=3", "training.save_every=1"), "--out", folder
    )
    assert failed.code == 1
    end = ending.read(folder)
    assert (end.step, end.finished) == (1, False)
    assert end.why.startswith("ArithmeticError: no luck\n")
    assert "fail_at_two" in end.why
    assert "step 2" in end.why
    found = first_finding(folder)
    assert found.status == "problem"
    assert f"It stopped after step 1 of 3, {end.time}: ArithmeticError: no luck" in found.answer
    assert strop("report", folder, "--out", tmp_path / "page.html").code == 0
    assert "The run stopped after step 1: ArithmeticError" in (tmp_path / "page.html").read_text()
    (tmp_path / "mended").touch()
    assert strop("train", "--resume", folder).code == 0
    assert ending.read(folder) == ending.Ending(3, True, "", ending.read(folder).time)
    assert first_finding(folder).status == "ok"


def test_what_was_asked_to_stop_and_what_was_killed(lab, tmp_path):
    folder, output = tmp_path / "run", tmp_path / "output"
    command = ["train", *lab.arguments("training.steps=1000", "training.save_every=1"),
               "--out", folder]  # fmt: skip
    process = launch(command, output)
    wait_for(lambda: lines(folder) >= 1, process)
    assert "It is running; step" in first_finding(folder).answer
    os.kill(process.pid, signal.SIGTERM)
    process.join()
    found = first_finding(folder)
    assert (found.status, found.answer[:26]) == ("note", "It was asked to stop after")
    process = launch(["train", "--resume", folder], output)
    wait_for(lambda: lines(folder) >= found.numbers["finished steps"] + 1, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    found = first_finding(folder)
    assert (found.status, found.answer[:22]) == ("note", "It recorded no end aft")


def test_a_damaged_file_is_named(tmp_path):
    for text in ("", "[]", '{"step": 1}', '{"step": [], "finished": 1, "why": "", "time": ""}'):
        (tmp_path / "end.json").write_text(text)
        with pytest.raises(UserError, match=r"end.json cannot be read: restore it"):
            ending.read(tmp_path)
