"""A run over rows that are read when they are drawn: the same as over rows held in memory."""

import pytest
from models import without_times

from strop.data import file_content, prompt_rows
from strop.support.errors import UserError


@pytest.fixture
def few(monkeypatch):
    """Five rows are many, and fifty bytes."""
    monkeypatch.setattr(prompt_rows, "LOOKED_AT", 4)
    monkeypatch.setattr(file_content, "HELD", 50)


def test_a_run_is_the_same_wherever_its_rows_lie(lab, runner, tmp_path, monkeypatch):
    raw = lab.raw(training={"save_every": 2})
    runner.whole(raw, tmp_path / "held")
    monkeypatch.setattr(prompt_rows, "LOOKED_AT", 4)
    monkeypatch.setattr(file_content, "HELD", 50)
    run = runner.start(raw, tmp_path / "run")
    assert any("of 10 rows 4, evenly spread, were checked" in n for n in run.world.services.notes)
    runner.go(run, lambda run: setattr(run, "stop_asked", run.done == 1))
    runner.go(runner.resume(tmp_path / "run"))
    assert without_times(tmp_path / "run") == without_times(tmp_path / "held")


def test_a_wrong_row_stops_a_run_that_goes_on_once_it_is_mended(few, lab, runner, tmp_path):
    """Rows 1, 4, 7 and 10 of 12 are looked at, the first two also by the rewards; six are drawn."""
    data, folder = tmp_path / "own.jsonl", tmp_path / "run"
    lines = lab.data.read_text().splitlines()
    wrong = [line if n % 3 == 0 or n < 5 else f"{line[:-1]}, }}" for n, line in enumerate(lines)]
    data.write_text("\n".join(wrong) + "\n")
    raw = lab.raw(data={"files": [str(data)], "validation_size": 0})
    with pytest.raises(UserError, match=r"own\.jsonl line \d+ is not valid JSON"):
        runner.go(runner.start(raw, folder))
    data.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match="the train data is not what"):
        runner.resume(folder)
    (folder / "data.json").unlink()
    runner.go(runner.resume(folder))
    assert without_times(folder)[-1]["step"] == 3
