"""An engine that takes no more requests for now, and requests that fail."""

import pytest
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeServices

from strop.engines.base import Request
from strop.parts.rollout.commands import Abort, Submit
from strop.parts.rollout.drive import drive, drive_all, sample
from strop.parts.rollout.listen import listen
from strop.support.errors import UserError

# token 0 goes to 1 or 2, 1 to 2, 2 to 0
CYCLE = {0: (0.0, 0.5, 0.5), 1: (0.0, 0.0, 1.0), 2: (1.0, 0.0, 0.0)}


def cycle_of(kind):
    return kind(by_last_token(CYCLE))


def collect(requests):
    """Submit all, wait for all; the new tokens of each."""
    heard = yield from listen(requests)
    return [[id for event in events for id in event.ids] for events in heard]


class Narrow(TableEngine):
    """Takes no further request while four have not begun or ended; `most` there ever were."""

    most = 0

    def full(self):
        return sum(row.status == "running" for row in self.rows.values()) >= 4

    def submit(self, request):
        id = super().submit(request)
        running = sum(row.status == "running" for row in self.rows.values())
        self.most = max(self.most, running)
        return id


def test_requests_wait_while_the_engine_is_full():
    requests = [Request((i % 3,), 2 + i % 5, seed=i) for i in range(40)]
    engine, progress = cycle_of(Narrow), []
    found = drive(collect(requests), engine, on_progress=lambda *x: progress.append(x))
    assert found == drive(collect(requests), cycle_of(TableEngine))
    assert engine.most == 4
    assert progress[0] == (0, 40)  # those held back are counted
    assert progress[-1] == (40, 40)
    assert engine.rows == {}


def test_one_that_submits_for_ever_hears_its_events():
    """A stream of requests, one a yield: it is held up, and not the engine."""

    def endless():
        ended, submitted = 0, 0
        while ended < 12:
            _, events = yield [Submit(Request((0,), 3, seed=submitted))]
            submitted += 1
            ended += sum(event.ended == "length" for event in events)
        return submitted

    engine = cycle_of(Narrow)
    assert 12 <= drive(endless(), engine) <= 12 + 2 * 4
    assert engine.most == 4


def test_events_come_after_the_answers_that_name_their_requests():
    """What is drawn while the engine is full is not handed out with the answers."""

    def strategy():
        numbers, events = yield [Submit(Request((0,), 2, seed=n)) for n in range(9)]
        assert events == []
        heard = dict.fromkeys(numbers, 0)
        while sum(heard.values()) < 9 * 2:
            _, events = yield []
            for event in events:
                heard[event.request] += len(event.ids)
        return list(heard.values())

    assert drive(strategy(), cycle_of(Narrow)) == [2] * 9


def test_an_abort_behind_held_back_requests_takes_their_events():
    def strategy():
        (first,), _ = yield [Submit(Request((0,), 3, seed=1))]
        answers, events = yield [
            *[Submit(Request((0,), 2, seed=n)) for n in range(9)],
            Abort(first),
        ]
        *numbers, finished = answers
        assert len(finished.events) == 4 or finished.events[-1].ended == "length"
        left = set(numbers)
        while left:
            assert first not in {event.request for event in events}
            _, events = yield []
            left -= {event.request for event in events if event.ended}

    drive(strategy(), cycle_of(Narrow))


def test_several_strategies_are_held_up_together():
    requests = [[Request((i % 3,), 3, seed=10 * i + n) for n in range(9)] for i in range(3)]
    engine = cycle_of(Narrow)
    together = drive_all([collect(r) for r in requests], engine)
    assert together == [drive(collect(r), cycle_of(TableEngine)) for r in requests]
    assert engine.most == 4


def test_failed_requests_of_one_strategy_are_not_those_of_another():
    class Failing(TableEngine):
        def _draw(self, id, row):
            bad = row.request.seed == 5
            return self._failed(id, row, "made to") if bad else super()._draw(id, row)

    services = FakeServices(sampling=FakeSampling())
    good, mixed = (
        [Request((0,), 3, seed=n) for n in (1, 2)],
        [Request((0,), 3, seed=n) for n in (5, 6)],
    )
    found = drive_all([collect(good), collect(mixed)], cycle_of(Failing), services)
    assert [[len(new) for new in each] for each in found] == [[3, 3], [0, 3]]
    assert services.sampling.failures == ["made to"]
    with pytest.raises(UserError, match="a request failed: made to"):
        drive_all([collect(good), collect(mixed[:1])], cycle_of(Failing), services)
    lost = sample(cycle_of(Failing), mixed)
    assert [each.failed for each in lost] == [True, False]
    assert lost[0].events == (lost[0].events[0],)
    assert lost[0].events[0].why == "made to"
