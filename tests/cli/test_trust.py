"""A run folder from another person: nothing that its configuration names runs without consent."""

import shutil
import tomllib
from contextlib import suppress

import pytest
import tomli_w
from runs import Runner

from strop import Run
from strop.support.errors import UserError

EVIL = """
from pathlib import Path
from strop.environments import Environment, Observation
from strop.recipes.grpo import grpo
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly as Spread
from strop.parts.rollout.sample_independently import SampleIndependently as Rollout

Path("imported").touch()


class World(Environment):
    roles = (0, 1)

    def reset(self, seed):
        return Observation("0")

    def step(self, action):
        return Observation("", 1.0, done=True)


def method() -> "Algorithm":
    return grpo()


def reward(completions, **columns):
    return [1.0] * len(completions)
"""
WORDS = ["--split", "train", "--samples", "2", "--k", "1", "--json"]


@pytest.fixture(scope="module")
def done(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done") / "run"
    Runner().whole(lab.raw(training={"steps": 1}), folder)
    return folder


@pytest.fixture
def received(done, tmp_path, monkeypatch):
    """Makes a run folder whose configuration was changed by somebody."""
    monkeypatch.chdir(tmp_path)

    def make(**changes):
        shutil.copytree(done, tmp_path / "run")
        (tmp_path / "evil.py").write_text(EVIL)
        raw = tomllib.loads((done / "config.toml").read_text())
        for section, value in changes.items():
            mixed = isinstance(value, dict) and section != "engine"
            raw[section] = {**raw.get(section, {}), **value} if mixed else value
        (tmp_path / "run/config.toml").write_text(tomli_w.dumps(raw))
        return tmp_path / "run"

    return make


METHOD = {
    "recipe": '"evil.py:method"',
    "stages": {"advantage": ["subtract_group_mean", "divide_by_group_std", '"evil.py:Spread"']},
}


@pytest.mark.parametrize("recipe", ['"evil.py:method"', '"evil\\x2epy\\x3amethod"'])
def test_what_needs_none_of_it_imports_none_of_it(recipe, received, strop, lab, tmp_path):
    rewards = {"functions": ["evil.py:reward"], "weights": [2.0]}
    stages = METHOD["stages"] if "x2e" not in recipe else {}
    run = received(recipe=recipe, stages=stages, reward=rewards)
    for words in (
        ["sample", run, "1+1:", "-n", "1"],
        ["export", run, tmp_path / "model"],
        ["report", run, "--out", tmp_path / "page.html"],
        ["doctor", run],
        ["eval", run, "--reward", f"{lab.rewards}:digits", *WORDS],
    ):
        result = strop(*words)
        assert result.code in (0, words[0] == "doctor"), result.err  # doctor: 1 for what it found
        assert not (tmp_path / "imported").exists()


def test_a_page_imports_no_recipe_that_hides_its_colon(received, strop, tmp_path):
    run = received(recipe='"evil.py\\x3amethod"')
    assert strop("report", run, "--out", tmp_path / "page.html").code == 0
    assert not (tmp_path / "imported").exists()


def test_the_recipe_is_not_even_looked_for(received, strop, lab):
    run = received(recipe="gone", stages={"advantage": '"gone.py:Part"'})
    assert strop("eval", run, "--reward", f"{lab.rewards}:digits", *WORDS).code == 0


PLAYED = {"files": [], "task": "corridor + evil.py:World"}
EACH = {"data": {"files": [], "task": "evil.py:World"}, "roles": {"play": "each"}}
TOOLS = {"files": [], "task": "tool_questions"}
MIXED = {"files": [], "task": "corridor + mcp=tool_questions"}
MCP = {"mcp": "touch imported"}
SERVED = "verifiers:tcp://127.0.0.1:9"
PHASES = {
    "first": {"until": 1, "stages": {"rollout": '"evil.py:Rollout"'}},
    "second": {"stages": {"rollout": "sample_independently"}},
}


@pytest.mark.parametrize("changes", [{"data": PLAYED}, EACH])
def test_reading_the_settings_imports_no_environment(changes, received, strop, tmp_path):
    run = received(**changes)
    for words in (["export", run, tmp_path / "model"], ["eval", run], ["sample", run, "1+1:"]):
        result = strop(*words)
        if "roles" in changes:
            assert result.code == 2
            assert "roles.play" in result.err
        else:
            assert result.code == 2 * (words[0] != "export"), result.err
        assert not (tmp_path / "imported").exists()
    with suppress(UserError):
        repr(Run(run))
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reward": {"functions": ["evil.py:reward"]}}, "evil.py:reward"),
        ({"reward": {"functions": ["verl:evil.py:reward"]}}, "verl:evil.py:reward"),
        ({"reward": {"functions": ["evil:reward"]}}, "evil:reward"),
        ({"reward": {"functions": ["judge:judge.toml"]}}, "judge:judge.toml"),
        (
            {"reward": {"functions": ["run_python(without_isolation=true)"]}},
            "run_python(without_isolation=true)",
        ),
        (
            {"reward": {"functions": ['run_tests(url="http://127.0.0.1:9")']}},
            'run_tests(url="http://127.0.0.1:9")',
        ),
        ({"data": {"files": [], "task": "evil.py:World"}}, "evil.py:World"),
        ({"data": PLAYED}, "corridor + evil.py:World"),
        ({"data": {**TOOLS, "task_config": MCP}}, "mcp = touch imported"),
        ({"data": {**MIXED, "task_config": {"mcp": MCP}}}, "mcp = touch imported"),
        ({"data": {"task": SERVED}}, SERVED),
        ({"stages": {"rollout": '"evil.py:Rollout"(max_tokens=4)'}}, "evil.py:Rollout"),
        ({"stages": {"rollout": "evil.py:Rollout"}}, "evil.py:Rollout"),
        ({"stages": {"rollout": ['"evil\\x2epy:Rollout"']}}, "evil.py:Rollout"),
        ({"engine": {"kind": "completions", "url": "http://127.0.0.1:9"}}, "engine completions"),
        ({"phases": PHASES}, "evil.py:Rollout"),
        ({"ray": {"address": "127.0.0.1:9", "cpus_for_rewards": 1}}, "the Ray cluster 127.0.0.1:9"),
    ],
)
def test_eval_asks_before_it_imports(changes, named, received, strop, tmp_path):
    run = received(**{"reward": {"functions": ["math_verify"]}, **changes})
    result = strop("eval", run, *WORDS)
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert f"run/config.toml names {named}" in result.err.replace("\n", "")
    assert "--trust-files" in result.err
    assert not (tmp_path / "imported").exists()


