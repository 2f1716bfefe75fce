"""Thousands of wrong command lines: an exit code and one line, never a traceback."""

import contextlib
import io
import shutil
import sys

import pytest
from commands import graders_copied
from doors import NUMBERS, TEXTS, Outcomes, seeded, tries
from runs import Runner

from strop.cli.main import main
from strop.support.errors import UserError

COMMANDS = {
    "train": ("--model", "--data", "--validation", "--reward", "--task", "--advantage", "--bound",
              "--config", "--resume", "--step"),
    "eval": ("--k", "--split", "--samples", "--prompts", "--step", "--temperature", "--max-tokens",
             "--task", "--data", "--reward", "--seed", "--engine"),
    "sample": ("--samples", "--temperature", "--max-tokens", "--step", "--seed", "--engine"),
    "export": ("--step", "--dtype"),
    "report": ("--out",),
    "doctor": ("--model", "--data", "--reward"),
    "recipes": ("--family",),
    "parts": (),
    "labs": (),
}  # fmt: skip
RIGHT = {"recipes": "grpo", "parts": "advantage"}  # so that some words are valid
FLAGS = {"eval": ["--json", "--trust-files"], "recipes": ["--toml"], "doctor": ["--json"],
         "labs": ["--json"]}  # fmt: skip
SETTINGS = ("training.lr", "training.betas", "training.num_slots", "reward.timeout_seconds",
            "threads", "seed", "data.task", "data.task_config", "model.device", "model.dtype",
            "rollout.max_tokens", "loss.clip_high", "evaluation.k", "engine.kind", "advantage",
            "reward.num_workers", "training.token_budget", "stages.loss", "colour", "")  # fmt: skip
USUAL = ("0", "1", "2", "-1", "nan", "inf", "1e400", "9" * 30, "linear(1, 2)", "linear(0.1)")


def command(*words):
    """The command in this process. Raises UserError for one that ends as a refused one should."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["strop", *words])
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                with graders_copied():
                    main()
            except SystemExit as ended:
                code = ended.code or 0
    said = err.getvalue()
    assert "Traceback" not in said + out.getvalue()
    assert code in (0, 1, 2), code
    if code == 2:
        assert said.count("\n") == 1, said
        raise UserError(said)
    return code


@pytest.fixture(scope="module")
def run(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "run"
    Runner().whole(lab.raw(training={"steps": 1}), folder)
    return folder


def word(rng, places):
    """What someone may give for an option or in place of a folder."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(places)
    if kind < 0.7:
        return rng.choice(USUAL)
    text = rng.choice(TEXTS) if kind < 0.9 else str(rng.choice(NUMBERS[:-3]))
    return text.replace("\0", "x")  # which no shell can give


def words(rng, places):
    """One command with some of its options; none of them can begin a run, for want of a model."""
    name = rng.choice([*COMMANDS, "train", "eval"])
    given = [name]
    if name in RIGHT and rng.random() < 0.5:
        given.append(RIGHT[name])
    elif name not in ("train", "doctor") or rng.random() < 0.4:
        given.append(word(rng, places))
    given += rng.sample(FLAGS.get(name, []), rng.choice((0, len(FLAGS.get(name, [])))))
    if COMMANDS[name]:
        for option in rng.sample(COMMANDS[name], rng.choice((0, 1, min(2, len(COMMANDS[name]))))):
            given += [option, word(rng, places)]
    if name in ("train", "doctor"):
        given += [f"{rng.choice(SETTINGS)}={word(rng, places)}" for _ in range(rng.choice((0, 1)))]
    if name == "train":
        given += ["--model", places[0], "--out", places[0] + "/out"]
    return given


def test_commands(run, lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    empty, file = tmp_path / "empty", tmp_path / "file.jsonl"
    empty.mkdir()
    file.write_bytes(b"\xff\xfe{}\n")
    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / "config.toml").write_bytes(b"recipe = [[[")
    gone = shutil.copytree(run, tmp_path / "gone")
    shutil.rmtree(gone / "checkpoints")
    places = [*map(str, (empty, file, broken, gone, run / "config.toml", lab.data)), "none", "/"]
    outcomes, rng = Outcomes(), seeded(0)
    for _ in tries(100):
        outcomes.of(command, *words(rng, places))
    outcomes.check()
    assert not (tmp_path / "runs").exists()


def test_numbers_of_eval_and_sample(lab):
    outcomes, rng = Outcomes(), seeded(1)
    score = ["--data", str(lab.data), "--reward", "exact_match", "--prompts", "1"]
    numbers = (*USUAL, "0.5", "1e-9", "-0.0", "65", "1e9")
    for number in tries(20):
        name = ("eval", "sample")[number % 2]
        given = ["eval", str(lab.model), *score] if number % 2 == 0 else [name, str(lab.model), "1"]
        usual = {"--max-tokens": "3", "--samples": "2", **({"--k": "1"} if name == "eval" else {})}
        option = rng.choice([*usual, "--temperature", "--seed", "--step"])
        usual[option] = rng.choice(("0", "-1", "nan", "2") if option == "--samples" else numbers)
        outcomes.of(command, *given, *(each for pair in usual.items() for each in pair))
    outcomes.check()


@pytest.mark.parametrize("made", [["report", "RUN", "-o", "OUT"], ["export", "RUN", "OUT"],
                                  ["train", "--out", "OUT", "--model", "MODEL", "--data", "DATA",
                                   "--reward", "exact_match", "rollout.max_tokens=2"]])  # fmt: skip
@pytest.mark.parametrize("place", ["FILE/x", "FOLDER", "/proc/none/x", "x" * 300, "/dev/full"])
def test_places_that_cannot_be_written(made, place, run, lab, tmp_path):
    (tmp_path / "FILE").touch()
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FOLDER/config.toml").touch()
    out = place if place.startswith("/") else str(tmp_path / place)
    known = {"RUN": str(run), "OUT": out, "MODEL": str(lab.model), "DATA": str(lab.data)}
    outcomes = Outcomes()
    assert outcomes.of(command, *(known.get(each, each) for each in made)) in (None, 1)
    assert not outcomes.faults
