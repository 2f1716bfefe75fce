"""Runs whose engines are Ray actors: the numbers of a run in one process, whichever is killed."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from commands import collectors_copied
from models import Lab, without_times
from runs import Runner

from strop.engines.base import Request
from strop.support.errors import RunStopped, UserError
from strop.training.cluster import engine_worker
from strop.training.cluster.engine_worker import EngineWorker
from strop.training.settings import config

STEPS = 5
OWN = """
from pathlib import Path

from strop.environments.base import Environment, Observation


class Count(Environment):
    \"\"\"Two turns; tells what its process is called.\"\"\"

    max_turns, max_tokens = 2, 4

    def __init__(self, told):
        self.told = Path(told)

    def reset(self, seed):
        self.turns = 0
        return Observation(f"{seed % 10}:")

    def step(self, action):
        with self.told.open("a") as file:
            file.write(Path("/proc/self/cmdline").read_text().strip("\\0") + "\\n")
        self.turns += 1
        found = sum(c.isdigit() for c in action)
        return Observation(f"={found}:", found / 4, self.turns == 2)
"""


def raw_of(lab: Lab, cluster: Any = None, steps: int = STEPS, **ray: Any) -> dict[str, Any]:
    """Plain answers."""
    training = {"steps": steps, "save_every": 2, "num_slots": 8}
    raw = lab.raw("grpo", reward="even", training=training, evaluation={"every": steps})
    if cluster is not None:
        raw["ray"] = {"address": cluster.address, "cpus_per_engine": 1, **ray}
    return raw


@pytest.fixture(scope="module")
def here(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in this process alone."""
    folder = tmp_path_factory.mktemp("here") / "run"
    Runner().whole(raw_of(lab), folder)
    return folder


def answers(folder: Path) -> list[Any]:
    paths = sorted((folder / "rollouts").glob("*.parquet"))
    return [pq.read_table(path).select(["step", "uid", "completion"]) for path in paths]


def hurt(run: Any, number: int, how: signal.Signals) -> None:
    """Let the process of an engine be hurt once in the next step: killed with requests under way,
    or stopped just before it gets some, so that it owes an answer.
    """
    workers, place = run.world.engine.workers, run.world.engine.places[number]
    exchange = workers.exchange

    def exchanging(orders: Any, busy: set[int], wait: float, behind: set[int]) -> Any:
        if number in (orders if how == signal.SIGSTOP else busy):
            if how == signal.SIGKILL:
                exchange(orders, busy, 0, behind)
                orders = {}
            os.kill(place[1], how)
            workers.exchange = exchange
        return exchange(orders, busy, wait, behind)

    workers.exchange = exchanging


def test_one_engine_gives_the_numbers_of_the_run_in_one_process(
    lab, cluster, here, runner, tmp_path
):
    """The rewards are graded in an actor as well."""
    run = runner.start(raw_of(lab, cluster, cpus_for_rewards=1), tmp_path / "run")
    runner.go(run)
    assert without_times(tmp_path / "run") == without_times(here)
    for one, other in zip(answers(here), answers(tmp_path / "run"), strict=True):
        assert one.equals(other)


def test_engines_that_are_killed_hang_or_lose_their_node_change_no_token(
    lab, cluster, here, runner, tmp_path
):
    """New weights are broadcast to the engines that are there."""
    raw = raw_of(lab, cluster, num_engines=2, timeout_seconds=6.0, weights="broadcast")
    run = runner.start(raw, tmp_path / "run")
    engine = run.world.engine
    assert len(set(engine.places)) == 2
    had: list[set[int]] = []
    hurts = {1: (0, signal.SIGKILL), 2: (1, signal.SIGSTOP)}

    def at_step(run: Any) -> None:
        had.append({seat.staged for seat in engine.workers.seats})
        if run.done in hurts:
            hurt(run, *hurts.pop(run.done))
        if run.done == 3:
            while not all(engine.alive.values()):  # what hung is restarted, and lost once more
                engine._exchange()
            cluster.remove_node(cluster.second, allow_graceful=False)

    runner.go(run, at_step)
    cluster.second = cluster.add_node(num_cpus=1)
    assert had[0] == {-1}  # nothing is new before the first step
    assert had[1] == {1}
    assert had[-1] != {-1}
    # One that is hurt at each of two steps; one more where the node that is lost has one by then.
    assert engine.lost >= 2
    for one, other in zip(answers(here), answers(tmp_path / "run"), strict=True):
        assert one.equals(other)
    lines = [without_times(folder) for folder in (here, tmp_path / "run")]
    for one, other in zip(*lines, strict=True):
        assert one.keys() == other.keys()
        assert {k: v for k, v in other.items() if v is not None} == pytest.approx(
            {k: v for k, v in one.items() if v is not None}, rel=1e-4, abs=1e-6
        )


