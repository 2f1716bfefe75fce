"""Which failures stop a run, which do not, and what is left afterwards."""

import asyncio
import json
import math
from types import SimpleNamespace

import pytest
import torch
from commands import Strop, launch
from models import without_times

from strop.environments.agents import Agents
from strop.environments.episodes import CallLimits
from strop.support.errors import RunStopped, UserError
from strop.training import loop
from strop.training.learner.policy import clipped_step
from strop.training.record import checkpoint, ending
from strop.training.record.lock import in_use
from strop.training.services.agents import Episode

BOUNDS = '''
from dataclasses import dataclass
from torch import Tensor


@dataclass(frozen=True)
class NotANumber:
    """nan at the second step."""

    kind = "loss/bound"

    def __call__(self, log_ratio_T: Tensor, advantage_T: Tensor, step: Tensor) -> Tensor:
        return log_ratio_T.exp() * advantage_T * (float("nan") if step == 2 else 1.0)


@dataclass(frozen=True)
class SteepRoot:
    """At the second step a finite loss with an infinite gradient: the root at 0."""

    kind = "loss/bound"

    def __call__(self, log_ratio_T: Tensor, advantage_T: Tensor, step: Tensor) -> Tensor:
        if step == 2:
            return (log_ratio_T - log_ratio_T.detach()).sqrt() * advantage_T
        return log_ratio_T.exp() * advantage_T
'''
REWARD = '''
import os
import time


def partly(completions, **columns):
    """Fails for about every third answer."""
    scores = []
    for text in completions:
        kind = sum(map(ord, text)) % 3
        if text and kind == 1:
            {what}
        scores.append(float(kind))
    return scores


def nan_at_two(completions, trainer_state, **columns):
    return [float("nan") if trainer_state.global_step == 2 else 1.0] * len(completions)


def nan_from_one(completions, trainer_state, **columns):
    return [float("nan") if trainer_state.global_step else 1.0] * len(completions)
'''


@pytest.fixture
def strop(monkeypatch, capsys):
    return Strop(monkeypatch, capsys)


@pytest.fixture
def rewards(tmp_path):
    """Writes the reward file; `what` is done for some of the answers."""

    def write(what="raise ValueError('[/no] answer')"):
        path = tmp_path / "given.py"
        path.write_text(REWARD.replace("{what}", what))
        return path

    return write


def steps_of(folder):
    return [line["step"] for line in without_times(folder)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NotANumber", "step 2: the loss of the term policy is nan"),
        ("SteepRoot", "step 2: the gradient is not finite"),
    ],
)
def test_numbers_that_are_not_finite_stop_the_run(name, message, strop, lab, tmp_path):
    bounds, folder = tmp_path / "bounds.py", tmp_path / "run"
    bounds.write_text(BOUNDS)
    result = strop("train", *lab.arguments("--bound", f'"{bounds}:{name}"'), "--out", folder)
    assert result.code == 1
    assert message in result.err
    assert f"Resume with: strop train --resume {folder}" in result.err
    assert result.err.count("\n") == 1
    assert steps_of(folder) == [1]
    saved = checkpoint.newest(folder / "checkpoints")
    assert saved.name == "step-000001"
    bounds.write_text(BOUNDS.replace("step == 2", "step == 99"))
    result = strop("train", "--resume", folder)
    assert result.code == 0, result.err
    assert steps_of(folder) == [1, 2, 3]


WHOLE = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class RoundToWhole:
    """A part whose result is a whole number, which the next one reads as if nothing were amiss."""

    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B.round().long()