def test_all_that_an_evaluation_lacks_is_named_at_once(received, strop):
    run = received(reward={"functions": ["evil.py:reward"]})
    result = strop("eval", run)
    assert result.code == 2
    assert "2 options are wrong" in result.err
    assert "--trust-files" in result.err
    assert "the split heldout is empty: give --split train or --data FILE" in result.err
    for words in (["--split", "train"], ["--set", "data.heldout_size=2"]):
        assert "heldout is empty" not in strop("eval", run, *words).err


def test_a_run_of_a_cluster_is_scored_without_it(received, strop):
    run = received(
        reward={"functions": ["math_verify"]}, ray={"address": "127.0.0.1:9", "cpus_for_rewards": 1}
    )
    result = strop("eval", run, *WORDS, "--set", "ray.address=")
    assert result.code == 0, result.err


def test_a_command_is_asked_for_where_the_task_is_given_again(received, strop, tmp_path):
    run = received(reward={"functions": ["math_verify"]}, data={**TOOLS, "task_config": MCP})
    result = strop("eval", run, *WORDS, "--task", "tool_questions")
    assert result.code == 2
    assert "mcp = touch imported" in result.err.replace("\n", "")
    assert not (tmp_path / "imported").exists()
    assert "mcp" not in strop("eval", run, *WORDS, "--task", "calculator").err


def test_a_method_without_its_stages_is_asked_for_as_a_whole(received, strop, tmp_path):
    run = received(**METHOD)
    raw = tomllib.loads((run / "config.toml").read_text())
    del raw["stages"]["rollout"]
    (run / "config.toml").write_text(tomli_w.dumps(raw))
    for words in (["eval", run], ["sample", run, "1+1:"], ["serve", run, "--port", "0"]):
        result = strop(*words)
        assert result.code == 2
        assert "evil.py:method" in result.err
        assert "evil.py:Spread" in result.err
        assert not (tmp_path / "imported").exists()


def test_with_the_users_say_it_runs(received, strop, tmp_path):
    run = received(reward={"functions": ["evil.py:reward"]})
    result = strop("eval", run, "--trust-files", *WORDS)
    assert result.code == 0, result.err
    assert '"mean@n": 1.0' in result.out


def test_resuming_a_run_is_the_users_say(received, strop, tmp_path):
    run = received(**METHOD)
    result = strop("train", "--resume", run, "training.steps=2")
    assert result.code == 0, result.err
    assert (tmp_path / "imported").exists()


def test_the_end_of_a_run_says_how_it_is_evaluated(strop, lab, tmp_path):
    result = strop("train", *lab.arguments("training.steps=1", "--out", str(tmp_path / "run")))
    assert "--trust-files" in result.out
