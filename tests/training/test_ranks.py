"""Runs in several processes: the numbers of one, whatever a method asks of the models."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from models import Lab, without_times
from ranks_jobs import do
from short_runs import make_lab, settings_for

from strop.training.ranks import Ranks

JOBS = Path(__file__).with_name("ranks_jobs.py")
ROOT = Path(__file__).parents[2]
# What each shows beside the loss of a token: see the tests.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("grpo", {"evaluation": {"every": 2}}),
    "critic": ("gae", {}),
    "reference": ("grpo(beta=0.1)", {"training": {"share_prefixes": "on"}}),
    "whole_update": ("clip_cov", {}),
    "whole_rollout": ("gspo", {"training": {"share_prefixes": "on"}}),
    "adapters": ("grpo(beta=0.1)", {"model": {"lora_rank": 2}}),
    "half": ("grpo", {"model": {"dtype": "bfloat16"}, "training": {"lr": 1e-4}}),
    "forks": ("spo_tree", {}),
    "left_for_later": ("april_partial_rollout", {}),
    "old_weights": ("vcpo", {"engine": {"staleness": 1}}),
    "turns": ("gigpo", {}),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return make_lab(tmp_path_factory.mktemp("lab"))


def raw_of(lab: Lab, name: str) -> dict[str, Any]:
    recipe, changes = RUNS[name]
    raw = settings_for(lab, recipe)
    raw["training"] = {**raw["training"], "steps": 2, "lr": 1e-3}
    for section, values in changes.items():
        raw[section] = {**raw.get(section, {}), **values}
    return raw


def launch(count: int, jobs: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess:
    """Run the jobs in so many processes."""
    path = folder / f"jobs-{count}.json"
    path.write_text(json.dumps(jobs), encoding="utf-8")
    return torchrun(count, [str(JOBS), str(path)])


def torchrun(count: int, words: list[str]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    return subprocess.run(
        [*command, "--nproc-per-node", str(count), *words],
        env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folders(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Folders of all runs, by the number of processes that made them."""
    found = {count: tmp_path_factory.mktemp(f"ranks-{count}") for count in (1, 2, 4)}
    for count, folder in found.items():
        names = [*RUNS] if count < 4 else ["plain", "critic"]
        jobs = [{"raw": raw_of(lab, name), "folder": str(folder / name)} for name in names]
        if count == 1:
            for job in jobs:
                do(job, Ranks())
        else:
            done = launch(count, jobs, folder)
            assert done.returncode == 0, done.stdout + done.stderr
    return found


def differences(one: Path, other: Path) -> dict[str, tuple[Any, Any]]:
    """Metrics that are not equal, with the largest difference first."""
    found = {}
    lines = zip(without_times(one), without_times(other), strict=True)
    for number, (here, there) in enumerate(lines):
        assert set(here) == set(there)
        for name, value in here.items():
            if value is None or there[name] is None:
                assert value == there[name]
            elif abs(value - there[name]) > 1e-12:
                found[f"{number}:{name}"] = abs(value - there[name]) / max(1, abs(value))
    return dict(sorted(found.items(), key=lambda entry: -entry[1]))


@pytest.mark.parametrize("name", [name for name in RUNS if name != "half"])
def test_two_processes_give_the_numbers_of_one(folders, name):
    found = differences(folders[1] / name, folders[2] / name)
    assert max(found.values(), default=0) < 1e-5, found


@pytest.mark.parametrize("name", ["plain", "critic"])
def test_four_processes_give_the_numbers_of_one(folders, name):
    found = differences(folders[1] / name, folders[4] / name)
    assert max(found.values(), default=0) < 1e-5, found


def test_half_precision_agrees_within_its_rounding(folders):
    found = differences(folders[1] / "half", folders[2] / "half")
    assert max(found.values(), default=0) < 2e-2, found
