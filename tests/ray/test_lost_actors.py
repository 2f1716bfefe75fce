"""Calls of actors that Ray restarts, or cannot restart, without processes."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from strop.environments.workers import WorkerLost
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.training.cluster.connect import BEGIN_SECONDS, MOST_TRIES
from strop.training.cluster.environments import RayWorker
from strop.training.cluster.rewards import RayGrader

READY = "__ray_ready__"


class Restarting:
    """Ray with one actor: while it is not there, calls fail at once, but for those that Ray repeats
    until it is there again. A method answers with its own name. `calls`: each with its limit.
    """

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.there, self.calls, self.hanging, self.deadly = True, [], "", 0

    def __getattr__(self, method: str) -> Any:
        call = SimpleNamespace(remote=lambda *given, **more: (method, False))
        call.options = lambda max_task_retries: SimpleNamespace(
            remote=lambda *given: (method, max_task_retries == -1)
        )
        return call

    def get(self, ref: tuple[str, bool], timeout: float | None = None) -> str:
        method, repeated = ref
        self.there = self.there or repeated
        if self.there:
            self.calls.append((method, timeout))
        if self.there and method == self.hanging:
            assert timeout is not None, "it waits for ever"
            raise ray.exceptions.GetTimeoutError
        if self.there and method == "do" and self.deadly:
            self.there, self.deadly = False, self.deadly - 1
        if not self.there:
            raise ray.exceptions.ActorUnavailableError("it is restarting", None)
        return method

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.there = False


def test_an_episode_waits_for_an_actor_that_ray_restarts():
    """And the first one has time to import the environment."""
    fake = Restarting()
    worker = RayWorker(fake, fake)
    ready, first, later = (READY, BEGIN_SECONDS), ("begin", 5 + BEGIN_SECONDS), ("step", 5)
    assert [worker.call(method, seconds=5) for method in ("begin", "step")] == ["begin", "step"]
    assert fake.calls == [ready, first, later]
    fake.there, fake.calls = False, []
    with pytest.raises(WorkerLost, match="it is restarting"):
        worker.call("step", seconds=5)
    # the new process has no episode, so the step is answered at once
    assert [worker.call(method, seconds=5) for method in ("step", "begin", "step")]
    assert fake.calls == [ready, ("step", 5 + BEGIN_SECONDS), ready, first, later]
    fake.calls, fake.hanging = [], "step"
    with pytest.raises(TimeoutError):
        worker.call("step", seconds=5)
    assert worker.call("begin", seconds=5) == "begin"
    assert fake.calls == [later, ready, first]


def test_an_actor_that_does_not_start_again_is_lost():
    fake = Restarting()
    fake.hanging = READY
    with pytest.raises(WorkerLost, match="Ray has not started it within 600 s"):
        RayWorker(fake, fake).call("begin", seconds=5)
    assert fake.there, "nothing is killed"


def graded(fake: Restarting) -> Any:
    """What two answers get from a grader in this actor."""
    grader = RayGrader.__new__(RayGrader)
    grader.ray, grader.actor, grader.started = fake, fake, ((), {})
    grader.specs = (RewardSpec("right", "rewards.py:right"),)
    return grader.grade(["a", "b"], ["c", "d"], [[1], [2]], {})


def test_answers_are_graded_again_when_the_actor_is_lost():
    fake, one = Restarting(), [(READY, BEGIN_SECONDS), ("do", None)]
    fake.there, fake.deadly = False, MOST_TRIES
    assert graded(fake) == "do"
    assert fake.calls == one * (MOST_TRIES + 1)
    fake.deadly = MOST_TRIES + 1
    assert {each.cause for each in graded(fake).failures} == {Exit.START_FAILED}


def test_answers_have_no_score_when_the_grader_does_not_start_again():
    fake = Restarting()
    fake.there, fake.hanging = False, READY
    found = graded(fake)
    assert [each.cause for each in found.failures] == [Exit.START_FAILED] * 2
    assert "Ray has not started it within 600 s" in found.failures[0].message
    assert fake.calls == [(READY, BEGIN_SECONDS)]
    assert not found.scored_B.any()
    with pytest.raises(UserError, match="actor of the rewards is lost"):
        RayGrader._called(SimpleNamespace(ray=fake, actor=fake), "begin")
