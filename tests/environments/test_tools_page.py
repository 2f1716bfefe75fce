"""The examples of docs/TOOLS.md do what the page says, as they stand there."""

import json
import shlex
import sys
from pathlib import Path

import mcp.client.stdio  # noqa: F401  its import reads Popen, which `Strop` replaces
import pyarrow.parquet as pq
import pytest
from commands import Strop
from scripted_model import TEMPLATE, save_scripted
from test_examples import blocks, last_metrics, obey, write_files

from strop.data.tool_calls import FORMS, WRITTEN

PAGE = "docs/TOOLS.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
CALL = '<tool_call>{"name": "price", "arguments": {"name": "%s"}}</tool_call>'


@pytest.mark.parametrize("name", ["own", "mcp"])
def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    words = (CALL % "plum", CALL % "stone", "Answer: 7")
    save_scripted(tmp_path / "model", dict(zip(words, (0.8, 0.1, 0.1), strict=True)), TEMPLATE)
    path = {"PYTHONPATH": ":".join(each for each in sys.path if each)}
    command = blocks(PAGE, "run")[name].replace("MODEL", "model")
    command = command.replace("'python my", f"'{shlex.quote(sys.executable)} my")
    command = command.replace("server.py'}", f"server.py', 'mcp_env': {path!r}}}")
    obey(command, Strop(monkeypatch, capsys))
    folder = Path("runs/shop" if name == "own" else "runs/mcp")
    found = last_metrics(folder)
    assert found["tools/ok"] + found.get("tools/failed", 0) == pytest.approx(1)
    (*_, last) = sorted(folder.glob("rollouts/*.parquet"))
    rows = pq.read_table(last).to_pylist()
    calls = [c for row in rows for turn in json.loads(row["turns"]) for c in turn.get("calls", [])]
    assert {c["name"] for c in calls} == {"price"}
    assert all(c["answer"].isdigit() for c in calls if c["status"] == "ok")


def test_the_page_names_every_form() -> None:
    for form in FORMS:
        assert f"| `{form}` |" in TEXT
    assert set(WRITTEN) == set(FORMS)
