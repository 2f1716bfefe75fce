"""The built wheel works without the source tree: recipes, a training step, the report page."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from strop.support.about import VERSION

ROOT = Path(__file__).parents[1]
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}  # compiled by the first of several commands, not by each
ASSETS = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
          "tokenizer_config.json")  # fmt: skip

END = "--- end of a command ---"
COMMANDS = f"""
import sys
import strop
from strop.__main__ import main

print(strop.__file__)
for words in (["recipes", "--json"], ["labs", "--json"], ["labs", "worked_examples"]):
    print("{END}")
    sys.argv = ["strop", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
"""


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """What the command prints; its error stream is in the failure when it fails."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, **COMPILED, **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = ("-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", ROOT, "--no-deps", "--no-build-isolation", "-q", "-w", folder, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("target")
    pip = ("-m", "pip", "--disable-pip-version-check")
    alone = ("--no-compile", "--no-deps", "--no-index")
    run(*pip, "install", "-q", *alone, "--target", target, wheel, cwd=target)
    return target


def test_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    ours = {
        path.relative_to(source).as_posix()
        for path in (source / "strop").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    ours |= {f"strop/labs/{path.name}" for path in (ROOT / "labs").glob("*.py")}
    assert names == ours
    for name in (*(f"assets/tiny_countdown/{asset}" for asset in ASSETS), "py.typed",
                 "report/page.css", "report/page.js"):  # fmt: skip
        assert f"strop/{name}" in names


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        told = archive.read(f"{info}/METADATA").decode()
        commands = archive.read(f"{info}/entry_points.txt").decode()
        assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert info == f"strop-{VERSION}.dist-info"  # the version stands in about.py alone
    assert f"Version: {VERSION}\n" in told
    assert "# strop\n" in told  # README, for the package's page
    assert "strop = strop.__main__:main" in commands


def test_installed_wheel_trains_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    path = {"PYTHONPATH": str(installed)}
    said = run("-c", COMMANDS, cwd=tmp_path, **path).split(END)
    assert Path(said[0].strip()) == installed / "strop" / "__init__.py"
    assert len(json.loads(said[1])) >= 10
    labs = json.loads(said[2])
    assert {lab["name"] for lab in labs} == {each.stem for each in (ROOT / "labs").glob("*.py")}
    assert said[3].lstrip().startswith("symphony")
    train = ("train", "--out", "run", "--quiet", "training.steps=1", "evaluation.every=0")
    few = ("sampling.num_prompts=2", "sampling.num_rollouts=4")
    run("-m", "strop", *train, *few, cwd=tmp_path, **path)
    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1]
    page = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    for name in ("page.css", "page.js"):
        assert (installed / "strop/report" / name).read_text(encoding="utf-8").strip() in page
