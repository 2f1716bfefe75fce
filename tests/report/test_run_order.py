"""What the doctor says of the order of a run's steps and of how answers ended, by hand."""

import pytest

from strop.diagnosis.finding import shortened
from strop.diagnosis.run import RunFiles, ends, order
from strop.diagnosis.signal import entropy


def said(*lines):
    return order(RunFiles([{"step": i + 1, **line} for i, line in enumerate(lines)], {}, []))


def test_each_step_once_is_in_order():
    found = said({"num_tokens": 5}, {"num_tokens": 5}, {"num_tokens": 9})
    assert found.status == "ok"
    assert found.answer.startswith("Steps 1 to 3 are there once each")


def test_faults_of_the_order_are_named():
    found = order(RunFiles([{"step": n} for n in (1, 2, 2, 5)], {}, []))
    assert "written more than once: step 2" in found.answer
    assert "missing: step 3, 4" in found.answer
    assert "num_tokens falls at step 2" in said({"num_tokens": 5}, {"num_tokens": 4}).answer


def test_an_epoch_that_jumps_is_named_and_an_even_one_is_not():
    even = [{"data/epoch": 0.25 * n, "data/rollouts_sampled": 8} for n in range(1, 9)]
    assert said(*even).status == "ok"
    jumped = [*even[:5], *(line | {"data/epoch": line["data/epoch"] + 2} for line in even[5:])]
    assert "data/epoch jumps at step 6" in said(*jumped).answer


def test_shares_of_ends_are_means_over_steps():
    lines = [
        {"step": 1, "exit/token_limit": 0.5},
        {"step": 2, "exit/token_limit": 0.25},
        {"step": 3},
    ]
    found = ends(RunFiles(lines, {}, []))
    assert found.numbers == {"exit/token_limit": pytest.approx(0.25)}


def test_the_lowest_entropy_is_named():
    lines = [{"step": n, "entropy": value} for n, value in enumerate((1.0, 0.25, 0.5), 1)]
    assert "(lowest 0.250)" in entropy(RunFiles(lines, {}, [])).answer


def test_a_long_text_is_cut_to_its_width():
    assert shortened("word " * 40, 20) == "word word word wo..."
    assert shortened("a\n b", 3) == "a b"
