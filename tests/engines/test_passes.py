"""An engine's statistics of its passes."""

import time

import numpy as np
import pytest
from fakes.engine import Driven, sample
from fakes.models import tiny

from strop.engines.base import Request, Sums
from strop.engines.local.engine import LocalEngine

MODEL = tiny("qwen3", context=512)


def test_sums_are_all_that_least_squares_need():
    sums = Sums("rows", "tokens")
    numbers = np.array([[2.0, 10.0, 0.5], [1.0, 6.0, 0.25], [3.0, 5.0, 2.0]])
    for line in numbers:
        sums.add(*line)
    told = sums.as_dict()
    assert told["passes"] == 3
    assert [told[name] for name in ("rows", "tokens", "seconds")] == numbers.sum(0).tolist()
    products = numbers.T @ numbers
    assert told["rows_rows"] == products[0, 0]
    assert told["rows_tokens"] == products[0, 1]
    assert told["rows_seconds"] == products[0, 2]
    assert told["tokens_tokens"] == products[1, 1]
    assert told["tokens_seconds"] == products[1, 2]
    assert told["seconds_seconds"] == products[2, 2]
    assert len(told) == 10


def test_decode_steps_and_prefill_by_hand():
    engine = LocalEngine(MODEL, num_slots=2)
    lengths = (2, 4, 3)
    prompts = ((1, 2, 3), (1, 2, 3), (4, 5))
    requests = [Request(*each) for each in zip(prompts, lengths, strict=True)]
    started = time.perf_counter()
    sample(engine, requests)
    spent = time.perf_counter() - started
    told = engine.passes.as_dict()
    # two slots: rows of 3 and 3 tokens, then 4 and 4; 5 beside the third one's 2, then 6 and 3;
    # the third alone at 4
    seen = [(2, 6), (2, 8), (2, 7), (2, 9), (1, 4)]
    assert told["decode/passes"] == len(seen)
    assert told["decode/rows"] == sum(rows for rows, _ in seen) == sum(lengths)
    assert told["decode/tokens"] == sum(tokens for _, tokens in seen)
    assert told["decode/rows_tokens"] == sum(rows * tokens for rows, tokens in seen)
    assert told["decode/places"] >= told["decode/tokens"]
    # 2 of a prompt that two rows share; 1 of the other, let in later
    assert (told["prefill/passes"], told["prefill/tokens"]) == (2, 3)
    assert told["prefill/tokens_tokens"] == 4 + 1
    inside = told["decode/seconds"] + told["prefill/seconds"]
    assert 0 < told["prefill/seconds"] < inside < spent


def test_caches_are_read_again_after_new_weights():
    engine = Driven(LocalEngine(MODEL, num_slots=2))
    engine.submit(Request((1, 2, 3), 6, seed=1))
    for _ in range(3):
        engine.step()
    engine.load_weights(None, 1)
    engine.finish()
    told = engine.passes.as_dict()
    assert (told["prefill/passes"], told["prefill/tokens"]) == (2, 2 + 5)
    assert (told["decode/passes"], told["decode/rows"]) == (6, 6)


def test_an_engine_that_drafts_measures_none():
    assert LocalEngine(MODEL, num_slots=2, speculate=2).passes is None


@pytest.mark.parametrize("number", [1, 40])
def test_places_are_what_attention_reads(number):
    engine = LocalEngine(MODEL, num_slots=64)
    requests = [Request(tuple(range(1, 9)), 5, seed=n) for n in range(number)]
    sample(engine, requests)
    told = engine.passes.as_dict()
    # rows of one length are one band, up to the longest
    assert told["decode/places"] == told["decode/tokens"] == number * (8 + 9 + 10 + 11 + 12)
