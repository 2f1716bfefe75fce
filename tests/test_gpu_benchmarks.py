"""What programs of benchmarks/gpu/ compute, on a CPU."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "gpu"))

import command_line
import gpu_agrees
import shapes

from strop.support.tables import read_rows, write_rows

GPU = Path(__file__).parents[1] / "benchmarks" / "gpu"


def loaded(name: str) -> ModuleType:
    """A program by its file, since some have the name of one in benchmarks/."""
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", GPU / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


engine, study = loaded("engine"), loaded("study")


def test_the_bound_counts_the_rows_that_have_not_ended():
    config = SimpleNamespace(num_hidden_layers=3, num_key_value_heads=2, head_dim=5)
    weights = [torch.zeros(10, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.bfloat16)]
    model = SimpleNamespace(config=config, parameters=lambda: iter(weights))
    # 14 weights of 2 bytes; a token's keys and values are 2 * 3 * 2 * 5 numbers of 2 bytes.
    # Two rows of four tokens hold 8 + 4 / 2 tokens in the mean.
    assert engine.bound(model, [4, 4], 1.0) == 28 + 2 * 10 * 120
    # One of two tokens holds 8 + 2 / 2, and that only in two of the four steps.
    assert engine.bound(model, [4, 2], 2.0) == (28 + (10 + 9 * 2 / 4) * 120) / 2


def test_a_copy_is_as_long_on_every_gpu(monkeypatch):
    made: list[int] = []

    def ones(size: int, **_: Any) -> torch.Tensor:
        made.append(size)
        return torch.zeros(1)

    monkeypatch.setattr(shapes.torch, "ones", ones)
    monkeypatch.setattr(shapes, "seconds", lambda run, device: 1.0)
    for device in ("cpu", "cuda", "cuda:0"):
        shapes.bandwidth(device)
    assert made == [2**24, 2**30, 2**30]


def test_decoding_is_measured_and_profiled_without_a_gpu(tmp_path, monkeypatch, capsys):
    out = tmp_path / "engine.csv"
    words = "--device cpu --shapes tiny --lengths 4 --rows 2 --profile --out"
    monkeypatch.setattr(sys, "argv", ["engine.py", *words.split(), str(out)])
    monkeypatch.setattr(engine, "card", lambda device: device)
    engine.main()
    assert "20 steps under the profiler" in capsys.readouterr().out
    assert [row["way"] for row in read_rows(out)] == ["recorded", "uneven", "launched", "generate"]


def test_lines_before_a_failure_are_written(tmp_path, monkeypatch):
    def rows_of(shape: str, options: Any, speed: float) -> Any:
        yield dict.fromkeys(engine.HEAD, shape)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(engine, "rows_of", rows_of)
    monkeypatch.setattr(engine, "card", lambda device: device)
    monkeypatch.setattr(engine, "bandwidth", lambda device: 1.0)
    out = tmp_path / "engine.csv"
    words = ["engine.py", "--device", "cpu", "--shapes", "tiny", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(torch.OutOfMemoryError):
        engine.main()
    assert [row["shape"] for row in read_rows(out)] == ["tiny"]


def test_a_wrong_name_is_refused_in_a_line(monkeypatch, capsys):
    for words, told in (
        ("--device cpu --shapes tiny,giant", "giant: there are tiny, 0.6B"),
        ("--shapes tiny", "cuda: there is no GPU here; cpu tries the program"),
    ):
        monkeypatch.setattr(sys, "argv", ["engine.py", *words.split()])
        monkeypatch.setattr(command_line.torch.cuda, "is_available", lambda: False)
        with pytest.raises(SystemExit):
            engine.main()
        assert told in capsys.readouterr().err


def test_a_metric_of_one_side_alone_is_no_small_difference():
    here = {"a": 1.0, "b": math.nan, "c": 2.0, "step_time": 1.0}
    there = {"a": 1.5, "c": 2.0, "step_time": 9.0}
    assert gpu_agrees.farthest(here, there) == (pytest.approx(1 / 3), "a")
    found, name = gpu_agrees.farthest(here | {"b": 0.0}, there)
    assert name == "b"
    assert math.isnan(found)


def test_runs_of_unlike_length_do_not_end_the_program(monkeypatch):
    lines = {"cpu": [{"num_tokens": 3.0}], "cuda": []}
    monkeypatch.setattr(gpu_agrees, "run", lambda recipe, device, dtype: lines[device])
    (row,) = gpu_agrees.rows_of("grpo", "cuda", "float32")
    assert "ValueError" in row["why"]


def test_a_study_that_has_not_started_shows_no_older_table(tmp_path, monkeypatch, capsys):
    old = tmp_path / "curves.csv"
    curves(old, {("grpo", 0): 0.5, ("gspo", 0): 0.25})
    ended = SimpleNamespace(poll=lambda: 1, returncode=1)
    monkeypatch.setattr(study.subprocess, "Popen", lambda command: ended)
    options = SimpleNamespace(
        work=tmp_path / "work", out=tmp_path, methods="grpo", seeds=1, steps=1, jobs=1, lr=1e-3,
        updates=1, device="cpu",
    )  # fmt: skip
    study.compare(study.SMALL, options, tmp_path, 0.0)
    told = capsys.readouterr().out
    assert "no run is complete" in told
    assert "pass@1" not in told


def curves(path: Path, scores: dict[tuple[str, int], float]) -> None:
    rows = [{"method": m, "seed": n, "step": 3, study.SCORE: x} for (m, n), x in scores.items()]
    write_rows(path, ("method", "seed", "step", study.SCORE), rows)


def test_the_study_compares_seeds_that_all_methods_have(tmp_path):
    path = tmp_path / "curves.csv"
    curves(path, {("grpo", 0): 0.5, ("grpo", 1): 0.75, ("gspo", 1): 0.25})
    first, _, *rows = study.paired(path).splitlines()
    assert "step 3, 1 seeds" in first
    assert rows == ["| grpo | 0.750 | | |", "| gspo | 0.250 | -0.500 | 1.000 |"]
    curves(path, {})
    assert study.paired(path) == "no seed is scored for all methods"


def test_trying_the_study_leaves_the_evidence_as_it_is(tmp_path, monkeypatch):
    took: list[Any] = []
    monkeypatch.setattr(study, "pretrain", lambda *_: None)
    monkeypatch.setattr(study, "compare", lambda setting, options, *_: took.append(options.out))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["study.py", "--small", "--work", "made"])
    study.main()
    assert took == [Path("made/results")]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
