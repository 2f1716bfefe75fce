"""Runs in environments: columns, rewards, metrics, evaluation, errors, kills and resumes."""

import json
import re
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch
from commands import Strop
from fakes.services import rolled_out
from models import without_times
from runs import world_of

from strop.api.inference import open_model
from strop.engines.pool.one_per_process import ParallelEngine
from strop.environments.episodes import CallLimits
from strop.method.part import Draw
from strop.support.errors import UserError
from strop.support.loading import attribute
from strop.training import setup
from strop.training.learner.step_models import refresh
from strop.training.loop import start
from strop.training.playing import open_environment_workers
from strop.training.settings import config

OWN = '''
import numpy as np
from strop.environments.base import Environment, Observation


class Digits(Environment):
    """A digit is worth 1, three turns long; raises at the action that it is told to."""

    max_turns, max_tokens, reward_range = 3, 2, (0.0, 3.0)

    def __init__(self, forbidden=""):
        self.forbidden = forbidden

    def reset(self, seed):
        self.turns = 0
        return Observation(f"{seed % 10}:")

    def step(self, action):
        self.turns += 1
        if self.forbidden and self.forbidden in action:
            raise ValueError(f"cannot read {action}")
        found = sum(c.isdigit() for c in action)
        share = np.float32(found / 2)
        return Observation(f"={self.turns}:", share, self.turns == 3, valid=np.bool_(found > 0),
                           measures={"share": share, "found": found > 0})
'''
SMALL = {"sampling.num_prompts": 2, "sampling.num_rollouts": 4}
TRAINING = {"steps": 3, "lr": 1e-3, "save_every": 1, "rollouts_every": 1, "token_budget": 256}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def raw(task="corridor", recipe="grpo", **sections):
    base = {
        "recipe": recipe, "model": {"name": "tiny"}, "data": {"task": task, "train_size": 64},
        "training": TRAINING, "algorithm": SMALL,
        "evaluation": {"every": 3, "num_samples": 2, "max_prompts": 2},
    }  # fmt: skip
    return {**base, **{k: {**base.get(k, {}), **v} for k, v in sections.items()}}


def test_episodes_take_the_place_of_answers():
    settings = config.make(raw(algorithm={"rollout.temperature": 0.5, "rollout.max_turns": 4}))
    part = settings.build().rollout.part
    assert (part.temperature, part.max_turns, part.max_tokens) == (0.5, 4, 0)
    written = settings.complete().algorithm
    assert written["rollout.play_turns.temperature"] == 0.5
    again = config.make({**raw(), "algorithm": written})
    assert again.build() == settings.build()


@pytest.mark.parametrize(("model", "style"), [("tiny", "compact"), ("some/model", "plain")])
def test_the_style_is_written_down(model, style):
    settings = config.make(raw(model={"name": model}))
    assert settings.data.task_config == {"style": style}
    given = config.make(raw(model={"name": model}, data={"task_config": {"style": "plain"}}))
    assert given.data.task_config == {"style": "plain"}
    assert config.make({}).data.task_config == {}


def test_other_rollouts_are_refused(file):
    with pytest.raises(UserError, match="remax has the rollout sample_with_greedy, which answers"):
        config.make(raw(recipe="remax")).build()
    with pytest.raises(UserError, match="play_turns needs an environment, countdown is none"):
        config.make(raw("countdown", stages={"rollout": "play_turns"})).build()
    files = {"data": {"files": ["a.jsonl"]}, "stages": {"rollout": "play_turns"}}
    with pytest.raises(UserError, match="play_turns needs an environment, the data is none"):
        config.make(files).build()
    kept = config.make(raw(stages={"rollout": "play_turns(max_turns=3)"})).build()
    assert kept.rollout.part.max_turns == 3


def test_unknown_characters_show_before_a_run(lab, tmp_path):
    with pytest.raises(UserError, match=r"would read as <unk>.*knows .* alone.* compact"):
        start(config.make(raw(model={"name": str(lab.model)})), tmp_path / "run")


