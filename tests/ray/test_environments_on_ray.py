"""Episodes on a stage: the same as in one process, whichever actor is lost."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strop.environments.base import EnvironmentSource
from strop.environments.episodes import CallLimits, Episodes
from strop.training.cluster.connect import cpus_each
from strop.training.cluster.environments import workers_on_ray
from strop.training.settings.sections import RaySettings

OWN = '''
from strop.environments.base import Environment, Observation


class Walk(Environment):
    """A place that actions move; over after as many turns as the seed says."""

    max_turns, max_tokens = 7, 3

    shift = 0  # of every process of its own

    def reset(self, seed):
        self.seed, self.place, self.turn = seed, seed % 5, 0
        return Observation(f"{self.place}:")

    def step(self, action):
        if action == "fail":
            raise ValueError("no such way")
        self.turn += 1
        self.place = 3 * self.place + len(action) + self.shift
        return Observation(f"{self.place}:", self.place / 8, self.turn > self.seed % 4)
'''


def test_engines_share_what_the_other_processes_leave():
    class Cluster:
        def cluster_resources(self) -> dict[str, float]:
            return {"CPU": 21.0, "GPU": 1.0}

    settings = RaySettings(
        num_engines=3, num_trainers=2, cpus_per_trainer=2, num_environments=3,
        cpus_per_environment=2, cpus_for_rewards=1,
    )  # fmt: skip
    assert cpus_each(Cluster(), settings) == (21 - 2 * 2 - 3 * 2 - 1) // 3 == 3
    assert cpus_each(Cluster(), settings.model_copy(update={"cpus_per_engine": 4})) == 4
    assert cpus_each(Cluster(), settings.model_copy(update={"num_engines": 20})) == 1


@pytest.fixture
def source(tmp_path: Path) -> EnvironmentSource:
    (tmp_path / "own.py").write_text(OWN)
    return EnvironmentSource(f"{tmp_path / 'own.py'}:Walk")


def shown(episodes: Any, between: Callable[[], None] = lambda: None) -> list[Any]:
    """All that some episodes say, one of which is repeated from its second turn."""
    found, open_now = [episodes.reset()], [0, 1, 2, 3]
    for turn in range(4):
        actions = ["x" * (turn + number % 3) for number in open_now]
        answers = episodes.step(open_now, actions)
        found.append(answers)
        if turn == 0:
            seen = [found[0][3].text, answers[3].text]
            again = episodes.repeat(3, [actions[3]], seen)
            open_now, answers = [*open_now, again], [*answers, answers[3]]
        open_now = [n for n, each in zip(open_now, answers, strict=True) if not each.done]
        between()
    return [found, episodes.max_turns, episodes.max_tokens, episodes.roles, episodes.rewrites]


def test_an_actor_that_is_killed_is_begun_anew(cluster, source):
    settings = RaySettings(address=cluster.address, num_environments=1)
    workers = workers_on_ray(settings, source, CallLimits())
    try:
        killed: list[int] = []

        def kill() -> None:
            if not killed:
                place = workers.workers[0]
                pid = place.ray.get(place.actor.__ray_call__.remote(lambda _: os.getpid()))
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        episodes = workers.play([3, 1, 2, 7])
        assert shown(episodes, kill) == shown(Episodes(source, [3, 1, 2, 7]))
        assert killed
        episodes.close()
    finally:
        workers.close()
