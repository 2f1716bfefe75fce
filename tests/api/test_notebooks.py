"""The notebooks of docs/notebooks/ run from a clean start, and show the outputs of such a run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipykernel_launcher
import nbformat
import pytest
from commands import forked
from copies import ADDRESS, ASKING, serve

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# Replacements in the cells: with fewer answers the runs learn less, but show as much.
FEWER = {
    "training_steps=25": "training_steps=5", "steps=15": "steps=2", "prompts=48": "prompts=8",
    "num_prompts=16": "num_prompts=2", "num_prompts=8": "num_prompts=2",
    "num_rollouts=8": "num_rollouts=4", "range(80)": "range(20)", "validation_size=16":
    "validation_size=4", "product, k=(1, 8)": "product, k=(1, 2)", "seeds=2": "seeds=1",
}  # fmt: skip


def outputs(book: Any) -> list[list[tuple[str, str]]]:
    """Of every cell, the kinds of output that it has, in which forms; what is printed may come in
    several pieces.
    """
    found = [
        [(each.output_type, " ".join(sorted(each.get("data", {})))) for each in cell.outputs]
        for cell in book.cells
        if cell.cell_type == "code"
    ]
    return [list(dict.fromkeys(cell)) for cell in found]


def with_fewer(path: Path, folder: Path) -> Path:
    """A copy of a notebook that is run sooner."""
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        for number, fewer in FEWER.items():
            cell.source = re.sub(rf"(?<!\d){re.escape(number)}(?!\d)", fewer, cell.source)
    nbformat.write(book, folder / path.name)
    return folder / path.name


def test_what_the_copies_have_less_of_is_in_the_notebooks() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in NOTEBOOKS)
    assert [number for number in FEWER if number not in text] == []


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment in which kernels are copies, as `copies.py` says."""
    folder = tmp_path_factory.mktemp("kernels")
    about = folder / "kernels/python3/kernel.json"
    about.parent.mkdir(parents=True)
    words = [sys.executable, "-S", ASKING, ipykernel_launcher.__file__, "-f", "{connection_file}"]
    told = {"argv": words, "display_name": "Python 3", "language": "python"}
    about.write_text(json.dumps(told), encoding="utf-8")
    process = forked(serve, str(folder / "asked"), ("ipykernel.kernelapp",))
    yield {"JUPYTER_PATH": str(folder), ADDRESS: str(folder / "asked")}
    process.kill()
    process.join()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(
    path: Path, tmp_path: Path, kernels: dict[str, str]
) -> None:
    # An absolute name is written where it lies.
    program = [sys.executable, str(ROOT / "tools/run_notebooks.py"), with_fewer(path, tmp_path)]
    told = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}
    told |= kernels
    ran = subprocess.run(program, env={**os.environ, **told}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    stored, now = (
        nbformat.read(where / path.name, as_version=4) for where in (path.parent, tmp_path)
    )
    assert outputs(stored) == outputs(now)
    counts = [cell.execution_count for cell in stored.cells if cell.cell_type == "code"]
    assert counts == [*range(1, len(counts) + 1)]
    assert not [kind for cell in outputs(stored) for kind, _ in cell if kind == "error"]
    text = path.read_text(encoding="utf-8")
    assert "/tmp/" not in text
    assert str(ROOT) not in text


def test_progress_is_one_output_drawn_in_its_place() -> None:
    (path,) = (path for path in NOTEBOOKS if path.stem == "train_on_your_own_task")
    (cell,) = (
        cell for cell in nbformat.read(path, as_version=4).cells if "run = strop" in cell.source
    )
    panels = [each.data.get("text/html", "") for each in cell.outputs if "data" in each]
    (panel,) = (text for text in panels if "step 25/25" in text)
    assert "reward" in panel
    assert "tokens/s" in panel
    assert any("pass@1: " in text for text in panels)
