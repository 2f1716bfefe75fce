"""The fields that strategies of sampling share."""

import math
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
from fakes.services import FakeSampling, FakeTexts

from strop.batch.batch import EXPERTS
from strop.catalogue import catalogue
from strop.engines.base import Event
from strop.engines.rules import MinP, TopK, TopP
from strop.method.part import Draw
from strop.parts.rollout._events import void
from strop.parts.rollout.base import SamplingFields, Turn, assemble_turns
from strop.support.errors import UserError

NAMES = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "sampling_mask"]
TEXTS = FakeTexts({3: (3, 4), 5: (5, 6)})
SAMPLING = FakeSampling(
    answer_tokens=20, stop_ids=(7,), stop_strings=("end",), wanted_statistics=frozenset({"entropy"})
)


@dataclass(frozen=True)
class SampleTwice(SamplingFields):
    share: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        assert self.share > 0


def test_a_strategy_has_them_before_its_own():
    assert [field.name for field in fields(SampleTwice)] == [*NAMES, "share"]
    assert SampleTwice(top_k=3, share=0.1).sampling() == {
        "max_tokens": 0, "temperature": 1.0, "top_p": 1.0, "top_k": 3, "min_p": 0.0,
        "sampling_mask": "ignore",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "range"),
    [
        ("max_tokens", -1, "at least 0"),
        ("temperature", 0, "at least 0.001"),
        ("top_p", 0, "between 1e-06 and 1.0"),
        ("top_k", -1, "at least 0"),
        ("min_p", 1.5, "between 0.0 and 1.0"),
    ],
)
def test_values_out_of_range_are_refused_in_the_strategys_name(name, value, range):
    with pytest.raises(UserError, match=f"sample_twice.{name} must be {range}, it is {value}"):
        SampleTwice(**{name: value})


def test_rules_are_the_cuts_that_do_something_in_their_order():
    assert SampleTwice().rules() == ()
    cuts = SampleTwice(top_p=0.9, top_k=5, min_p=0.01).rules()
    assert cuts == (TopK(5), TopP(0.9), MinP(0.01))


def test_requests_carry_the_fields_and_what_the_task_says():
    part = SampleTwice(temperature=0.7, top_k=2)
    draws = (Draw(3, 2), Draw(5, 1))
    requests = part.requests(draws, TEXTS, SAMPLING, torch.Generator().manual_seed(0))
    assert [request.ids for request in requests] == [(3, 4), (3, 4), (5, 6)]
    assert len({request.seed for request in requests}) == 3
    again = part.requests(draws, TEXTS, SAMPLING, torch.Generator().manual_seed(0))
    assert again == requests
    for request in requests:
        assert (request.max_tokens, request.temperature) == (20, 0.7)
        assert request.rules == (TopK(2),)
        assert (request.stop_ids, request.stop_strings) == ((7,), ("end",))
        assert request.want == {"entropy"}


def test_the_limit_of_a_request_is_its_own_then_the_strategys_then_the_tasks():
    assert SampleTwice(max_tokens=9).request(SAMPLING, [1], 0).max_tokens == 9
    assert SampleTwice(max_tokens=9).request(SAMPLING, [1], 0, max_tokens=4).max_tokens == 4
    kept = SampleTwice().request(SAMPLING, [1, 2], 8, keep=True, temperature=0.0)
    assert (kept.ids, kept.seed, kept.keep, kept.temperature) == ((1, 2), 8, True, 0.0)


def test_the_catalogue_shows_them_with_their_comments():
    plain, greedy = (
        catalogue.find("part", name) for name in ("sample_independently", "sample_with_greedy")
    )
    assert plain.fields == greedy.fields
    assert [field.name for field in plain.fields] == NAMES
    assert [field.default for field in plain.fields] == ["0", "1.0", "1.0", "0", "0.0", "'ignore'"]
    assert (
        plain.fields[3].comment == "Number of likeliest tokens kept; 0: all. Default: ours (off)."
    )


def test_experts_are_known_where_the_end_of_an_action_was_drawn_behind_its_own_context():
    """Two rollouts of two prompt and two new tokens; passes of one layer's single expert."""

    def pass_of(expert):
        return np.int16(expert).tobytes()

    def column(events):
        given = ((1, 2), events), ((3, 4), [drawn])
        turns = [Turn(prompt, each) for prompt, each in given]
        batch = assemble_turns([Draw(5, 2)], [0, 1], [[turn] for turn in turns], [False] * 2)
        return batch[EXPERTS][:, 0].tolist()

    logp = (-0.5, -0.5)
    drawn = Event(
        0, (7, 8), logp, 0, logp, logp, (), "stop", experts=tuple(map(pass_of, (4, 5, 6)))
    )
    assert column([drawn]) == [4, 5, 6, -1] * 2
    first = drawn.part(0, 1)._replace(ended="")
    given = Event(0, (9,), (math.nan,), 0, ended="stop")
    assert column([first, given]) == [-1] * 4 + [4, 5, 6, -1]
    assert column(void([drawn])) == [-1] * 4 + [4, 5, 6, -1]


def test_a_draw_may_bring_its_own_prompt():
    rng = torch.Generator().manual_seed(0)
    draws = (Draw(3, 1), Draw(3, 2, {"prompt_ids": (9, 8)}, draw=1))
    asked = SampleTwice().requests(draws, TEXTS, SAMPLING, rng)
    assert [request.ids for request in asked] == [(3, 4), (9, 8), (9, 8)]


def test_rollouts_are_as_many_as_those_of_the_draws():
    with pytest.raises(UserError, match="gives 1 rollouts for draws of 3: give one for each, or"):
        assemble_turns([Draw(5, 2), Draw(6, 1)], [0], [[Turn((1, 2), ())]], [False])