def test_an_engine_works_in_the_folder_of_the_command_and_by_its_operators(
    lab, tmp_path, monkeypatch
):
    monkeypatch.chdir(lab.model.parent)
    chosen = []
    monkeypatch.setattr(engine_worker, "use_deterministic_operators", lambda: chosen.append(True))
    raw = raw_of(lab)
    raw["model"]["name"], raw["training"]["full_determinism"] = lab.model.name, True
    settings = config.make(raw).model_dump()
    monkeypatch.chdir(tmp_path)
    EngineWorker(settings, torch.get_num_threads(), str(lab.model.parent), []).open("one")
    assert chosen == [True]


def test_an_engine_heeds_who_has_opened_it_last_and_forgets_what_others_asked(lab):
    member = EngineWorker(config.make(raw_of(lab)).model_dump(), torch.get_num_threads(), ".", [])
    assert member.turn("one", [], None, 0) is None  # a new process, which is to be opened
    member.open("one")
    asked = [Request((4, 5), 3, seed=1, keep=True), Request((4, 5), 20, seed=2)]
    member.turn("one", [("start", 7 + n, each, None) for n, each in enumerate(asked)], None, 0)
    assert (member.turns.open, [*member.turns.engine.known]) == ({8}, [7, 8])
    member.open("two")
    assert (member.turns.open, [*member.turns.engine.known]) == (set(), [])
    with pytest.raises(RunStopped, match="another process has this engine by now"):
        member.turn("one", [], None, 0)
    found = member.turn("two", [("start", 7, Request((4, 5), 3, seed=1), None)], None, 0)
    assert {event.request for event in found.events} == {7}


def test_a_process_that_collects_has_engines_and_environments_of_its_own(
    lab, cluster, runner, tmp_path
):
    """The engine ends what it has begun with the weights of then."""
    raw = raw_of(lab, cluster, steps=4, num_environments=1)
    raw["training"] |= {"max_staleness": 1, "renew_between_tokens": False}
    raw["evaluation"] = {"every": 0}
    (tmp_path / "own.py").write_text(OWN)
    told = tmp_path / "told"
    raw["data"] = {
        "task": f"{tmp_path / 'own.py'}:Count", "task_config": {"told": str(told)},
        "train_size": 8, "validation_size": 2,
    }  # fmt: skip
    del raw["reward"]
    with collectors_copied():
        runner.whole(raw, tmp_path / "run")
    assert {words for words in told.read_text().split("\n") if words} == {
        "ray::EpisodeHostOnRay.step"
    }
    lines = without_times(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert {line["sampling/oldest_age_steps"] for line in lines} <= {0.0, 1.0}
    assert lines[-1]["asynchronous/restarts"] == 0


def test_what_a_cluster_cannot_do_is_refused(lab, cluster, tmp_path):
    import ray as connected

    from strop.training import loop

    refused = {
        "3 CPUs and the cluster has 2": {"num_engines": 3},
        "GPUs and the cluster has 0": {"gpus_per_engine": 1.0},
        "cpus_for_rewards=7, and the cluster has 2": {"cpus_for_rewards": 7},
    }
    until = time.monotonic() + 120  # a lost node counts until Ray has noticed
    while connected.cluster_resources()["CPU"] != 2 and time.monotonic() < until:
        time.sleep(0.5)
    for why, ray in refused.items():
        with pytest.raises(UserError, match=why):
            loop.start(config.make(raw_of(lab, cluster, **ray)), tmp_path / "run")
    for address in ("nowhere", "ray://host:1", ":1", "host:port"):
        with pytest.raises(UserError, match=r"ray\.address = .* give local, auto, or host:port"):
            config.make({"ray": {"address": address}})
    raw = raw_of(lab, cluster)
    raw["engine"] = {"staleness": 1}
    with pytest.raises(UserError, match=r"engine\.staleness on Ray"):
        loop.start(config.make(raw), tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()
