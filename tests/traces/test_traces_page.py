"""The examples of docs/TRACES.md do what the page says, as they stand there."""

import contextlib
import io
import runpy
from pathlib import Path

import pytest
from commands import Strop
from test_examples import blocks, last_metrics, obey, write_files

from strop.traces.reading import FORMATS

PAGE = "docs/TRACES.md"


def test_what_a_script_records_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path("record.py", run_name="__main__")
    assert printed.getvalue().endswith(blocks(PAGE, "output")["record.py"])
    found = last_metrics(Path("runs/grpo-1"))
    assert found["data/rollouts_kept"] == 32
    assert found["grad_norm"] > 0
    # the recorder's numbers are those of the policy that was recorded
    first = names["run"].metrics["sampling/sampling_logp_difference/mean"].to_numpy()[0]
    assert first < 1e-5
    assert Path("runs/grpo-1/given/traces.jsonl").exists()


def test_a_loop_drives_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path("drive.py", run_name="__main__")
    assert printed.getvalue() == blocks(PAGE, "output")["drive.py"]
    assert last_metrics(Path("runs/grpo-1"))["step"] == 2


def test_files_of_several_formats_are_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    obey(blocks(PAGE, "run")["files"], Strop(monkeypatch, capsys))
    found = last_metrics(Path("runs/traces"))
    assert found["rewards/frac_unscored"] == pytest.approx(0.2)
    assert found["exit/unreachable"] == 0.2
    assert found["turns/clean"] == 1
    assert 0 < found["turns/scored_here"] < 1


def test_every_format_has_its_row() -> None:
    text = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    table = text.partition("| format | fields | from |")[2].partition("\n\n")[0]
    for word in ("TRL", "TrainingTrace", "Trace", "result.json", "AgentContext", "RolloutDetail",
                 "ATIF", "ModelRequestData", "Event"):  # fmt: skip
        assert word in table, word
    assert len(FORMATS) == 9
