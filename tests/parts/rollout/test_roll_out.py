"""Strategies on the table engine: their results, sharing, failures; and the fake engine itself."""

import asyncio
import itertools
import json
import threading
import time

import numpy as np
import pytest
import torch
from builders import answers
from fakes.engine import TableEngine, by_last_token
from fakes.models import tiny
from fakes.services import FakeSampling, FakeServices

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.engines.rules import TopK
from strop.method.part import Draw
from strop.parts.rollout.base import Crowd, RolledOut, assemble, roll_out
from strop.support.errors import UserError
from strop.support.exits import Exit

# token 0 goes to 1 or 2, 1 to 2, 2 to 0
CYCLE = {0: (0.0, 0.5, 0.5), 1: (0.0, 0.0, 1.0), 2: (1.0, 0.0, 0.0)}


def cycle(kind=TableEngine, **fields) -> TableEngine:
    return kind(by_last_token(CYCLE), **fields)


async def collect(engine, requests):
    """The simplest strategy: ask for all, wait for all."""
    answers = await asynchronous(engine).generate_all(requests)
    return assemble((Draw(1, len(requests)),), answers), None


def alone(requests):
    engine = cycle()
    return answers(roll_out(collect(engine, requests), engine).batch)


def crowded(engine, strategies, services=None):
    """What strategies come to that begin together, and the ends of their requests."""
    crowd, found = Crowd(engine, services), {}
    for key, strategy in enumerate(strategies):
        crowd.begin(key, strategy)
    while crowd.runs:
        found |= {key: (rolled, ends) for key, rolled, ends in crowd.turn()}
    crowd.close()
    return [found[key] for key in range(len(strategies))]


def test_value_and_release():
    engine = cycle()
    found = roll_out(collect(engine, [Request((1,), 4)] * 3), engine)
    assert [text[:2] for text in answers(found.batch)] == [[2, 0]] * 3
    assert (found.state, found.num_discarded, found.metrics) == (None, 0, {})
    assert engine.rows == {}


def test_several_strategies_share_an_engine():
    engine = cycle()
    requests = [[Request((i % 3,), 3 + i, seed=i)] * (i + 1) for i in range(4)]
    together = crowded(engine, [collect(engine, own) for own in requests])
    assert [answers(rolled.batch) for rolled, _ in together] == [alone(own) for own in requests]
    assert [ends.num_well for _, ends in together] == [1, 2, 3, 4]
    assert engine.num_steps == 6  # as many as the longest alone
    assert engine.rows == {}


def test_one_ends_and_another_begins_while_others_are_under_way():
    engine, ended = cycle(), []
    crowd = Crowd(engine)
    crowd.begin("long", collect(engine, [Request((0,), 6, seed=1)]))
    crowd.begin("short", collect(engine, [Request((0,), 2, seed=2)]))
    while crowd.runs:
        for key, rolled, _ in crowd.turn():
            ended.append((key, engine.num_steps, answers(rolled.batch)))
            if key == "short":
                crowd.begin("late", collect(engine, [Request((0,), 3, seed=3)]))
    crowd.close()
    assert [each[:2] for each in ended] == [("short", 2), ("late", 5), ("long", 6)]
    seeds = {"long": (6, 1), "short": (2, 2), "late": (3, 3)}
    for key, _, found in ended:
        assert found == alone([Request((0,), seeds[key][0], seed=seeds[key][1])])


def test_a_crowd_knows_what_is_left_of_each():
    engine = cycle()

    async def strategy():
        book = asynchronous(engine)
        await book.generate_all([Request((0,), 1), Request((0,), 2)])
        await book.generate_all([Request((0,), 99)] * 2)

    crowd, left = Crowd(engine), []
    crowd.begin("a", strategy())
    while left[-1:] != [(2, 2)]:
        left.append((crowd.left("a", 2), crowd.left("a", 4)))
        crowd.turn()
    crowd.close()
    assert [own for own, _ in itertools.groupby(left)] == [(2, 4), (1, 3), (2, 2)]
    assert engine.rows == {}