def test_an_episode_that_outgrows_the_cache_is_cut_off(file):
    """A prompt of two tokens, three actions of two at most; what is shown between is not known."""
    with pytest.raises(UserError, match=r"cache_tokens is 7, but .* come to 8 tokens: raise it"):
        world_of(raw(f"{file}:Digits", engine={"cache_tokens": 7}))
    longest, cut = {}, {}
    for room in (8, 100):
        bound = SimpleNamespace(capabilities=frozenset(), longest=room)
        assert ParallelEngine(bound, None, None).longest == room  # as of one process
        algorithm, world = world_of(raw(f"{file}:Digits", engine={"cache_tokens": room}))
        draws = tuple(Draw(uid, 4) for uid in world.pool[:8])
        rng = torch.Generator().manual_seed(5)
        batch = rolled_out(algorithm.rollout.part, draws, world.engine, world.services, rng).batch
        longest[room] = int(batch["rollout_T"].bincount().max())
        cut[room] = batch["truncated_B"].float().mean()
    assert longest[8] <= 8 < longest[100]
    assert cut[8] > 0 == cut[100]


@pytest.mark.parametrize("task", ["corridor", "hidden_number", "calculator"])
def test_engine_and_trainer_agree_on_every_token(task, find_caches):
    """Columns of the one forward pass over the grown sequence are those that the engine saw."""
    algorithm, world = world_of(raw(task, data={"train_size": 4}))
    draws = tuple(Draw(uid, 6) for uid in world.pool)
    batches = []
    for held in (True, False):
        sources = find_caches(held)
        rng = torch.Generator().manual_seed(5)
        batches.append(
            rolled_out(algorithm.rollout.part, draws, world.engine, world.services, rng).batch
        )
        assert any(sources) == held
    held, anew = batches
    for name in ("id_T", "mask_T", "turn_T", "reward_K", "state_K", "done_K", "truncated_B"):
        assert held[name].equal(anew[name]), name
    assert held.size("K") > held.size("B")
    now = refresh(held, ("logp_old_T", "entropy_old_T"), world.act(algorithm))
    mask_T = now["mask_T"]
    for batch in batches:
        gap = (now["logp_old_T"] - batch["logp_sampler_T"])[mask_T].abs().max()
        assert gap < 1e-4
        assert batch["logp_behavior_T"].allclose(batch["logp_sampler_T"], atol=1e-6)
        assert (now["entropy_old_T"] - batch["entropy_behavior_T"])[mask_T].abs().max() < 1e-4
    assert not batch["logp_sampler_T"][~mask_T].any()
    assert held["length_B"].max() <= world.services.limits.episode_tokens


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_rewards_metrics_and_table_of_a_run(max_staleness, file, runner, tmp_path):
    """The last step is validated, in the process that trains; its rollouts keep their own turns."""
    folder = tmp_path / "run"
    runner.whole(raw(f"{file}:Digits", training={"max_staleness": max_staleness}), folder)
    lines = without_times(folder)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    rows = pq.read_table(folder / "rollouts/step-000003.parquet").to_pylist()
    assert len(rows) == 8
    turns = [json.loads(row["turns"]) for row in rows]
    for row, told in zip(rows, turns, strict=True):
        assert row["reward"] == row["reward/environment"] == sum(t["reward"] for t in told)
        assert len(told) == 3
        assert "".join(t["action"] for t in told) == row["completion"]
        assert told[0]["observation"] == row["prompt"]
        assert told[1]["observation"] == "=1:"
        for turn in told:
            assert turn["measures"] == {"share": turn["reward"], "found": turn["valid"]}
    last = lines[-1]
    assert last["episode/turns_mean"] == 3
    assert last["episode/done_fraction"] == 1
    flat = [t["valid"] for told in turns for t in told]
    assert last["episode/invalid_fraction"] == pytest.approx(1 - sum(flat) / len(flat))
    mean = sum(row["reward"] for row in rows) / 8
    assert last["reward"] == pytest.approx(mean)
    assert last["rewards/environment/mean"] == pytest.approx(mean)
    assert 0 <= last["eval/validation/pass@1"] <= 1


def test_reward_functions_stand_beside_the_environment(file, runner, tmp_path):
    own = tmp_path / "rewards.py"
    own.write_text(
        "def short(completions, seed, **columns):\n"
        "    if seed[0] < 0: raise ValueError\n"
        "    return [None if s % 2 else float(len(c)) for c, s in zip(completions, seed)]\n"
    )
    folder = tmp_path / "run"
    reward = {"functions": [f"{own}:short"], "weights": [0.5]}
    runner.whole(raw(f"{file}:Digits", reward=reward, evaluation={"every": 0}), folder)
    rows = pq.read_table(folder / "rollouts/step-000001.parquet").to_pylist()
    for row in rows:
        other = 0.0 if row["reward/short"] is None else 0.5 * row["reward/short"]
        assert row["scored"]  # a reward function without an opinion takes nothing away
        assert row["reward"] == pytest.approx(row["reward/environment"] + other)


