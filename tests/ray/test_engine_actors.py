"""Engines as Ray actors, tested without Ray: who waits too long, and who leads whom."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from strop.engines.pool.pool import Facts
from strop.support.errors import RunStopped
from strop.support.processes import Restarts
from strop.training.cluster import engine_actors
from strop.training.cluster.connect import BEGIN_SECONDS
from strop.training.cluster.engine_actors import RayWorkers, Seat, open_pool
from strop.training.settings import config


def workers_that_open(*since: float) -> RayWorkers:
    found = RayWorkers.__new__(RayWorkers)
    found.limit = 5.0
    found.seats = [Seat(None, Restarts("lost"), opening="asked", since=each) for each in since]
    return found


def test_a_run_stops_once_no_engine_has_been_there_for_too_long(monkeypatch):
    monkeypatch.setattr(
        engine_actors, "time", SimpleNamespace(monotonic=lambda: BEGIN_SECONDS + 10)
    )
    assert workers_that_open(9.0, 11.0)._overdue() == []  # the second may still begin
    with pytest.raises(RunStopped, match="started none within 600 s"):
        workers_that_open(9.0, 9.5)._overdue()


@pytest.mark.parametrize(("count", "lockstep"), [(1, False), (2, True)])
def test_engines_of_several_processes_are_polled_together(monkeypatch, count, lockstep):
    facts = Facts(frozenset(), None, 1)
    workers = SimpleNamespace(facts=lambda: [facts], close=lambda: None)
    monkeypatch.setattr(engine_actors, "RayWorkers", lambda config: workers)
    ranks: Any = SimpleNamespace(count=count, from_first=lambda make: make())
    loaded: Any = SimpleNamespace(model=torch.nn.Linear(1, 1))
    assert open_pool(config.make({}), loaded, ranks).lockstep == lockstep