@pytest.mark.parametrize("rests", [False, True])
def test_an_episode_between_two_turns_has_not_ended(rests):
    """rests: it waits for all others before it goes on, as episodes do for their environment."""
    engine = cycle()

    async def episode():
        for turn in range(3):
            answer = await asynchronous(engine).generate(Request((0,), 2, seed=turn))
            if rests:
                await asynchronous(engine).settled()
        return assemble((Draw(1, 1),), [answer]), None

    crowd, found = Crowd(engine), []
    crowd.begin("a", episode())
    while crowd.runs:
        assert crowd.left("a", 1) == 1
        found += crowd.turn()
    crowd.close()
    ((_, rolled, ends),) = found
    assert (engine.num_steps, ends.num_well, rolled.num_discarded) == (6, 3, 4)


def test_sampling_inside_a_strategy_keeps_its_own_requests():
    """As a reward does that asks the engine: nothing of the two is mixed up."""
    engine = cycle()

    async def strategy():
        book = asynchronous(engine)
        started = book.begin(Request((1,), 4))
        await book.settled()
        (other,) = book.sample([Request((1,), 5)])
        assert other.ids[:2] == (2, 0)
        assert started.done  # the engine went on with it too
        return assemble((Draw(1, 1),), [await started]), None

    found = roll_out(strategy(), engine)
    assert answers(found.batch) == alone([Request((1,), 4)])
    assert found.num_discarded == 0  # the other five are the reward's
    assert engine.rows == {}


def test_a_deadlock_is_an_error():
    engine = cycle()

    async def waits_for_itself():
        await asynchronous(engine).wait([asynchronous(engine).begin(Request((0,), 2))])
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nothing to run"):
        roll_out(waits_for_itself(), engine)
    crowd = Crowd(engine)
    crowd.begin("a", waits_for_itself())
    assert crowd.turn() == crowd.turn() == []
    with pytest.raises(RuntimeError, match="nothing to run"):
        crowd.turn()
    crowd.close()
    assert engine.rows == {}


class Elsewhere(TableEngine):
    """Has no events before `arrived`, as an engine that samples elsewhere."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.arrived = threading.Event()

    def poll(self, seconds=None):
        assert seconds is not None, "nobody is heard before an answer comes"
        return super().poll() if self.arrived.wait(seconds) else []


def in_a_crowd(engine, strategy):
    return crowded(engine, [strategy])[0][0]


def probed(engine, strategy):
    """As a part does that samples in the middle of a step."""
    strategy.close()
    found = asynchronous(engine).sample([Request((0,), 3, seed=1)])
    return RolledOut(assemble((Draw(1, 1),), found), None, 0)


@pytest.mark.parametrize("way", [lambda *given: roll_out(*given[::-1]), in_a_crowd, probed])
def test_others_are_heard_while_answers_are_waited_for(way):
    """Whoever sends signs of life and takes new weights before the engine's steps."""
    engine, calls = cycle(Elsewhere), []

    def heard():
        calls.append(len(calls))
        if len(calls) == 2:
            engine.arrived.set()

    asynchronous(engine).before_step = heard
    asked = [Request((0,), 3, seed=1)]
    assert answers(way(engine, collect(engine, asked)).batch) == alone(asked)
    assert len(calls) == 2 + 2


def test_what_others_bring_does_not_wait_for_answers():
    """In a crowd, as outside: one waits for the engine, the other one for another thread."""
    engine = cycle(Elsewhere)

    async def elsewhere():
        await asyncio.to_thread(time.sleep, 0.01)
        engine.arrived.set()
        return await collect(engine, [Request((1,), 2)])

    found = crowded(engine, [collect(engine, [Request((0,), 2)]), elsewhere()])
    assert [answers(rolled.batch) for rolled, _ in found] == [
        alone([Request((0,), 2)]), alone([Request((1,), 2)])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "lacking"),
    [
        (Request((0,), 1, rules=(TopK(1),)), "rules"),
        (Request((0,), 1, num_top=1), "top"),
        (Request((0,), 1, want=frozenset({"entropy"})), "entropy"),
    ],
)
def test_missing_capability(request_, lacking):
    engine = cycle(capabilities=frozenset())
    with pytest.raises(UserError, match=f"needs an engine with '{lacking}'; TableEngine has"):
        roll_out(collect(engine, [request_]), engine)