def test_a_reward_function_that_fails_leaves_the_rollout_unscored(file, runner, tmp_path):
    own = tmp_path / "rewards.py"
    own.write_text(
        "def odd(completions, **columns):\n"
        "    if '' in completions: return [0.0] * len(completions)\n"
        "    raise ValueError('never')\n"
    )
    folder = tmp_path / "run"
    reward = {"functions": [f"{own}:odd"]}
    runner.whole(raw(f"{file}:Digits", reward=reward, evaluation={"every": 0}), folder)
    rows = pq.read_table(folder / "rollouts/step-000001.parquet").to_pylist()
    assert not any(row["scored"] for row in rows)
    assert all(row["reward"] == 0 for row in rows)


def test_the_number_of_processes_that_play_changes_nothing(file, runner, tmp_path):
    for workers in (0, 2):
        data = {"task_config": {"forbidden": "7"}, "env_workers": workers}
        runner.whole(raw(f"{file}:Digits", data=data), tmp_path / str(workers))
    told = ("completion", "reward", "exit", "exit_why", "turns")
    tables = [pq.ParquetDataset(tmp_path / name / "rollouts").read().to_pydict() for name in "02"]
    here, two = ({column: table.get(column) for column in told} for table in tables)
    assert here == two
    assert {*here["exit"]} >= {"done", "environment_crash"}


def test_an_environment_that_begins_differently_with_one_seed_is_refused(runner, tmp_path):
    (tmp_path / "loose.py").write_text(
        "import itertools\nfrom strop.environments import Environment, Observation\n"
        "numbers = itertools.count()\n"
        "class Loose(Environment):\n    max_turns, max_tokens = 2, 4\n"
        "    def reset(self, seed): return Observation(f'{next(numbers)}=')\n"
        "    def step(self, action): return Observation('', reward=1.0, done=True)\n"
    )
    loose = raw(f"{tmp_path}/loose.py:Loose", evaluation={"every": 0})
    message = r"Loose does not repeat: the seed \d+ began with '0=' and then with '\d+='"
    with pytest.raises(UserError, match=message):
        runner.start(loose, tmp_path / "run")


def test_rewards_outside_the_declared_range_are_measured_and_warned_of(
    file, runner, tmp_path, monkeypatch, capsys
):
    words = ["train", "grpo", "model.name=tiny", "evaluation.every=0", "training.steps=1",
             "sampling.num_prompts=2", "sampling.num_rollouts=4"]  # fmt: skip
    narrow = tmp_path / "narrow.py"
    narrow.write_text(OWN.replace("(0.0, 3.0)", "(0.0, 0.25)"))
    name, warning = "episode/out_of_range_fraction", "outside `reward_range`"
    for path, told in ((file, False), (narrow, True)):
        folder = tmp_path / path.stem
        done = Strop(monkeypatch, capsys)(*words, f"data.task={path}:Digits", "--out", folder)
        assert (done.code, warning in done.out) == (0, told)
        found = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        assert (0 < found.get(name, 0) <= 1) == (name in found) == told
        doctor = Strop(monkeypatch, capsys)("doctor", folder)
        assert (warning in doctor.out) == told


def test_a_time_limit_of_steps_that_nothing_could_end_is_refused(file, runner, tmp_path):
    limited = raw(f"{file}:Digits", data={"env_timeout_seconds": 5.0})
    with pytest.raises(UserError, match=r"where nothing can end one .*: add data.env_workers=1"):
        runner.start(limited, tmp_path / "here")
    runner.start(raw(f"{file}:Digits", data={"env_timeout_seconds": 5.0, "env_workers": 1}),
                 tmp_path / "apart").close()  # fmt: skip


def test_validation_beside_a_collector_has_the_limits_and_workers_of_the_run(
    file, runner, tmp_path
):
    """The process that trains plays it, and nothing where there is none."""
    data = {"env_timeout_seconds": 5.0, "env_retries": 1}
    ahead = {"training": {"max_staleness": 1}}
    with pytest.raises(UserError, match=r"where nothing can end one .*: add data.env_workers=1"):
        runner.start(raw(f"{file}:Digits", data=data, **ahead), tmp_path / "here")
    data["env_workers"] = 1
    for every in (3, 0):
        settings = raw(f"{file}:Digits", data=data, evaluation={"every": every}, **ahead)
        run = runner.start(settings, tmp_path / str(every))
        episodes = run.world.services.episodes
        assert episodes.limits == CallLimits(1, 5.0)
        assert (episodes.workers is not None) == bool(every)


