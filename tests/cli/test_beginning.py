"""`strop init` and `strop schema`: the written files run, and the schema checks what strop does."""

import json
import tomllib

import jsonschema
import pytest

from strop.assets import SCHEMA
from strop.cli.init import TASKS, TEMPLATES
from strop.support.errors import UserError
from strop.support.loading import attribute
from strop.training.settings import config, schema

VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
SHORT = ["training.steps=1", "evaluation.every=0", "--quiet", "--out", "runs/first"]


def test_every_kind_is_described():
    assert {path.name for path in TEMPLATES.iterdir() if path.is_dir()} == set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_what_init_writes_runs_as_it_is(strop, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = strop("init", task, "--out", "mine")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("then: cd mine && strop train --config run.toml\n")
    monkeypatch.chdir(tmp_path / "mine")
    assert result.out.count("wrote mine/") == len([*(tmp_path / "mine").iterdir()])
    text = (tmp_path / "mine/run.toml").read_text()
    assert text.startswith("#:schema ./run.schema.json\n")
    assert list(VALIDATOR.iter_errors(tomllib.loads(text))) == []
    given = task in ("demonstrations", "preferences")
    few = [] if given else [f"sampling.num_rollouts={8 if task == 'code' else 2}"]
    found = strop("train", "--config", "run.toml", "sampling.num_prompts=2", *few, *SHORT)
    assert found.code == 0, found.err
    lines = (tmp_path / "mine/runs/first/metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["step"] == 1
    assert task != "code" or 0 < last["reward"] < 1  # there is something to learn


def test_the_environment_of_init_takes_any_text():
    world = attribute(f"{TEMPLATES / 'environment/my_env.py'}:Guess")()
    world.reset(0)
    for action in ("²", "①", "x", ""):  # the first two are digits that are no numbers
        assert not world.step(action).valid


def test_init_writes_over_nothing(strop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text("mine")
    result = strop("init", "math")
    assert result.code == 2
    assert "train.jsonl already exists: give another folder with --out" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
    assert (tmp_path / "train.jsonl").read_text() == "mine"
    (tmp_path / "file").write_text("")
    assert "the files could not be written to file" in strop("init", "math", "--out", "file").err


def test_a_kind_that_there_is_not(strop):
    result = strop("init", "maths")
    assert result.code == 2
    assert "no kind of task 'maths', did you mean math?; there are math (problems" in result.err


def test_the_schema_is_printed_and_written(strop, tmp_path):
    printed = strop("schema").out
    assert printed == SCHEMA.read_text() == schema.text()
    result = strop("schema", "--out", tmp_path / "s.json")
    assert (tmp_path / "s.json").read_text() == printed
    assert result.out == f"wrote {tmp_path}/s.json; start a run's file with the line: #:schema " + (
        f"{tmp_path}/s.json\n"
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(printed))


def test_the_schema_takes_what_strop_takes():
    """Whole files of runs, and lists of one written as one value."""
    for raw in (
        {},
        {"data": {"files": "a.jsonl", "stop_strings": ["x"]}, "evaluation": {"k": 4}},
        {"engine": {"kind": "completions", "url": "http://x", "num_parallel": 3}},
        {"engine": {"kind": "local", "staleness": 2}},
        {"recipe": "vcpo(max_age=2)", "training": {"lr": "linear(1e-5, 0)", "betas": [0.8, 0.9]}},
        {"stages": {"advantage": ["subtract_group_mean", "spread_evenly"], "bound": "none"}},
        {"tracking": {"to": ["wandb", "mlflow"]}},
        {"phases": {"first": {"until": 0.5, "recipe": "sft"}, "then": {"recipe": "grpo"}}},
    ):
        assert list(VALIDATOR.iter_errors(raw)) == []
        config.make(raw)
    for recipe in ("grpo", "gae", "gigpo", "sft"):
        method = {"recipe": recipe}
        whole = config.make(method | ({"data": {"task": "corridor"}} if recipe == "gigpo" else {}))
        written = tomllib.loads(whole.complete().to_toml())
        assert list(VALIDATOR.iter_errors(written)) == [], recipe


@pytest.mark.parametrize(
    "raw",
    [
        {"trianing": {}},
        {"training": {"stepz": 3}},
        {"training": {"steps": 0}},
        {"training": {"steps": "many"}},
        {"engine": {"kind": "local", "url": "http://x"}},
        {"engine": {"kind": "none"}},
        {"engine": {"url": "http://x"}},
        {"data": {"prompt_as": "poem"}},
        {"tracking": {"to": ["wandbb"]}},
        {"stages": {"advantage": 3}},
    ],
)
def test_the_schema_refuses_what_strop_refuses(raw):
    assert list(VALIDATOR.iter_errors(raw))
    with pytest.raises(UserError):
        config.make(raw)


def test_every_setting_is_in_the_schema_with_its_words():
    found = json.loads(schema.text())
    for path, told in config.settings().items():
        section, _, name = path.partition(".")
        place = found["properties"][section]
        if name:
            refs = [each["$ref"] for each in (place, *place.get("anyOf", ())) if "$ref" in each]
            sections = [found["$defs"][ref.rpartition("/")[2]]["properties"] for ref in refs]
            assert told in [each[name].get("description") for each in sections if name in each]
        else:
            assert place["description"] == told