def test_requests_are_released_when_a_strategy_fails():
    engine = cycle()

    async def strategy():
        asynchronous(engine).begin(Request((0,), 9))
        await asynchronous(engine).generate(Request((0,), 2, keep=True))
        raise KeyError("broken")

    with pytest.raises(KeyError):
        roll_out(strategy(), engine)
    assert engine.rows == {}


def test_table_engine_and_local_engine_agree():
    """Same contract, same draws: the fake with the model's probabilities gives its tokens."""
    model = tiny("llama")

    def probabilities(tokens):
        with torch.no_grad():
            return model(torch.tensor([tokens])).logits[0, -1].softmax(-1).tolist()

    requests = [
        Request((3, 4), 6, seed=1, stop_ids=(1, 2)),
        Request((3, 4, 5), 6, seed=2, rules=(TopK(4),)),
        Request((9,), 6, temperature=0.5, seed=3, num_top=2, want=frozenset({"entropy"})),
    ]
    fake = asynchronous(TableEngine(probabilities)).sample(requests)
    real = asynchronous(LocalEngine(model, num_slots=2)).sample(requests)
    for a, b in zip(fake, real, strict=True):
        for name in ("ids", "logp", "entropy"):
            mine, other = ([x for e in f.events for x in getattr(e, name)] for f in (a, b))
            assert mine == pytest.approx(other, abs=1e-9)
        tops = [[x for e in f.events for x in e.top] for f in (a, b)]
        assert [list(x) for x in tops[0]] == [list(x) for x in tops[1]]
        assert a.ended == b.ended


def best_of(num, stop_early=False):
    """What a strategy comes to that keeps the first of its candidates."""
    engine = cycle()

    async def strategy():
        book = asynchronous(engine)
        started = [book.begin(Request((0,), 3, seed=seed)) for seed in range(num)]
        if stop_early:
            await book.generate(Request((1,), 1))
            answer = started[0].stop()
        else:
            await book.wait(started)
            answer = started[0].answer()
        return assemble((Draw(1, 1),), [answer]), None

    found = roll_out(strategy(), engine)
    assert engine.rows == {}
    return found


def test_tokens_of_candidates_that_are_not_taken_are_counted():
    assert best_of(1).num_discarded == 0
    found = best_of(4)
    assert found.num_discarded == 3 * 3
    assert found.batch["length_B"].tolist() == [3]
    # one token of each was drawn when the strategy stopped listening, and one by which it knew
    stopped = best_of(4, stop_early=True)
    assert stopped.num_discarded == 3 + 1
    assert stopped.batch["length_B"].tolist() == [1]


def test_tokens_that_rollouts_share_count_once():
    engine = cycle()

    async def strategy():
        book = asynchronous(engine)
        first = await book.generate(Request((0,), 4, seed=1, keep=True))
        shared = first.first(2)
        other = shared + await book.generate(shared.more(2, seed=2))
        batch = assemble((Draw(1, 2),), [first, other])
        return batch.set(fork_at_B=torch.tensor([-1, 2])), None

    assert roll_out(strategy(), engine).num_discarded == 0
    assert engine.num_tokens == 4 + 2


def test_a_strategy_tells_its_own_count_of_tokens_and_other_metrics():
    engine = cycle()

    async def strategy():
        batch, _ = await collect(engine, [Request((0,), 2)])
        return batch, "state", {"rollout/tokens_thrown_away": 7, "own": 1.5}

    found = roll_out(strategy(), engine)
    assert (found.state, found.num_discarded, found.metrics) == ("state", 7, {"own": 1.5})


