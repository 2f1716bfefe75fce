"""Thousands of damaged files of a run, read back by report, doctor and resume."""

import json
import pickle
import shutil

import pytest
import torch
from doors import Outcomes, damaged, seeded, tries, wrong
from runs import Runner

from strop.diagnosis.run import examine
from strop.report.page import render
from strop.report.run_folder import read_run
from strop.tracking.metrics_file import lines_until
from strop.training.learner import adapters, models
from strop.training.learner.models import check_same_architecture
from strop.training.record import checkpoint
from strop.training.record.fingerprint import check_same


@pytest.fixture(scope="module")
def done(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "run"
    Runner().whole(lab.raw(training={"steps": 2, "inspect": 64}), folder)
    return folder


@pytest.fixture
def run(done, tmp_path):
    return shutil.copytree(done, tmp_path / "run")


def lines_with(text, rng):
    """Lines of metrics, values of any kind in some of them."""
    lines = [json.loads(line) for line in text.splitlines()]
    for _ in range(rng.choice((1, 2, 4))):
        line = rng.choice(lines)
        line[rng.choice(("step", "step", *line, "x"))] = wrong(rng)
    return "\n".join(json.dumps(line, default=str, skipkeys=True) for line in lines) + "\n"


def test_what_report_and_doctor_read(run):
    outcomes, rng = Outcomes(), seeded(0)
    names = ("metrics.jsonl", "metrics.jsonl", "config.toml", "rollouts/step-000001.parquet")
    usual = {name: (run / name).read_bytes() for name in names}
    for number in tries(200):
        name = rng.choice(names)
        data = damaged(usual[name], rng)
        if name == "metrics.jsonl" and number % 2:
            data = lines_with(usual[name].decode(), rng).encode("utf-8", "surrogatepass")
        (run / name).write_bytes(data)
        if (found := outcomes.of(read_run, run)) is not None and number % 5 == 0:
            outcomes.of(render, [found])
        outcomes.of(examine, run)
        outcomes.of(lines_until, run / "metrics.jsonl", rng.choice((0, 1, 2, 3)))
        (run / name).write_bytes(usual[name])
    outcomes.check()


def test_what_resume_reads(run, lab):
    outcomes, rng = Outcomes(), seeded(1)
    place = run / "checkpoints/step-000002"
    now = json.loads((run / "data.json").read_text())
    paths = [run / "data.json", *(p for p in place.iterdir() if p.name != "README.md")]
    model = models.load(str(lab.model), device="cpu").model
    for number in tries(160):
        path = rng.choice(paths)
        usual = path.read_bytes()
        data = damaged(usual, rng)
        if path.suffix == ".json" and number % 2:
            data = json.dumps(wrong(rng), default=str, skipkeys=True).encode()
        path.write_bytes(data)
        outcomes.of(check_same, run, now)
        outcomes.of(checkpoint.at, run / "checkpoints")
        outcomes.of(checkpoint.read, place)
        outcomes.of(check_same_architecture, place, model)
        path.write_bytes(usual)
    outcomes.check()


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("content", [{}, [], 3, None, {"step": "x"}, Evil(), {"a": torch.ones(1)}])
def test_trainer_files_of_another_kind(content, run, capsys):
    outcomes = Outcomes()
    place = run / "checkpoints/step-000002"
    (place / "files.json").unlink()
    torch.save(content, place / "trainer.pt")
    outcomes.of(Runner().resume, run)
    (place / "trainer.pt").write_bytes(pickle.dumps(content))
    outcomes.of(Runner().resume, run)
    assert outcomes.refused["resume"] == 2, outcomes.faults
    assert "run" not in capsys.readouterr().out


def test_adapters_that_name_no_model(tmp_path):
    outcomes, rng = Outcomes(), seeded(3)
    for _ in tries(40):
        text = json.dumps(wrong(rng), default=str, skipkeys=True)
        (tmp_path / "adapter_config.json").write_bytes(damaged(text.encode(), rng))
        outcomes.of(adapters.base_of, str(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    assert outcomes.of(adapters.base_of, str(tmp_path)) == "x"
    outcomes.check()


def test_folders_named_like_checkpoints(run):
    for name in ("step-", "step-x", "step-²", "step-٣", "step--1", "step-1e3"):
        (run / "checkpoints" / name).mkdir()
        (run / "checkpoints" / name / "trainer.pt").touch()
    outcomes = Outcomes()
    assert outcomes.of(checkpoint.at, run / "checkpoints").name == "step-000002"
    outcomes.check()
