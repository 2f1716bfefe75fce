"""Posted rollouts become a batch, and calls are sampled meanwhile, also over two steps."""

import time
from types import SimpleNamespace
from typing import Any

import torch
from fakes.engine import TableEngine
from fakes.services import FakeLive, over_table, rolled_out

from strop.engines.asynchronous import ACCOUNT, asynchronous, run
from strop.engines.base import Account, Request
from strop.method.part import Draw
from strop.method.services import ModelCall, Refused, Taken
from strop.parts.rollout import substitutes
from strop.parts.rollout._served_calls import ServedCalls
from strop.parts.rollout.play_turns import PlayTurns
from strop.parts.rollout.receive_traces import ReceiveTraces
from strop.parts.rollout.sample_independently import SampleIndependently

DRAWS = (Draw(0, 3), Draw(1, 3, draw=4))


def even(tokens: list[int]) -> list[float]:
    """Any digit but 0 is as likely as another."""
    return [0.0, *[1 / 9] * 9]


def served(
    live: Any, engine: TableEngine, draws: Any = DRAWS, taken: int = 0, most: int = 3
) -> Any:
    services = over_table(engine, {}, pieces=dict(enumerate("0123456789")))
    services.live = live
    rng = torch.Generator().manual_seed(taken)
    return rolled_out(
        ReceiveTraces(max_tokens=most), draws, engine, services, rng, {"taken": taken}
    )


def table() -> TableEngine:
    return TableEngine(even, text=lambda ids: "".join(map(str, ids)))


def asking(**options: Any) -> FakeLive:
    return FakeLive(lambda uid: ((1, 2), (3,))[uid], **options)


def test_what_was_drawn_comes_back_as_groups() -> None:
    rolled = served(asking(reward=sum), table(), taken=4)
    batch = rolled.batch
    assert batch["uid_P"].tolist() == [0, 1]
    assert batch["draw_P"].tolist() == [0, 4]
    assert batch["group_B"].tolist() == [0] * 3 + [1] * 3
    assert batch["length_B"].tolist() == [3] * 6
    said = batch["id_T"][batch["mask_T"]].view(6, 3)
    assert batch["reward_K"].tolist() == said.sum(1).tolist()
    assert len({tuple(each) for each in said.tolist()}) > 4
    assert rolled.state == {"taken": 6}
    assert rolled.metrics["traces/stale_groups"] == 1
    assert rolled.metrics["traces/groups_waiting"] == 2
    assert rolled.metrics["turns/scored_here"] == 0
    assert rolled.num_discarded == 0


def test_a_call_goes_on_in_the_next_step_with_its_tokens_so_far() -> None:
    class Slow(FakeLive):
        """No group waits for the first step's further call; the second step does."""

        def take(self, num_groups: int, taken: int) -> Taken | None:
            waits = taken > 0 and late.id not in self.posted
            return None if waits else super().take(num_groups, taken)

    late = ModelCall("generate", (5, 5))

    class Steady(TableEngine):
        def poll(self, seconds: float | None = None) -> list[Any]:
            time.sleep(0.02)  # so that somebody looks between two tokens
            return super().poll(seconds)

    live, engine = Slow(lambda uid: (1, 2), more=(late,), max_tokens=2), Steady(even)
    first = served(live, engine, (Draw(0, 1),), most=40)
    assert (first.batch.size("B"), first.num_discarded) == (1, 0)
    ((call, started),) = live.served.open.values()
    drawn = len(started[0].answer().ids)
    assert call is late
    assert 2 <= drawn < 40
    engine.version = 7
    second = served(live, engine, (Draw(0, 1),), taken=1, most=40)
    (turn,) = live.posted[late.id].turns
    assert len(turn.output_ids) == 40
    assert turn.versions == (0,) * drawn + (7,) * (40 - drawn)
    assert second.num_discarded == 0
    assert not live.served.open


def test_a_call_without_room_is_refused_and_the_others_go_on() -> None:
    live = asking(more=(ModelCall("generate", (1,) * 100),))
    assert served(live, table()).batch.size("B") == 6
    (why,) = live.refused
    assert isinstance(why, Refused)
    assert (why.status, why.code) == (400, "context_length_exceeded")


def test_it_stands_in_for_plain_sampling() -> None:
    plain = SampleIndependently(temperature=0.7, max_tokens=5)
    assert substitutes.receiving(plain) == ReceiveTraces(temperature=0.7, max_tokens=5)
    assert substitutes.receiving(PlayTurns()) == ReceiveTraces()
    own = ReceiveTraces(fork_threshold=3)
    assert substitutes.receiving(own) is own
    assert isinstance(substitutes.plain(own), SampleIndependently)


def test_a_failed_call_leaves_no_cache_of_its_other_answers() -> None:
    """Else the engine would never free its memory before an update."""
    engine = TableEngine(lambda tokens: [float("nan")] * 10 if tokens == (0,) else even([]))
    book, call, why = asynchronous(engine), ModelCall("generate", (0,), num=2), list[Exception]()
    calls: Any = SimpleNamespace(refuse=lambda call, error: why.append(error))
    served = ServedCalls(calls, book)

    async def answered() -> None:
        ACCOUNT.set(served.account)
        pending = [book.begin(Request(ids, 2, keep=True)) for ids in ((0,), (3,))]
        served.open[call.id] = call, pending
        await served._answer(call, pending)
        while served.kept:
            book.drop(served.kept.popleft())

    run(book, answered(), Account())
    assert [type(each) for each in why] == [Refused]
    assert (book.prefixes, engine.rows, served.open) == ({}, {}, {})