def test_a_strategys_metrics_are_numbers_of_pythons_own():
    """Whole ones are counts, which curation rounds add up; a tensor could not be written down."""

    engine = cycle()

    async def strategy(own):
        batch, _ = await collect(engine, [Request((0,), 2)])
        return batch, None, {"share": np.float32(0.5), **own}

    found = roll_out(strategy({"count": np.int64(3)}), engine).metrics
    assert json.dumps(found) == '{"share": 0.5, "count": 3}'
    with pytest.raises(UserError, match="the strategy gives the metric own as Tensor: give a"):
        roll_out(strategy({"own": torch.tensor(1.0)}), engine)


def test_a_strategy_that_returns_no_pair_is_named():
    async def strategy():
        return []

    with pytest.raises(UserError, match="returned list; it returns its batch and its state"):
        roll_out(strategy(), cycle())


class Narrow(TableEngine):
    """Takes no further request while four have not ended; `most` there ever were."""

    most, most_requests = 0, 4

    def start(self, id, request, source=None):
        super().start(id, request, source)
        self.most = max(self.most, sum(not row.ended for row in self.rows.values()))


def test_requests_wait_while_the_engine_is_full():
    requests = [Request((i % 3,), 2 + i % 5, seed=i) for i in range(40)]
    engine = cycle(Narrow)
    assert answers(roll_out(collect(engine, requests), engine).batch) == alone(requests)
    assert engine.most == 4
    assert engine.rows == {}


def test_a_request_that_waits_can_be_stopped():
    engine = cycle(Narrow)

    async def strategy():
        book = asynchronous(engine)
        started = [book.begin(Request((0,), 2, seed=n)) for n in range(9)]
        await book.some(started)
        stopped = started[8].stop()
        assert (stopped.ids, stopped.ended) == ((), "aborted")
        await book.wait(started)
        answers = [each.answer() for each in started[:8]]
        return assemble((Draw(1, 8),), answers), None

    assert answers(roll_out(strategy(), engine).batch) == alone(
        [Request((0,), 2, seed=n) for n in range(8)]
    )


def test_several_strategies_are_held_up_together():
    requests = [[Request((i % 3,), 3, seed=10 * i + n) for n in range(9)] for i in range(3)]
    engine = cycle(Narrow)
    together = crowded(engine, [collect(engine, own) for own in requests])
    assert [answers(rolled.batch) for rolled, _ in together] == [alone(own) for own in requests]
    assert engine.most == 4


class Failing(TableEngine):
    """A request with the seed 5 fails."""

    def _draw(self, id, row):
        bad = row.request.seed == 5
        return self._failed(id, row, "made to") if bad else super()._draw(id, row)


def test_failed_requests_of_one_strategy_are_not_those_of_another():
    services = FakeServices(sampling=FakeSampling())
    good, mixed = (
        [Request((0,), 3, seed=n) for n in (1, 2)],
        [Request((0,), 3, seed=n) for n in (5, 6)],
    )
    engine = cycle(Failing)
    found = crowded(engine, [collect(engine, good), collect(engine, mixed)], services)
    assert [[len(new) for new in answers(rolled.batch)] for rolled, _ in found] == [[3, 3], [0, 3]]
    assert [ends for _, ends in found] == [(2, ()), (1, ("made to",))]
    assert [rolled.batch["exit_B"].tolist() for rolled, _ in found] == [
        [Exit.TOKEN_LIMIT] * 2, [Exit.ENGINE_LOST, Exit.TOKEN_LIMIT],
    ]  # fmt: skip
    assert services.sampling.failures == ["made to"]
    with pytest.raises(UserError, match="a request failed: made to"):
        roll_out(collect(engine, mixed[:1]), engine, services)
    with pytest.raises(UserError, match="all 2 requests failed, the first: made to"):
        roll_out(collect(engine, mixed[:1] * 2), engine)
    lost = asynchronous(engine).sample(mixed)
    assert [each.failed for each in lost] == [True, False]
    assert lost[0].events == (lost[0].events[0],)
    assert lost[0].events[0].why == "made to"


def test_a_strategy_cannot_run_another_one():
    engine = cycle()

    async def strategy():
        return roll_out(collect(engine, [Request((0,), 2)]), engine)

    with pytest.raises(RuntimeError, match="await it"):
        roll_out(strategy(), engine)
    assert engine.rows == {}