@pytest.mark.parametrize("limit", ["max_turns", "extension"])
def test_limits_of_an_episode_take_no_schedule(limit, runner, tmp_path):
    settings = raw(algorithm={**SMALL, f"rollout.{limit}": "linear(1, 3)"})
    with pytest.raises(UserError, match=rf"rollout.{limit} is one number for a whole run"):
        runner.start(settings, tmp_path)


@pytest.mark.parametrize("task", ["tool_questions", "corridor + tool_questions"])
def test_of_several_processes_one_plays_for_all(task):
    """A server of tools, or a time limit, could show each of them something else."""
    settings = config.make(raw(task, evaluation={"every": 0}))
    source = settings.data.environment()
    services = SimpleNamespace(
        task=SimpleNamespace(environment=source, agent="", live=None, validations={}),
        episodes=SimpleNamespace(first=None, workers=None),
    )
    ranks = SimpleNamespace(alone=False, from_first=lambda make: make())
    open_environment_workers(settings, services, ranks)
    assert services.episodes.first is ranks.from_first


def test_an_environment_that_raises_costs_its_own_episode(file, runner, tmp_path):
    run = runner.start(
        raw(f"{file}:Digits", data={"task_config": {"forbidden": "7"}}, evaluation={"every": 0},
            training={"steps": 5}), tmp_path / "run",
    )  # fmt: skip
    runner.go(run)
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    shares = [step.get("exit/environment_crash", 0.0) for step in steps]
    assert 0 < max(shares) < 1
    told = r"environment .*Digits failed at the action '.?7.?' in the episode of the seed \d+: Val"
    found = [why for file in (tmp_path / "run" / "rollouts").glob("*.parquet")
             for why in pq.read_table(file).to_pydict().get("exit_why", []) if why]  # fmt: skip
    assert found
    assert all(re.match(told, why) for why in found)


def test_gone_on_with_and_used_on_the_command_line(runner, tmp_path, monkeypatch, capsys):
    two = {"training": {**TRAINING, "steps": 2}}
    runner.whole(raw(**two), tmp_path / "whole")
    broken = runner.start(raw(**two), tmp_path / "broken")
    runner.go(broken, lambda run: setattr(run, "stop_asked", run.done == 1))
    runner.go(runner.resume(tmp_path / "broken"))
    assert without_times(tmp_path / "broken") == without_times(tmp_path / "whole")
    name = "checkpoints/step-000002/model.safetensors"
    assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    strop = Strop(monkeypatch, capsys)
    result = strop(
        "eval", tmp_path / "whole", "--prompts", "3", "--samples", "2", "--k", "1,2", "--json"
    )
    assert result.code == 0, result.err
    assert 0 <= json.loads(result.out)["pass@1"] <= 1
    sampled = strop("sample", tmp_path / "whole", "1,2,3:12=", "-n", "2")
    assert (sampled.code, len(sampled.out.splitlines())) == (0, 2)
    assert sampled.err.rstrip().endswith(f"Whole episodes: strop eval {tmp_path / 'whole'}")
    trusted = strop("sample", tmp_path / "whole", "1,2,3:12=", "-n", "1", "--trust-files").err
    assert trusted.rstrip().endswith(f"strop eval {tmp_path / 'whole'} --trust-files")
    assert "corridor" in strop("doctor", "data.task=corridor").out


COUNTED = """

class Counted(Digits):
    made = closed = 0

    def __init__(self, forbidden=""):
        super().__init__(forbidden)
        Counted.made += 1

    def close(self):
        Counted.closed += 1
"""


@pytest.mark.parametrize("forbidden", ["", "1"])
def test_a_run_makes_environments_when_it_needs_them_and_closes_all(
    file, runner, tmp_path, forbidden
):
    file.write_text(OWN + COUNTED)
    kind = attribute(f"{file}:Counted")
    data = {"task_config": {"forbidden": forbidden}, "heldout_size": 50}
    settings = raw(f"{file}:Counted", data=data, training={"steps": 2}, evaluation={"every": 0})
    run = runner.start(settings, tmp_path / "run")
    at_start = kind.made  # one reads all prompts, one tells the limits
    assert at_start <= 3
    assert len(run.world.services.task.heldout) == 0
    runner.go(run)
    assert kind.closed == kind.made <= at_start + 2 * 8
    with open_model("tiny", task=f"{file}:Counted") as subject:
        assert len(subject.services.task.heldout) == 100
    settings = config.make(raw(f"{file}:Counted", data={"heldout_size": 7}))
    assert len(setup.load_prompts(settings.data, settings.reward).heldout) == 7
    assert kind.closed == kind.made
