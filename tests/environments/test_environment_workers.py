"""Episodes in workers: the same as in this process, whatever is lost; and what fails an episode."""

import asyncio
import os
import random
import time
from types import MappingProxyType, SimpleNamespace

import pytest

from strop.environments import Environment, Exit, Observation
from strop.environments.base import EnvironmentSource
from strop.environments.episodes import CallLimits, Episodes
from strop.environments.worker_process import ProcessWorker
from strop.environments.workers import (
    BroadcastEpisodes,
    EnvironmentWorkers,
    EpisodeHost,
    WorkerLost,
)
from strop.support.errors import RunStopped

SEEDS = (3, 1, 2, 7)


class Mine(Observation):
    """Which no other process can read."""


class MayNotBeSent(int):
    """A number that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("not this one")


class Walk(Environment):
    """A place that actions move; over after as many turns as the seed says."""

    max_turns, max_tokens = 7, 3
    shift = 0

    def reset(self, seed):
        self.seed, self.place, self.turn = seed, seed % 5, 0
        return Observation(f"{self.place}:")

    def step(self, action):
        if action == "raise":
            raise ValueError("no such way")
        if action == "die":
            os._exit(3)
        if action == "hang":
            time.sleep(60)
        self.turn += 1
        measures = {"length": MayNotBeSent(len(action)) if action == "unsent" else len(action)}
        self.place = 3 * self.place + len(action) + self.shift
        return Mine(
            f"{self.place}:", self.place / 8, self.turn > self.seed % 4,
            measures=MappingProxyType(measures),
        )  # fmt: skip


SOURCE = EnvironmentSource(f"{__file__}:Walk")


def plain(shown):
    return [(o.text, o.reward, o.done, o.exit, dict(o.measures)) for o in shown]


def shown(episodes):
    """All that some episodes say, one of which is repeated from its second turn."""
    found, going = [plain(episodes.reset())], [0, 1, 2, 3]
    for turn in range(4):
        actions = ["x" * (turn + number % 3) for number in going]
        answers = plain(episodes.step(going, actions))
        found.append(answers)
        if turn == 0:
            again = episodes.repeat(3, [actions[3]], [found[0][3][0], answers[3][0]])
            going, answers = [*going, again], [*answers, answers[3]]
        going = [number for number, each in zip(going, answers, strict=True) if not each[2]]
    return [found, episodes.max_turns, episodes.max_tokens, episodes.roles, episodes.rewrites]


class Forgetful:
    """A place of this process that is lost before a call, now and then."""

    def __init__(self, lost=lambda: False):
        self.lost, self.there = lost, EpisodeHost()

    def call(self, method, *given, seconds):
        if self.lost():
            self.there = EpisodeHost()
            raise WorkerLost("it was lost")
        return getattr(self.there, method)(*given)

    def close(self):
        pass


@pytest.mark.parametrize("seed", range(4))
def test_what_is_lost_is_begun_again_and_says_the_same(seed, monkeypatch):
    losses = []

    def losing(place):  # by chances of its own, whichever thread comes first, at most twice
        chance, calls = random.Random(10 * seed + place), []

        def lost():
            calls.append(chance.random() < 0.3 and sum(calls) < 2)
            losses.append(calls[-1])
            return calls[-1]

        return lost

    places = [Forgetful(losing(place)) for place in range(2)]
    workers = EnvironmentWorkers(SOURCE, CallLimits(4), places)
    assert shown(workers.play(SEEDS)) == shown(Episodes(SOURCE, SEEDS))
    assert any(losses)
    workers.close()


def test_a_place_is_asked_once_for_the_steps_of_all_its_episodes():
    calls = []
    workers = EnvironmentWorkers(SOURCE, CallLimits(), [Forgetful(lambda: calls.append(1))])
    episodes = workers.play([3, 7, 11])
    episodes.reset()
    started = len(calls)
    episodes.step([0, 1, 2], ["a", "b", "c"])
    assert len(calls) == started + 1
    workers.close()


def test_one_that_does_not_repeat_stops_the_run():
    losses = [False, False, True]  # at the second step
    workers = EnvironmentWorkers(
        SOURCE, CallLimits(), [Forgetful(lambda: bool(losses) and losses.pop(0))]
    )
    episodes = workers.play([3])
    episodes.step([0], ["a"])
    with SOURCE.opened() as made:
        kind = type(made)
    kind.shift = 1
    try:
        with pytest.raises(RunStopped, match="does not repeat: in the episode of the seed 3"):
            episodes.step([0], ["a"])
    finally:
        kind.shift = 0
        workers.close()


def test_the_first_of_several_processes_plays_for_all():
    said = []

    def first(make):
        said.append(make())
        return said[-1]

    here = BroadcastEpisodes(first, lambda: Episodes(SOURCE, SEEDS))
    found = shown(here)
    there = BroadcastEpisodes(lambda make: said.pop(0), lambda: pytest.fail("played twice"))
    assert found == shown(there) == shown(Episodes(SOURCE, SEEDS))


@pytest.fixture(scope="module")
def workers():
    workers = EnvironmentWorkers(
        SOURCE, CallLimits(0, seconds=1.0), [ProcessWorker(), ProcessWorker()]
    )
    yield workers
    workers.close()


def test_processes_show_what_this_one_does(workers):
    assert shown(workers.play(SEEDS)) == shown(Episodes(SOURCE, SEEDS))


def test_what_raises_dies_or_hangs_costs_its_own_episode(workers):
    episodes = workers.play([3, 7, 11, 15, 19])
    others = Episodes(SOURCE, [3, 7, 11, 15, 19])

    async def together():
        actions = ["raise", "die", "hang", "a", "b"]
        return await asyncio.gather(*map(episodes.step_alone, range(5), actions))

    raised, died, hung, *well = asyncio.run(together())
    crash = Exit.ENVIRONMENT_CRASH
    assert [raised.exit, died.exit, hung.exit] == [crash, crash, Exit.TIMEOUT]
    assert "'raise' in the episode of the seed 3: ValueError: no such way" in raised.why
    assert (
        "'die' in the episode of the seed 7: WorkerLost: the process ended itself with" in died.why
    )
    assert "TimeoutError: it took over 1 s" in hung.why
    others.reset()
    assert plain(well) == plain(others.step([3, 4], ["a", "b"]))
    assert plain(episodes.step([3, 4], ["c", "d"])) == plain(others.step([3, 4], ["c", "d"]))
    assert episodes.step([1, 2], ["x", "y"]) == [died, hung]


def test_no_action_is_applied_twice_where_an_observation_cannot_be_sent(workers):
    episodes, others = workers.play([3, 7, 11]), Episodes(SOURCE, [11])
    others.reset()
    unsent, well = episodes.step([0, 2], ["unsent", "a"])  # of one worker
    assert "WorkerLost: what it shows cannot be sent: not this one" in unsent.why
    assert plain([well]) == plain(others.step([0], ["a"]))
    assert plain(episodes.step([2], ["bb"])) == plain(others.step([0], ["bb"]))


def test_who_plays_is_said_by_name():
    from strop.support.errors import UserError
    from strop.training.settings.sections import DataSettings

    def count(workers, is_asynchronous=False, steps_all=False):
        source = SimpleNamespace(name="own", is_asynchronous=is_asynchronous, steps_all=steps_all)
        return DataSettings(env_workers=workers).num_env_workers(source)

    assert (count(3), count(0), count(0, True), count(0, steps_all=True)) == (3, 0, 0, 0)
    with pytest.raises(UserError, match="own is asynchronous and is played in this process"):
        count(2, is_asynchronous=True)
    with pytest.raises(UserError, match="steps many episodes at once and is played in this"):
        count(2, steps_all=True)


def test_a_replay_has_the_time_of_each_of_its_actions_and_of_the_waits():
    given = []

    class Watched(Forgetful):
        def call(self, method, *args, seconds):
            given.append((method, seconds))
            return super().call(method, *args, seconds=seconds)

    losses = [False, False, False, True]  # at the third step
    worker = Watched(lambda: bool(losses) and losses.pop(0))
    episodes = EnvironmentWorkers(SOURCE, CallLimits(2, 1.0), [worker]).play([3])
    for action in "abc":
        assert episodes.step([0], [action])[0].exit is None
    whole = 1.0 + 0.25 + 0.5
    once = [("begin", whole), ("step", whole), ("step", whole), ("step", whole)]
    assert given == [*once, ("step", whole), ("begin", 3 * whole), ("step", whole)]


def test_a_worker_that_was_closed_starts_no_more():
    worker = ProcessWorker()
    worker.close()
    with pytest.raises(WorkerLost, match="the run was closed"):
        worker.call("end", "no world", seconds=1.0)
    assert worker.process is None