'''


def test_the_part_whose_tensor_is_not_what_its_column_says_is_named(strop, lab, tmp_path):
    (tmp_path / "whole.py").write_text(WHOLE)
    chain = f'advantage=subtract_group_mean | "{tmp_path}/whole.py:RoundToWhole" | spread_evenly'
    result = strop("train", *lab.arguments(chain, "training.steps=1"), "--out", tmp_path / "run")
    assert result.code == 2
    assert "part round_to_whole gives advantage_B as int64, it must be float" in result.err
    assert result.err.count("\n") == 1


RAISES = """
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


def helper(values):
    return {}["missing"]


@dataclass(frozen=True)
class Raises:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return helper(advantage_B)


@dataclass(frozen=True)
class Later:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B

    def observe(self, reward_B: Tensor, state):
        return helper(reward_B)
"""


@pytest.mark.parametrize("part", ["Raises", "Later"])
def test_the_traceback_of_an_error_in_an_own_part_has_that_parts_code_alone(
    part, strop, lab, tmp_path
):
    (tmp_path / "raises.py").write_text(RAISES)
    chain = f'advantage="{tmp_path}/raises.py:{part}" | spread_evenly'
    result = strop("train", *lab.arguments(chain), "--out", tmp_path / "run")
    assert result.code == 1
    places = [line for line in result.err.splitlines() if line.startswith("  File ")]
    assert [line.split(", ")[0] for line in places] == 2 * [f'  File "{tmp_path}/raises.py"']
    assert result.err.endswith(
        "KeyError: 'missing'\n"
        f"The part {part.lower()} raised this: {tmp_path}/raises.py:9, step 1\n"
    )


STRATEGY = """
from dataclasses import dataclass
from typing import ClassVar

from strop.parts.rollout.base import COLUMNS, SamplingFields


@dataclass(frozen=True)
class Rolls(SamplingFields):
    kind: ClassVar[str] = "rollout"
    writes: ClassVar[tuple[str, ...]] = COLUMNS
    early: bool = True

    async def __call__(self, draws, engine, texts, sampling, rng):
        answers = await engine.generate_all(self.requests(draws, texts, sampling, rng))
        if self.early:
            return answers, None
        return {}["missing"]
"""


def test_an_error_of_a_strategy_names_it_with_its_code_alone(strop, lab, tmp_path):
    (tmp_path / "rolls.py").write_text(STRATEGY)
    words = lab.arguments(f'rollout="{tmp_path}/rolls.py:Rolls"(early=false)')
    result = strop("train", *words, "--out", tmp_path / "run")
    assert result.code == 1
    assert result.err.count("  File ") == 1
    assert result.err.endswith(
        f"KeyError: 'missing'\nThe part rolls raised this: {tmp_path}/rolls.py:18\n"
    )
    words = lab.arguments(f'rollout="{tmp_path}/rolls.py:Rolls"')
    result = strop("train", *words, "--out", tmp_path / "other")
    assert result.code == 2
    assert "the strategy returned list; it returns its batch and its state" in result.err


SPOILS = """
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Spoil:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, advantage_B: Tensor) -> Tensor:
        return advantage_B * float("nan")
"""


def test_the_part_that_first_gives_no_number_is_named(strop, lab, tmp_path):
    (tmp_path / "spoils.py").write_text(SPOILS)
    chain = f'advantage=subtract_group_mean | "{tmp_path}/spoils.py:Spoil" | spread_evenly'
    result = strop("train", *lab.arguments(chain), "--out", tmp_path / "run")
    assert result.code == 1
    first = "step 1: advantage: spoil is the first part whose advantage_B is not finite; the loss"
    assert first in result.err
    assert "No step is saved: first correct what stopped it. Resume with" in result.err
    metrics = tmp_path / "run/metrics.jsonl"
    for before in (None, '{"step": 0, "eval/validation/pass@1": 0.5}\n'):
        if before:  # of a validation before the first step
            metrics.write_text(before)
        result = strop("doctor", tmp_path / "run")
        assert result.code == 2
        assert "has no finished step: it stopped: step 1: " in result.err


COUNTS = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from strop.method.part import Result


@dataclass(frozen=True)
class Count:
    kind: ClassVar[str] = "advantage/baseline"
    odd_from: int = 1

    def init(self) -> int:
        return 0

    def __call__(self, advantage_B: Tensor, state: int) -> Result:
        kind = np.int64 if state + 1 >= self.odd_from else int
        return Result(advantage_B * 1.0, kind(state + 1))
"""


def test_a_state_that_no_checkpoint_could_be_read_with_is_refused(runner, lab, tmp_path):
    """Early, before many steps without a checkpoint; and each checkpoint that is written is one."""
    (tmp_path / "counts.py").write_text(COUNTS)
    own = f'subtract_group_mean | "{tmp_path}/counts.py:Count"(odd_from={{}}) | spread_evenly'
    words = r"the state of advantage\.count has a numpy\.int64, which cannot be kept in a"
    for odd_from, saved in ((1, []), (3, ["step-000002"])):
        stages = {"advantage": own.format(odd_from)}
        folder = tmp_path / f"run-{odd_from}"
        run = runner.start(lab.raw(stages=stages, training={"steps": 5, "save_every": 2}), folder)
        with pytest.raises(UserError, match=words):
            runner.go(run)
        assert [path.name for path in checkpoint.complete(folder / "checkpoints")] == saved
    assert run.done == 2
    assert runner.resume(folder).done == 2


SAYS = """
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result


@dataclass(frozen=True)
class SayReward:
    kind: ClassVar[str] = "advantage/baseline"

    def __call__(self, advantage_B: Tensor) -> Result:
        return Result(advantage_B * 1.0, metrics={"reward": 7.0})
"""


def test_a_metric_with_the_name_of_a_steps_own_is_refused(strop, lab, tmp_path):
    (tmp_path / "says.py").write_text(SAYS)
    chain = f'advantage=subtract_group_mean | "{tmp_path}/says.py:SayReward" | spread_evenly'
    result = strop("train", *lab.arguments(chain), "--out", tmp_path / "run")
    assert result.code == 2
    assert "part say_reward gives the metric reward, which every step has of its own" in result.err


def test_two_parts_that_give_one_metric_are_named(strop, lab, tmp_path):
    first = SAYS.replace('"reward": 7.0', '"mine/x": 7.0')
    (tmp_path / "first.py").write_text(first)
    (tmp_path / "second.py").write_text(first.replace("SayReward", "SayToo"))
    own = f'"{tmp_path}/first.py:SayReward" | "{tmp_path}/second.py:SayToo"'
    chain = f"advantage=subtract_group_mean | {own} | spread_evenly"
    result = strop("train", *lab.arguments(chain), "--out", tmp_path / "run")
    assert result.code == 2
    assert "the parts say_reward and say_too both give the metric mine/x" in result.err


@pytest.mark.parametrize("rate", ["1e300", "'linear(0.01, 1e300)'"])
def test_a_learning_rate_without_bounds_stops_the_run(rate, strop, lab, tmp_path):
    folder = tmp_path / "run"
    words = lab.arguments(f"training.lr={rate}", "--out", str(folder))
    result = strop("train", *words)
    assert result.code == 1
    # a curve over the run begins with its start
    assert f"step {1 + ('linear' in rate)}: the learning rate is " in result.err
    assert result.err.count("\n") == 1
    assert (folder / "metrics.jsonl").exists() == ("linear" in rate)
    assert (folder / "checkpoints").exists() == ("linear" in rate)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_spoilt_weights_are_never_saved(value, runner, lab, tmp_path):
    folder, whole = tmp_path / "run", tmp_path / "whole"
    runner.whole(lab.raw(), whole)

    def spoil(run):
        if run.done == 2:
            next(run.world.policy.parameters()).data.view(-1)[5] = value

    run = runner.start(lab.raw(training={"save_every": 1}), folder)
    with pytest.raises(RunStopped, match=r"step 2 is not saved: a weight is not finite"):
        runner.go(run, spoil)
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["step-000001"]
    runner.go(runner.resume(folder))
    assert without_times(folder) == without_times(whole)


def test_a_step_that_spoils_a_weight_says_so():
    weight = torch.nn.Parameter(torch.full((3,), 3.4e38))
    optimiser = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.tensor([0.0, -1e9, 0.0])
    with pytest.raises(RunStopped, match=r"a weight is not finite; lower training\.lr"):
        clipped_step(optimiser, 1e29, 1e9, "training.lr")


def test_a_reward_that_fails_for_some_answers_counts_what_on_failure_says(
    strop, lab, rewards, tmp_path
):
    folder = tmp_path / "run"
    words = lab.arguments("--out", str(folder))
    words[words.index("--reward") + 1] = f"{rewards()}:partly"
    result = strop("train", *words)
    assert result.code == 0, result.err
    assert result.out.count("a reward function failed") == 1
    assert "ValueError: [/no] answer" in result.out
    lines = without_times(folder)
    assert steps_of(folder) == [1, 2, 3]
    assert any(line.get("exit/exception", 0) > 0 for line in lines)
    assert all(math.isfinite(value) for line in lines for value in line.values())


@pytest.mark.parametrize("what", ["os._exit(3)", "time.sleep(60)"])
def test_a_reward_that_crashes_or_hangs_costs_its_rows_only(what, runner, lab, rewards, tmp_path):
    raw = lab.raw(training={"steps": 1})
    raw["reward"] = {"functions": [f"{rewards(what)}:partly"], "timeout_seconds": 0.2}
    raw["algorithm"]["sampling.num_prompts"] = 1
    run = runner.start(raw, tmp_path / "run")
    runner.go(run)
    (line,) = without_times(tmp_path / "run")
    cause = "timeout" if "sleep" in what else "crash"
    assert 0 < line[f"exit/{cause}"] < 1
    assert line["rewards/frac_unscored"] == 0  # they count reward.on_failure
    causes = {failure.cause.label for failure in run.world.services.grading.failures}
    assert causes == {cause}


def test_a_step_at_which_a_reward_is_no_number_has_no_score_and_says_whose_fault_it_is(
    strop, lab, rewards, tmp_path
):
    folder, path = tmp_path / "run", rewards()
    raw = lab.arguments("--out", str(folder))
    raw[raw.index("--reward") + 1] = f"{path}:nan_at_two"
    result = strop("train", *raw)
    assert result.code == 0, result.err
    bugs = [line.get("exit/reward_bug", 0.0) for line in without_times(folder)]
    assert bugs == [0.0, 1.0, 0.0]
    assert without_times(folder)[1]["rewards/frac_unscored"] == 1


def test_a_reward_that_is_wrong_from_the_first_answer_stops_the_run_after_five_steps(
    strop, lab, rewards, tmp_path
):
    folder = tmp_path / "runs/one"
    raw = lab.arguments("training.steps=7", "--out", str(folder))
    raw[raw.index("--reward") + 1] = f"{rewards()}:nan_from_one"
    result = strop("train", *raw)
    assert result.code == 1
    assert "nan_from_one returned nan" in result.err
    assert steps_of(folder) == [1, 2, 3, 4, 5]


def test_a_run_that_the_watcher_stops_saves_its_steps_first(runner, lab, tmp_path):
    def stop(run):
        if run.done == 2:
            raise RunStopped("75% of 20 steps' answers have no score")

    run = runner.start(lab.raw(), tmp_path / "run")
    with pytest.raises(RunStopped, match="75% of 20 steps"):
        runner.go(run, stop)
    assert "75% of 20 steps" in ending.read(tmp_path / "run").why
    resumed = runner.resume(tmp_path / "run")
    assert resumed.done == 2
    runner.go(resumed)
    runner.whole(lab.raw(), tmp_path / "whole")
    assert without_times(tmp_path / "run") == without_times(tmp_path / "whole")


def test_memory_that_runs_out_names_the_settings_that_need_less(
    runner, strop, lab, tmp_path, monkeypatch
):
    real = loop.train_step

    def full(world, method, state, step, *others):
        if step == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(world, method, state, step, *others)

    monkeypatch.setattr(loop, "train_step", full)
    run = runner.start(lab.raw(training={"steps": 3, "save_every": 1}), tmp_path / "run")
    with pytest.raises(RunStopped, match=r"step 2: CUDA out of memory.*training\.token_budget"):
        runner.go(run)
    monkeypatch.undo()
    less = ("training.token_budget=64", "training.num_slots=4", "training.keep_checkpoints=1")
    assert strop("train", "--resume", tmp_path / "run", *less).code == 0
    assert len(checkpoint.complete(tmp_path / "run" / "checkpoints")) == 1
    runner.whole(lab.raw(training={"steps": 3, "save_every": 1}), tmp_path / "whole")
    one, two = (without_times(tmp_path / name)[-1] for name in ("run", "whole"))
    assert one["reward"] == two["reward"]
    assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("room", ["nothing", "all but the optimiser"])
def test_a_full_disk_stops_the_run_with_the_last_checkpoint_whole(room, lab, tmp_path):
    folder, output = tmp_path / "run", tmp_path / "output"
    words = ["train", *lab.arguments("--out", str(folder))]
    started = launch([*words, "training.steps=1"], output)
    started.join()
    assert started.exitcode == 0, output.read_text()
    place = folder / "checkpoints/step-000001"
    weights = (place / "model.safetensors").stat().st_size
    limit = {"nothing": 512, "all but the optimiser": weights + 4096}[room]
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    output.unlink()
    limited = launch(["train", "--resume", folder, "training.steps=3"], output, limit)
    limited.join()
    said = output.read_text()
    assert limited.exitcode == 1, said
    assert "Traceback" not in said
    assert f"could not be written to {folder}" in said.replace("\n", "")
    assert "no room, " in said
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]
    free = launch(["train", "--resume", folder, "training.steps=3"], output)
    free.join()
    assert free.exitcode == 0, output.read_text()
    assert steps_of(folder) == [1, 2, 3]


def test_the_metrics_stay_valid_json(tmp_path):
    from strop.training.record.run_folder import Record

    record = Record(tmp_path)
    record.metrics(1, {"good": 1.5, "bad": math.nan, "huge": math.inf})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    strict = json.loads(line, parse_constant=pytest.fail)
    assert strict == {"step": 1, "good": 1.5, "bad": None, "huge": None}


def test_a_reward_that_raises_whatever_it_is_given_is_told_before_step_1(lab, runner, tmp_path):
    """One that raises on empty answers alone, or on some rows, is not."""
    rewards = tmp_path / "raising.py"
    rewards.write_text(
        "def always(completions, **columns):\n    raise RuntimeError('it is broken')\n"
        "def empty(completions, **columns):\n    return [float(len(t) / ord(t[0])) for t in "
        "completions]\n"
    )
    functions = [f"{rewards}:always", f"{rewards}:empty"]
    run = runner.start({**lab.raw(), "reward": {"functions": functions}}, tmp_path / "run")
    told = [note for note in run.world.services.notes if "before step 1" in note]
    assert len(told) == 1
    assert "the reward function always failed on all answers that it was given" in told[0]
    assert "RuntimeError: it is broken" in told[0]
    assert told[0].endswith("the run stops in its first steps")  # nothing about messages


@pytest.mark.parametrize("place", ["reward", "evaluation"])
def test_a_judge_that_does_not_answer_before_step_1_is_refused(lab, runner, tmp_path, place):
    judge = tmp_path / "strict.toml"
    judge.write_text(
        'base_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nprompt = "{completion}"\n'
        "score = '(1)'\nretries = 0\n"
    )
    raw = lab.raw()
    if place == "reward":
        raw["reward"] = {"functions": [f"judge:{judge}"]}
    else:
        raw["evaluation"] = {**raw.get("evaluation", {}), "reward": f"judge:{judge}"}
    told = r"reward strict could score no answer before step 1: .*refused\. Start its server"
    with pytest.raises(UserError, match=told):
        runner.start(raw, tmp_path / "run")


def test_an_interrupt_while_a_run_is_closed_leaves_nothing_open(lab, runner, tmp_path, monkeypatch):
    closed = []

    def interrupted():
        closed.append("grader")
        raise KeyboardInterrupt

    run = runner.start(lab.raw("grpo"), tmp_path / "run")
    world, services = run.world, run.world.services
    grader = services.grading.grader
    monkeypatch.setattr(services.grading, "grader", SimpleNamespace(close=interrupted))
    monkeypatch.setattr(services.live, "close", lambda: closed.append("live"))
    monkeypatch.setattr(world.engine, "close", lambda: closed.append("engine"))
    with pytest.raises(KeyboardInterrupt):
        run.close()
    grader.close()
    assert closed == ["grader", "live", "engine"]
    assert not in_use(tmp_path / "run")


def test_an_episode_that_is_cancelled_while_it_ends_leaves_later_ones_as_they_are(tmp_path):
    file = tmp_path / "sleeps.py"
    file.write_text("import time\n\n\ndef play(row):\n    time.sleep(row['seconds'])\n")
    agents = Agents(f"{file}:play")

    async def play():
        episode = Episode("key", CallLimits())
        episode.start(agents, {"seconds": 60}, "")
        try:
            await episode.next()
        finally:
            await episode.end()

    async def cancelled_twice():
        task = asyncio.ensure_future(play())
        while not agents.running:
            await asyncio.sleep(0.01)
        for _ in range(2):  # by the strategy, of which another episode fails, and by its loop
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled_twice())
    assert agents.begin({"seconds": 0}, {}).ended.result(30).kind == "returned"
    agents.close()
