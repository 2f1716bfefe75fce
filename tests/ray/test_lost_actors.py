"""Calls of actors that Ray restarts, or cannot restart, without processes."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from strop.environments.workers import WorkerLost
from strop.training.cluster.connect import BEGIN_SECONDS
from strop.training.cluster.environments import RayWorker

READY = "__ray_ready__"


class Restarting:
    """Ray with one actor: while it is not there, calls fail at once, but for those that Ray repeats
    until it is there again. A method answers with its own name. `calls`: each with its limit.
    """

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.there, self.calls, self.hanging = True, [], ""

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
