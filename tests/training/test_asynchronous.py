"""Collecting in a process of its own: bounded age, nothing twice, and recovery after a death."""

import json
import math
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from builders import flat_batch
from commands import collectors_copied, forked, launch, lives
from models import without_times
from runs import Runner
from short_runs import make_lab, settings_for

from strop.engines.local.engine import LocalEngine
from strop.support.errors import RunStopped, UserError
from strop.training.collect.asynchronous import AsynchronousCollector, _ages
from strop.training.learner import models
from strop.training.learner.kernel import Tally
from strop.training.learner.step_metrics import compare_with_sampler, effective_share
from strop.training.settings import config

STEPS = 6


def raw_of(lab, recipe="grpo", **training):
    training = {"steps": STEPS, "save_every": 2, "rollouts_every": 1, **training}
    return lab.raw(recipe, reward="even", training=training)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def drawn(folder):
    """Prompts and seeds of every step's rollouts."""
    paths = sorted((folder / "rollouts").glob("*.parquet"))
    return [pq.read_table(path, columns=["step", "uid"]).to_pylist() for path in paths]


@pytest.fixture(scope="module")
def synchronous(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("synchronous") / "run"
    Runner().whole(raw_of(lab), folder)
    return folder


@pytest.fixture(scope="module")
def ahead(lab, tmp_path_factory):
    """A run that is two steps ahead, with the processes and folders that it had."""
    folder = tmp_path_factory.mktemp("ahead") / "run"
    runner, seen = Runner(), set()
    with collectors_copied():
        run = runner.start(raw_of(lab, max_staleness=2), folder)
        apart = run.world.collector
        runner.go(run, lambda run: seen.add((apart.other.process.pid, apart.folder.path)))
    return folder, seen


def test_taking_turns_with_another_process_changes_no_number(lab, runner, tmp_path):
    recipe = "gain_rl(n=linear(4, 2))"  # its sampler learns from batches that were trained on
    runner.whole(raw_of(lab, recipe, steps=4), tmp_path / "one")
    run = runner.start(raw_of(lab, recipe, steps=4), tmp_path / "two")
    run.world.collector = AsynchronousCollector(
        run.config, run.algorithm, run.world.policy, max_staleness=0
    )
    runner.go(run)

    def numbers(name):
        return [
            {k: v for k, v in line.items() if not k.startswith("asynchronous/")
             and k not in ("sampling/oldest_age_steps", "sampling/effective_share")}
            for line in without_times(tmp_path / name)
        ]  # fmt: skip

    assert numbers("one") == numbers("two")
    for path in sorted((tmp_path / "one" / "rollouts").iterdir()):
        assert pq.read_table(path).equals(pq.read_table(tmp_path / "two/rollouts" / path.name))


def test_no_rollout_is_older_than_the_bound_and_some_are_old(ahead):
    ages = [line["sampling/oldest_age_steps"] for line in lines(ahead[0]) if line["step"]]
    assert len(ages) == STEPS
    assert max(ages) <= 2
    assert max(ages) > 0


def test_every_step_trains_on_its_own_prompts_once(ahead, synchronous):
    assert drawn(ahead[0]) == drawn(synchronous)
    assert [line["step"] for line in lines(ahead[0])] == [
        line["step"] for line in lines(synchronous)
    ]


def test_what_was_measured_is_told(ahead):
    for line in lines(ahead[0])[1:]:
        assert 0 <= line["asynchronous/collector_idle"] <= 1
        assert 0 <= line["timing_s/waiting"] <= line["step_time"]
        assert 0 <= line["asynchronous/batches_ready"] <= 3
        assert line["asynchronous/restarts"] == 0
        # Nothing of either where two steps end in one turn of the engine, and this is the second.
        inside = sum(line.get(f"perf/{kind}/seconds", 0.0) for kind in ("decode", "prefill"))
        assert 0 <= inside <= line["perf/collecting_s"]
        assert line["timing_s/rollout"] > 0 or inside == 0
        assert 0 <= line["asynchronous/trainer_idle"] <= 1
        assert 0 <= line["asynchronous/groups_ready"] <= 6
        assert 0 <= line["asynchronous/groups_under_way"] <= 2
        assert 0 < line["sampling/effective_share"] <= 1 + 1e-6
    assert min(line["sampling/effective_share"] for line in lines(ahead[0])[2:]) < 1
    assert sum(line.get("perf/decode/seconds", 0.0) for line in lines(ahead[0])[1:]) > 0


def test_the_effective_share_of_old_tokens():
    """w = (1, 0.5, 2, 0.5) in two passes: (sum w)^2 / (4 sum w^2) = 16 / (4 * 5.5)."""
    tally = Tally()
    for weights in ((1.0, 0.5), (2.0, 0.5, math.nan)):
        logp_T = torch.tensor(weights).log()
        batch = flat_batch([len(weights)], logp_behavior_T=torch.zeros(len(weights)))
        compare_with_sampler(batch, logp_T, tally)
    means = tally.means()
    assert effective_share(means) == pytest.approx(0.727273, abs=1e-6)
    assert means == {}
    assert effective_share({}) == 1


def test_the_age_is_that_of_the_oldest_token_drawn_for_the_step():
    """Older ones were given, replayed, or are no answer's."""
    batch = flat_batch(
        [5], version_T=[3, 5, -1, 0, 1], origin_T=[0, 0, 0, 1, 0],
        mask_T=[True, True, True, True, False],
    )  # fmt: skip
    assert _ages(batch, 7) == {"sampling/oldest_age_steps": 3.0}
    given = batch.set(origin_T=torch.ones(5, dtype=torch.long))
    assert _ages(given, 7) == {}


def test_a_collector_that_dies_or_hangs_is_begun_anew(lab, runner, tmp_path, synchronous):
    """Each time steps are left that need weights of later than then."""
    raw = raw_of(lab, max_staleness=1, collector_timeout_seconds=6.0, steps=STEPS + 1)
    run = runner.start(raw, tmp_path / "run")
    hurt = {1: signal.SIGKILL, 4: signal.SIGSTOP}
    pids = []

    def at_step(run):
        if run.done in hurt:
            guard = run.world.collector.other.process.pid
            children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
            pids.append(int(children[0]))
            os.kill(pids[-1], hurt.pop(run.done))

    runner.go(run, at_step)
    assert drawn(tmp_path / "run")[:STEPS] == drawn(synchronous)
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found if line["step"]] == [*range(1, STEPS + 2)]
    assert found[-1]["asynchronous/restarts"] == 2
    assert max(line["sampling/oldest_age_steps"] for line in found[1:]) <= 1
    end = time.monotonic() + 30
    while any(map(lives, pids)):
        assert time.monotonic() < end
        time.sleep(0.05)


