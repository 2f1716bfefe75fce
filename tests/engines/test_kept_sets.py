"""The tokens that a draw's rules kept are recorded with the token, whatever slots the row had."""

import numpy as np
import pytest
import torch
from fakes.engine import sample
from fakes.models import tiny

from strop.engines.base import Answer, Event, Request
from strop.engines.local import speculation
from strop.engines.local.engine import LocalEngine
from strop.engines.rules import MinP, TopK, TopP
from strop.parts.rollout._events import void, without_first

MODEL = tiny("qwen3")
KEPT = frozenset({"kept", "logp_model"})
RULES = ((TopK(3),), (TopP(0.7),), (MinP(0.2),), (TopK(6), TopP(0.9), MinP(0.05)), (TopK(99),), ())


def requests():
    """Of different rules and lengths; every seventh does not ask."""
    return [
        Request((2, 3 + i % 2), 9 + 5 * i % 11, temperature=0.8, rules=RULES[i % 6], seed=i,
                stop_ids=(7,), want=KEPT if i % 7 else frozenset())
        for i in range(24)
    ]  # fmt: skip


def ids_of(kept: bytes) -> list[int]:
    return np.frombuffer(kept, np.int32).tolist()


def left(answer: Answer) -> list[list[int]]:
    """What the rules leave at each of its tokens, by the model; empty: all."""
    request = answer.request
    with torch.no_grad():
        logits = MODEL(torch.tensor([answer.sequence])).logits[0, len(request.ids) - 1 : -1]
    for rule in request.rules:
        logits = rule(logits / 0.8) * 0.8
    rows = [(row > -torch.inf).nonzero().flatten().tolist() for row in logits]
    return [[] if len(row) == logits.shape[1] else row for row in rows]


@pytest.mark.parametrize("options", [{"num_slots": 3}, {"num_slots": 8, "speculate": 3}])
def test_the_sets_are_what_the_rules_left(options, monkeypatch):
    monkeypatch.setattr(speculation, "STEP", 1e12)  # whatever is known is drafted
    engine, asked = LocalEngine(MODEL, **options), requests()
    for answer in sample(engine, asked):
        kept = [each for event in answer.events for each in event.kept]
        if "kept" not in answer.request.want:
            assert not kept
            continue
        assert [ids_of(each) for each in kept] == left(answer)
        assert all(id in ids_of(k) for id, k in zip(answer.ids, kept, strict=True) if k)
    assert options.get("speculate", 0) == 0 or engine.drafts[1] > 0


def test_what_is_cut_from_an_event_takes_its_sets_along():
    one = Event(0, (4, 5, 6), (-1.0, -2.0, -3.0), 0, (-1.5, -2.5, -3.5), (), (), "stop",
                kept=(b"\4\0\0\0", b"", b"\6\0\0\0\7\0\0\0"))  # fmt: skip
    answer = Answer(Request((1,), 3), (one,))
    (first,) = answer.first(2).events
    assert (first.ids, first.kept, first.ended) == ((4, 5), one.kept[:2], "")
    (rest,) = without_first((one,), 1)
    assert (rest.ids, rest.logp, rest.kept, rest.ended) == (
        (5, 6), (-2.0, -3.0), one.kept[1:], "stop"
    )  # fmt: skip
    assert one.values_of("logp_model") == one.logp  # the model is the cut one
    assert void([one])[0].kept == ()
