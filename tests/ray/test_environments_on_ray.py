"""Episodes on a stage: what those of one process show, whoever of the actors is lost."""

import itertools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strop.environments.base import EnvironmentSource
from strop.environments.episodes import Episodes
from strop.support.errors import RunStopped
from strop.support.processes import Restarts
from strop.training.cluster.environments import RayEpisodes, Stage, There, open_stage
from strop.training.parallel.ranks import Ranks
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


class HereStage:
    """A stage of this process. lost(call): whether an actor is lost at its call of that number."""

    def __init__(self, lost: Callable[[int], bool], count: int = 2) -> None:
        self.is_lost, self.calls = lost, 0
        self.restarts = [Restarts("it was lost") for _ in range(count)]
        self.made = [There(".", []) for _ in range(count)]
        self.turns = itertools.cycle(range(count))
        self.actors = [self.actor(at) for at in range(count)]

    def actor(self, at: int) -> Any:
        def step(*given: Any) -> Any:
            return lambda: self.made[at].step(*given)

        return SimpleNamespace(step=SimpleNamespace(remote=step))

    def play(self, at: int, *given: Any) -> Any:
        return lambda: self.made[at].play(*given)

    def heard(self, at: int, ref: Any, limit: float = 0.0) -> Any:
        self.calls += 1
        if self.is_lost(self.calls):
            self.made[at] = There(".", [])
            return None
        return ref()


@pytest.fixture
def source(tmp_path: Path) -> EnvironmentSource:
    (tmp_path / "own.py").write_text(OWN)
    return EnvironmentSource(f"{tmp_path / 'own.py'}:Walk")


def on_stage(stage: Any, source: EnvironmentSource, seeds: list[int]) -> RayEpisodes:
    return RayEpisodes(stage, lambda make: make(), source, seeds)


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


@pytest.mark.parametrize("seed", range(4))
def test_what_is_lost_is_begun_again_and_says_the_same(source, seed):
    chance = random.Random(seed)
    last = [0]

    def lost(call: int) -> bool:  # not three times in a row
        if call - last[0] > 1 and chance.random() < 0.3:
            last[0] = call
            return True
        return False

    assert shown(on_stage(HereStage(lost), source, [3, 1, 2, 7])) == shown(
        Episodes(source, [3, 1, 2, 7])
    )
    assert last[0]


def test_an_environment_that_fails_or_does_not_repeat_stops_the_run(source):
    episodes = on_stage(HereStage(lambda call: call == 3), source, [3, 7])
    (shown,) = episodes.step([1], ["fail"])
    assert "the action 'fail' in the episode of the seed 7" in shown.why
    episodes = on_stage(HereStage(lambda call: call == 3, 1), source, [3, 7])
    episodes.step([0, 1], ["a", "b"])
    with source.opened() as made:
        type(made).shift = 1
    with pytest.raises(RunStopped, match="does not repeat: in the episode of the seed 3"):
        episodes.step([0, 1], ["a", "b"])


def test_a_process_that_dies_of_its_work_ends_the_run():
    class Lost(Exception):
        pass

    def lost(ref: Any, timeout: float) -> Any:
        raise Lost("killed")

    kinds = SimpleNamespace(RayTaskError=KeyError, GetTimeoutError=TimeoutError, RayError=Lost)
    stage = Stage.__new__(Stage)
    stage.ray, stage.limit = SimpleNamespace(get=lost, exceptions=kinds), 5.0
    stage.restarts = [Restarts(f"environment {number} was lost") for number in range(2)]
    for number in (0, 0, 1):
        assert stage.heard(number, None) is None
    with pytest.raises(RunStopped, match=r"environment 0 was lost 3 times in a row \(killed\)"):
        stage.heard(0, None)


def test_an_actor_that_is_killed_is_begun_anew(cluster, source):
    settings = RaySettings(address=cluster.address, num_environments=1)
    shared = open_stage(settings, source, Ranks())
    try:
        killed: list[int] = []

        def kill() -> None:
            if not killed:
                stage = shared.stage
                pid = stage.ray.get(stage.actors[0].__ray_call__.remote(lambda _: os.getpid()))
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        episodes = shared.play(source, [3, 1, 2, 7])
        assert shown(episodes, kill) == shown(Episodes(source, [3, 1, 2, 7]))
        assert killed
        episodes.close()
    finally:
        shared.close()