SLOW = """
import time


def slow_even(completions, **columns):
    time.sleep(0.3)
    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]
"""


def leaves_below(pid):
    """Processes that a process started, or those did, that have started none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [leaf for child in children for leaf in leaves_below(child)] or [int(pid)]


def test_reward_workers_that_are_slow_or_killed_cost_no_batch(lab, runner, tmp_path, synchronous):
    (tmp_path / "slow.py").write_text(SLOW)
    raw = raw_of(lab, max_staleness=1)
    raw["reward"] = {"functions": [f"{tmp_path}/slow.py:slow_even"], "num_workers": 1}
    run = runner.start(raw, tmp_path / "run")
    killed = []

    def at_step(run):
        if run.done == 2:
            guard = run.world.collector.other.process.pid
            (collector,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
            killed.extend(leaf for leaf in leaves_below(collector) if leaf != int(collector))
            for worker in killed:
                os.kill(worker, signal.SIGKILL)

    runner.go(run, at_step)
    assert killed
    assert drawn(tmp_path / "run") == drawn(synchronous)
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found] == [line["step"] for line in lines(synchronous)]
    assert found[-1]["asynchronous/restarts"] == 0
    assert found[-1]["rewards/frac_unscored"] == 0  # the worker was replaced


def test_the_process_and_its_files_end_with_the_run(ahead):
    assert len(ahead[1]) == 1
    for pid, folder in ahead[1]:
        assert not Path(f"/proc/{pid}").exists()
        assert not folder.exists()


BROKEN = """
from dataclasses import dataclass
from typing import ClassVar

