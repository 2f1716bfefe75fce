"""Tools for who works on strop: what a comparison of runs sees, which mutants there are."""

import argparse
import math
import runpy
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import golden_runs
import mutants
import mutate
import mutate_files

TOOLS = Path(__file__).parents[1] / "tools"


def test_numbers_that_are_not_finite_are_no_finite_ones() -> None:
    largest = torch.finfo(torch.float32).max
    whole = torch.tensor([0.0, largest, math.nan, math.inf])
    assert golden_runs.differing({"a": whole}, {"a": whole.clone()}) == []
    for at, value in ((0, math.nan), (1, math.inf), (2, 0.0), (3, -math.inf)):
        other = whole.clone()
        other[at] = value
        assert golden_runs.differing({"a": whole}, {"a": other}) == ["/a"]


def test_checkpoints_of_one_side_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for run, steps in ((one, (2, 4)), (other, (4, 6))):
        for step in steps:
            folder = run / f"checkpoints/{step}"
            folder.mkdir(parents=True)
            (folder / "trainer.pt").write_bytes(b"")
    lines: list[str] = []
    common = golden_runs.checkpointed(one, other, "trainer.pt", lines)
    assert common == [Path("checkpoints/4/trainer.pt")]
    assert lines == [
        f"{one / 'checkpoints/6/trainer.pt'} is missing",
        f"{other / 'checkpoints/2/trainer.pt'} is missing",
    ]


def test_every_operator_sign_and_comparison_is_changed_once() -> None:
    source = "def f(a, b, c, text):\n    a += b\n    text += 'x'\n    return ~a * -b < c <= a\n"
    found = {mutant.change: mutant.source for mutant in mutants.mutants(source)}
    assert list(found) == ["operator", "comparison", "comparison 2", "sign"]
    assert "a -= b" in found["operator"]
    assert "< c > a" in found["comparison 2"]
    assert ">= c <= a" in found["comparison"]
    signs = [m.source for m in mutants.mutants(source) if m.change == "sign"]
    assert [line.splitlines()[-1] for line in signs] == [
        "    return +(a * 1) * -b < c <= a", "    return ~a * +b < c <= a",
    ]  # fmt: skip


def test_a_flaky_test_leaves_no_mutant_of_its_module_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mutant that passed all tests is stored all the same, and a module after it goes on."""
    machinery: Any = mutate.Machinery.__new__(mutate.Machinery)
    machinery.options = argparse.Namespace(limit=60.0)
    machinery.results, machinery.unsteady = tmp_path / "mutants.jsonl", 0
    known = mutate.Known(0.1, True, frozenset({"m:f", "n:f"}))
    machinery.known = {"tests/test_m.py::test": known}
    items = [SimpleNamespace(nodeid="tests/test_m.py::test")]
    first, second = list(mutants.mutants("def f(a, b):\n    return a + b < 1\n"))

    def failed(stage: Any, module: Any, source: str | None, limit: float) -> bool:
        flaky = module.__name__ == "m"
        return flaky if source is None else source == first.source

    monkeypatch.setattr(mutate, "failed", failed)
    for name in ("m", "n"):
        machinery.judge(SimpleNamespace(__name__=name), [first, second], items)
    assert machinery.unsteady == 1
    assert "m: 1 of its mutants cannot be judged" in capsys.readouterr().out
    rows = [(row["mutant"], row["noticed"]) for row in mutants.lines_of(machinery.results)]
    keys = {name: [mutants.key_of(name, each) for each in (first, second)] for name in "mn"}
    assert rows == [(keys["m"][1], False), (keys["n"][1], False), (keys["n"][0], True)]


@pytest.mark.parametrize(
    ("words", "message"), [(["audits"], "there is no picture audits"), (["compare"], "FOLDER")]
)
def test_a_picture_that_is_not_there_is_refused(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("PIL")
    import draw_pictures

    monkeypatch.setattr(sys, "argv", ["draw_pictures.py", *words])
    with pytest.raises(SystemExit):
        draw_pictures.main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["count_files", "write_atlas", "write_audit", "write_catalogue", "write_claims"]
)
@pytest.mark.parametrize("word", ["--help", "--chek"])
def test_a_question_for_help_and_a_wrong_word_write_nothing(
    name: str, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("it goes to work")

    for what in ("write_text", "exists"):
        monkeypatch.setattr(Path, what, refused)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    monkeypatch.setattr(sys, "argv", [name, word])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(TOOLS / f"{name}.py"), run_name="__main__")
    assert ended.value.code == (0 if word == "--help" else 2)
    assert f"usage: {name}" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--only subtract_group_mena", "no part is named subtract_group_mena"),
        ("--folder losses", "no folder of parts 'losses'"),
        ("--module strop.batch.segment", "no module outside parts is named strop.batch.segment"),
        ("--sample 3 --shard 5/4", "5/4 is no share"),
    ],
)
def test_a_name_without_mutants_is_refused(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mutate.py", *words.split()])
    monkeypatch.setattr(mutate.pytest, "main", lambda *_, **__: 0)
    with pytest.raises(SystemExit) as ended:
        mutate.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_mutants_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mutate_files.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        mutate_files.main()
    assert "has no mutants.jsonl" in capsys.readouterr().err
