"""What programs of benchmarks/ compute, without their measurements."""

import argparse
import re
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import command_line
import engine
import engine_profile
import environment_faults
import failing_grader
import growth
import model_families
import plan_beside_runs
import processes
import strategies_run
import strategy_beside_plain
import term_conflict
import train_tiny
import two_attempts

from strop.training.record.ending import Ending
from strop.training.settings import config


def test_passes_are_counted_of_a_model_that_generates_without_its_modules(monkeypatch, capsys):
    for name in ("by_operator", "by_function"):
        monkeypatch.setattr(engine_profile, name, lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(sys, "argv", ["", "--model", "tiny", "--kind", "equal", "--answers", "2"])
    engine_profile.main()
    # A pass over the prompts, and one for each of 96 tokens.
    assert re.search(r"192 tokens in 97 passes, \d+ tokens/s", capsys.readouterr().out)


def test_drawn_tokens_are_of_dropped_answers_too_and_not_of_a_store():
    line = {"completions/mean_length": 10.0, "data/rollouts_kept": 16.0,
            "data/tokens_sampled": 90.0, "rollout/tokens_thrown_away": 5.0}  # fmt: skip
    assert strategy_beside_plain.drawn(line) == 95
    assert strategy_beside_plain.drawn({"step": 0}) == 0


def test_the_interval_of_a_share_stays_in_0_to_1():
    # The models of `grpo` in docs/evidence/two_retries.csv.
    spoilt = (0.0, 0.0, 0.007763975155279503, 0.0014184397163120568, 0.006038647342995169)
    assert two_attempts.shown("spoilt", spoilt) == "0.003 (0.001 to 0.008)"
    assert two_attempts.shown("after", spoilt) == "0.003 (-0.001 to 0.008)"
    assert two_attempts.shown("mended", [float("nan")]) == "none, of 1 models"


@pytest.mark.parametrize(("steps", "expected"), [(3, 1.0), (12, 0.75)])
def test_the_last_sixth_of_a_run_is_a_step_or_more(steps, expected, monkeypatch, tmp_path):
    lines = [{"step": n, "reward": 0.5} for n in range(1, steps + 1)]
    scores = {f"step-{steps:06d}": [1.0, 1.0], f"step-{steps - 1:06d}": [1.0, 0.0]}
    monkeypatch.setattr(failing_grader, "lines_of", lambda folder: lines)
    monkeypatch.setattr(
        failing_grader.pq, "read_table",
        lambda path: pa.table({"reward/compute_score": scores[path.stem]}),
    )  # fmt: skip
    assert failing_grader.measure(tmp_path, steps)["success"] == expected


def test_steps_of_faulty_episodes_have_a_limit_only_where_it_can_end_them(tmp_path):
    """`data.env_timeout_seconds` is refused for steps that run in the run's own process."""
    options = argparse.Namespace(out=tmp_path, seed=0)
    limited = [
        way for way in environment_faults.WAYS
        if "data_env_timeout_seconds" in environment_faults.trained(way, options, 1)
    ]  # fmt: skip
    assert limited == ["two workers", "awaited", "agent"]


def test_a_part_of_an_experiment_can_stand_where_its_docstring_puts_it():
    part = Path(engine_profile.__file__).with_name("keep_hard_groups.py")
    stage = f'"{part}:KeepHardGroups"(floor=10.0)'
    made = config.make({"recipe": "grpo", "stages": {"selection": stage}})
    assert made.build().selection[0].part.floor == 10.0


@pytest.fixture
def started(monkeypatch):
    """The commands that `processes.train` would start."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(processes, "output_of", lambda *words: commands.append(words))
    return commands


def test_a_run_that_was_interrupted_is_ended_and_not_taken_for_a_whole_one(tmp_path, started):
    run = tmp_path / "made" / "run"
    processes.train(run, "grpo", "training.steps=4")
    run.mkdir()
    for name in ("config.toml", "report.html"):  # which a run also has when Ctrl-C has ended it
        (run / name).touch()
    Ending(2, False).write(run)
    processes.train(run, "grpo", "training.steps=4")
    Ending(4, True).write(run)
    processes.train(run, "grpo", "training.steps=4")
    assert [words[3:] for words in started] == [
        ("grpo", "training.steps=4", "--out", str(run)), ("--resume", str(run)),
    ]  # fmt: skip


def test_a_run_of_other_options_is_refused(tmp_path, started):
    run = tmp_path / "run"
    processes.train(run, "grpo", "training.steps=4")
    run.mkdir()
    (run / "config.toml").touch()
    Ending(4, True).write(run)
    with pytest.raises(SystemExit, match=r"(?s)run of other options.*steps=4.*steps=8"):
        processes.train(run, "grpo", "training.steps=8")
    assert len(started) == 1


def test_a_command_that_fails_ends_the_program_in_a_line():
    with pytest.raises(SystemExit, match=r"exit code 3 of: python -c 'exit\(3\)'"):
        processes.output_of("-c", "exit(3)")


def test_a_run_that_was_there_has_no_seconds(tmp_path, monkeypatch, capsys):
    (tmp_path / "seed-0").mkdir()
    monkeypatch.setattr(train_tiny, "train", lambda folder, *words: folder)
    found = {"pass@1": 0.5, "entropy": 1.0, "completions/mean_length": 4.0}
    monkeypatch.setattr(train_tiny, "scores", lambda source, options: found)
    words = ["", "--seeds", "1", "--k", "1", "--keep", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    train_tiny.main()
    told = capsys.readouterr().out
    assert "seed 0: kept, pass@1 0.500" in told
    assert "seconds" not in told


def test_terms_are_found_where_the_last_step_measured_nothing(tmp_path, monkeypatch):
    told = {f"conflict/{each}": 0.5 for each in (
        "share/a", "share/b", "across/a_b/all", "floor/a/all", "floor/b/all",
        *(f"a_b/{block}" for block in term_conflict.BLOCKS),
    )}  # fmt: skip
    lines = [{"step": 6, **told}, {"step": 8, **told}, {"step": 9}]
    monkeypatch.setattr(term_conflict, "train", lambda *_: None)
    monkeypatch.setattr(term_conflict, "lines_of", lambda folder: lines)
    options = argparse.Namespace(out=tmp_path, steps=9, every=2, seeds=1)
    (row,) = term_conflict.rows("grpo", options)
    assert row.startswith("| `grpo` | a, b | 0.50 | 0.50")


def test_names_that_a_program_does_not_know_are_refused(monkeypatch, capsys):
    assert command_line.some_of(("a", "b, c"), ";")("b, c;a") == ["b, c", "a"]
    with pytest.raises(argparse.ArgumentTypeError, match="d: there are a, b"):
        command_line.some_of(("a", "b"))("a,d")
    monkeypatch.setattr(sys, "argv", ["growth.py", "promts"])
    with pytest.raises(SystemExit):
        growth.main()
    assert "promts: there are prompts, parquet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "words", "told"),
    [
        (model_families, "qwen33", "no family qwen33"),
        (plan_beside_runs, "--out runs --steps 12", "--steps 12: give 17 or more"),
        (two_attempts, "r3l rollout.temperature=1", "give a model or a checkpoint"),
    ],
)
def test_what_cannot_be_measured_is_refused(program, words, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["", *words.split()])
    with pytest.raises(SystemExit):
        program.main(*([sys.argv[1:]] if program is model_families else []))
    assert told in capsys.readouterr().err


def test_a_strategy_that_is_not_known_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["", "--out", str(tmp_path), "--recipes", "latr,lart"])
    with pytest.raises(SystemExit, match="--recipes lart: there are grpo, latr"):
        strategies_run.main()


def test_a_family_that_takes_too_long_ends_alone(monkeypatch):
    monkeypatch.setattr(model_families, "SECONDS", 1)
    monkeypatch.setattr(model_families, "built", lambda family: time.sleep(20))
    assert model_families.look("llama")[0] == "too slow"


def test_a_gap_that_is_not_a_number_is_no_small_one(monkeypatch):
    gaps = iter([1e-6, float("nan"), 1e-6])
    sampled = argparse.Namespace(sample=lambda requests: "abc")
    monkeypatch.setattr(model_families, "built", lambda family: None)
    monkeypatch.setattr(model_families, "LocalEngine", lambda model, num_slots: None)
    monkeypatch.setattr(model_families, "asynchronous", lambda engine: sampled)
    monkeypatch.setattr(model_families, "difference", lambda model, answer: next(gaps))
    assert model_families.seen("llama") == ("WRONG", "nan nats from the forward pass")


def test_places_of_a_cache_do_not_depend_on_the_dtype(monkeypatch, capsys):
    monkeypatch.setattr(engine, "lengths", lambda *_: [3, 5])
    for dtype in (torch.float32, torch.bfloat16):
        model = engine.loaded("tiny", dtype=dtype)
        engine.memory("tiny", model, 2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert [line.split(";")[0] for line in lines[:3]] == [line.split(";")[0] for line in lines[3:]]


def test_options_among_the_models_are_options(monkeypatch, capsys):
    took = []

    def measure(model, options):
        took.append((model, options.words))
        return dict.fromkeys(two_attempts.NAMES, 0.5)

    monkeypatch.setattr(two_attempts, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["", "r3l", "tiny", "runs/a=1", "rollout.temperature=1"])
    two_attempts.main()
    assert took == [(m, ["rollout.temperature=1"]) for m in ("tiny", "runs/a=1")]