from strop.support.errors import RunStopped, UserError
from strop.method.part import Result


class NoDraw(UserError):
    pass


@dataclass(frozen=True)
class Refuse:
    kind: ClassVar[str] = "sampling"

    def __call__(self, draws, state):
        if state == 2:
            raise NoDraw("no third draw: give another sampler")
        return Result(draws, state + 1, {})

    def init(self):
        return 0
"""


def test_what_ends_collecting_ends_the_run_with_its_words(lab, runner, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    raw = raw_of(lab, max_staleness=1)
    raw["stages"] = {
        "sampling": ["draw_in_shuffled_order(num_prompts=3)", f"{tmp_path}/broken.py:Refuse"]
    }
    run = runner.start(raw, tmp_path / "run")
    with pytest.raises(UserError, match="no third draw: give another sampler"):
        runner.go(run)
    assert [line["step"] for line in lines(tmp_path / "run")][-1] == 2


def test_a_process_that_keeps_dying_stops_the_run(lab, runner, tmp_path):
    run = runner.start(raw_of(lab, max_staleness=1), tmp_path / "run")
    apart = run.world.collector
    begin, pids = apart.begin, set()

    def begin_and_die(step, state):
        begin(step, state)
        if apart.other.process.pid in pids:
            return
        pids.add(apart.other.process.pid)
        assert [path.name for path in apart.folder.path.iterdir()] == ["000000"]
        (apart.folder.path / "unread").touch()  # as by a process that is not quick enough
        os.killpg(apart.other.process.pid, signal.SIGKILL)

    apart.begin = begin_and_die
    with pytest.raises(RunStopped, match=r"died 3 times in a row \(the process (was|closed)"):
        runner.go(run)
    assert len(pids) == 3


def shares_six_threads(raw, folder):
    torch.set_num_threads(6)
    run = Runner().start(raw, folder)
    assert (run.threads, run.world.collector.threads, torch.get_num_threads()) == (3, 3, 6)
    run.close()
    run = Runner().start({**raw, "threads": 2}, folder.with_name("other"))
    assert (run.threads, run.world.collector.threads, torch.get_num_threads()) == (1, 1, 6)
    run.close()
    with pytest.raises(UserError, match="no model in"):
        Runner().start({**raw, "threads": 2, "model": {"name": "./none"}}, folder.with_name("no"))
    assert torch.get_num_threads() == 6


def test_the_two_processes_share_the_threads(lab, tmp_path):
    """In a process of its own: once there were six, sums are rounded otherwise, also with one."""
    process = forked(shares_six_threads, raw_of(lab, max_staleness=1), tmp_path / "run")
    process.join(120)
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("recipe", "training", "words"),
    [
        ("score_two_attempt", {}, "phases"),
        ("grpo", {"max_staleness": STEPS}, "has only 6 steps"),
        ("sft", {}, "samples nothing"),
    ],
)
def test_what_cannot_be_collected_ahead_is_refused(lab, tmp_path, runner, recipe, training, words):
    with pytest.raises(UserError, match=words):
        runner.start(raw_of(lab, recipe, **{"max_staleness": 1, **training}), tmp_path / "run")


def test_groups_that_had_ended_are_in_the_checkpoint_and_trained_on_once(lab, runner, tmp_path):
    trained: dict[int, list[int]] = {}

    def noting(run):
        collect = run.world.collector.collect

        def noted(world, algorithm, step, *others):
            batch = collect(world, algorithm, step, *others)
            trained[step] = batch["rollout_uid_B"].tolist()
            return batch

        run.world.collector.collect = noted
        return run

    run = noting(runner.start(raw_of(lab, max_staleness=3, save_every=1), tmp_path / "run"))

    def at_step(run):
        run.stop_asked = run.done == 2
        end = time.monotonic() + 120
        while run.stop_asked and not run.world.collector.kept(run.done):
            assert time.monotonic() < end, "no group ended ahead of its step"
            time.sleep(0.01)

    runner.go(run, at_step)
    again = noting(runner.resume(tmp_path / "run"))
    held = {
        (step, *draw): group["columns"]["rollout_uid_B"].tolist()
        for step, groups in again.world.collector.held.items()
        for draw, group in groups.items()
    }
    assert held
    assert min(held)[0] == 3
    runner.go(again)
    for (step, *_), rollouts in held.items():
        assert set(rollouts) <= set(trained[step])
    every = [rollout for rollouts in trained.values() for rollout in rollouts]
    assert len(every) == len(set(every)) == STEPS * 8
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found] == [*range(1, STEPS + 1)]
    assert max(line["sampling/oldest_age_steps"] for line in found) <= 3


@pytest.mark.parametrize("recipe", ["vcpo", "dart"])
def test_what_is_made_for_old_answers_or_keeps_some_runs_ahead(recipe, tmp_path):
    lab = make_lab(tmp_path)
    raw = settings_for(lab, recipe)
    raw["training"] |= {"steps": 5, "max_staleness": 2, "save_every": 1, "rollouts_every": 0}
    runner = Runner()
    run = runner.start(raw, tmp_path / "run")
    runner.go(run, lambda run: setattr(run, "stop_asked", run.done == 2))
    runner.go(runner.resume(tmp_path / "run"))
    found = lines(tmp_path / "run")
    assert [line["step"] for line in found if line["step"]] == [1, 2, 3, 4, 5]
    assert all(line["asynchronous/restarts"] == 0 for line in found if line["step"])
    assert 0 < max(line["sampling/oldest_age_steps"] for line in found if line["step"]) <= 2
    if recipe == "vcpo":
        assert 0 < min(line["ess/lr_scale"] for line in found if line["step"]) <= 1
    if recipe == "dart":
        newest = max((tmp_path / "run" / "checkpoints").iterdir())
        kept = torch.load(newest / "stores.pt", weights_only=True)["files"]
        there = {path.name for path in (tmp_path / "run" / "stores").glob("*.pt")}
        assert {f"{number >> 32:06d}-{number & 0xFFFFFFFF:08x}.pt" for number in kept} <= there


def test_a_vllm_server_samples_for_the_collecting_process(lab, runner, tmp_path):
    from fakes.completions_server import serve, worker

    loaded = models.load(str(lab.model), dtype="float32", device="cpu")
    engine = LocalEngine(loaded.model, loaded.tokenizer, num_slots=16)
    with serve(engine, len(loaded.tokenizer), told="drawn") as served:
        served.worker = worker
        raw = raw_of(lab, max_staleness=1, steps=4)
        raw["engine"] = {"kind": "vllm", "url": served.url, "folder": str(tmp_path)}
        run = runner.start(raw, tmp_path / "run")
        assert type(run.world.engine) is LocalEngine  # of the trainer, for its validations
        runner.go(run)
        orders = list(served.orders)
    found = lines(tmp_path / "run")
    assert orders.count("strop_load_weights") >= 3
    assert list(tmp_path.glob("strop-weights-*")) == []
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    assert max(line["sampling/oldest_age_steps"] for line in found) <= 1


def test_one_kind_of_age_at_a_time(lab, runner, tmp_path):
    raw = raw_of(lab, max_staleness=1)
    raw["engine"] = {"staleness": 1}
    with pytest.raises(UserError, match=r"engine\.staleness: give one of the two"):
        runner.start(raw, tmp_path / "run")


def test_a_killed_trainer_takes_the_process_with_it_and_goes_on(lab, runner, tmp_path, synchronous):
    # So many steps that it is killed on its way.
    settings = config.make(raw_of(lab, max_staleness=1, save_every=1, steps=1000)).to_toml()
    (tmp_path / "run.toml").write_text(settings)
    words = ["train", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    trainer = launch(words, tmp_path / "output")
    metrics = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 600
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert time.monotonic() < end
        assert trainer.is_alive(), (tmp_path / "output").read_text()
        time.sleep(0.01)
    children = Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split()
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.join()
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < end
        time.sleep(0.1)
    again = runner.resume(tmp_path / "run")
    first = again.done
    assert 0 < first < 1000

    def at_step(run):
        run.stop_asked = run.done == max(first, STEPS) + 2

    runner.go(again, at_step)
    found = [line["step"] for line in lines(tmp_path / "run")]
    assert found == list(range(1, max(first, STEPS) + 3))
    assert drawn(tmp_path / "run")[:STEPS] == drawn(synchronous)
