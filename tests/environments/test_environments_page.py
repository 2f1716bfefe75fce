"""The example of docs/ENVIRONMENTS.md does what the page says, as it stands there."""

import inspect
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import Strop
from test_examples import blocks, last_metrics, obey, write_files

from strop.environments.base import FAMILIES, built_in
from strop.environments.tasks import load_task
from strop.support.loading import attribute, camel

PAGE = "docs/ENVIRONMENTS.md"
OTHERS = "docs/OTHER_ENVIRONMENTS.md"


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    obey(blocks(PAGE, "run")["own"], Strop(monkeypatch, capsys))
    found = last_metrics(Path("runs/echo"))
    assert found["episode/turns_mean"] == 2
    assert found["episode/done_fraction"] == 1
    assert 0 < found["reward"] < 1


def test_the_game_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(PAGE, tmp_path)
    obey(blocks(PAGE, "run")["game"], Strop(monkeypatch, capsys))
    found = last_metrics(Path("runs/game"))
    assert found["episode/done_fraction"] == 1
    assert abs(found["episode/reward_role_0"]) <= 1
    rows = pq.read_table("runs/game/rollouts/step-000002.parquet").to_pylist()
    worth = {row["episode"]: 0.0 for row in rows}
    for row in rows:
        worth[row["episode"]] += row["reward"]
    both = [e for e in worth if sum(row["episode"] == e for row in rows) == 2]
    assert both
    assert all(worth[episode] == 0 for episode in both)


@pytest.mark.parametrize("name", ["gym", "mixture"])
def test_the_examples_of_other_packages_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    obey(blocks(OTHERS, "run")[name], Strop(monkeypatch, capsys))
    found = last_metrics(Path("runs") / {"gym": "lake"}.get(name, name))
    assert found["episode/turns_mean"] > 1
    shares = [value for key, value in found.items() if key.endswith("/share")]
    assert sum(shares) == (1 if name == "mixture" else 0)


def test_every_family_and_option_is_on_the_page() -> None:
    text = (Path(__file__).parents[2] / OTHERS).read_text(encoding="utf-8")
    for family, written in FAMILIES.items():
        assert f"| `{written}` |" in text
        kind = attribute(f"strop.environments.adapters.{family}:{camel(family)}")
        for option in list(inspect.signature(kind).parameters)[1:]:
            assert option == "options" or f"`{option}`" in text


def test_every_environment_is_on_the_page_and_loads() -> None:
    text = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    for name in built_in():
        assert f"| `{name}` |" in text
        assert load_task(name, num_train=2).train[0].prompt
