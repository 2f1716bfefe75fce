"""Countdown with worked answers: puzzles, right answers, and the first false step."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.environments import countdown
from strop.environments.tasks import load_task
from strop.environments.worked_countdown import (
    MAX_TOKENS,
    MAX_VALUE,
    SPLITS,
    Expressions,
    correct,
    extract_answer,
    first_false_step,
    is_right,
    moves,
    prompt_text,
    puzzles,
    supervised_puzzles,
    ways,
    worked_out,
)

NUMBERS, TARGET = (2, 3, 5, 7), 24
RIGHT = "7*5=35\n35-3=32\n:\n7+5=12\n12*2=24\n24*3=72\n:\n7+2=9\n5*3=15\n15+9=24\n=5*3+7+2"


def test_splits_share_no_puzzle_and_no_numbers_with_the_supervised_ones():
    rows = {split: {row["prompt"] for row in puzzles(split)} for split in SPLITS}
    assert [len(rows[split]) for split in SPLITS] == [1968, 256, 512]
    assert sum(map(len, rows.values())) == len(set.union(*rows.values()))
    theirs = {numbers for numbers, _ in supervised_puzzles()}
    ours = {tuple(row["numbers"]) for split in SPLITS for row in puzzles(split)}
    assert not theirs & ours


@pytest.mark.parametrize("split", SPLITS)
def test_a_row_says_how_hard_it_is_and_holds_a_right_answer(split):
    for row in puzzles(split):
        numbers, target = tuple(row["numbers"]), row["target"]
        assert row["prompt"] == prompt_text(numbers, target)
        assert row["num_numbers"] == len(numbers) in (3, 4)
        assert row["num_solutions"] == ways(numbers)[target] >= 1
        assert is_right(row["completion"], numbers, target)
        assert first_false_step(row["completion"], numbers, target) == -1
        assert len(row["completion"]) < MAX_TOKENS
        assert row["completion"].endswith(f"\n={row['answers'][0]}")
        assert len(set(row["answers"])) == len(row["answers"]) <= row["num_solutions"]
        assert all(is_right(f"={text}", numbers, target) for text in row["answers"])


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="unknown split 'test'"):
        puzzles("test")


def test_ways_are_counted_by_enumeration():
    # (2, 3): 3+2, 3-2, 3*2; 3/2 is not whole. (1, 1): 1-1 is no number at hand.
    assert ways((2, 3)) == {5: 1, 1: 1, 6: 1}
    assert ways((1, 1)) == {2: 1, 1: 2}  # 1*1 and 1/1
    assert ways((1, 1, 1)) == {3: 1, 1: 5, 2: 4}


@given(st.lists(st.integers(1, 10), min_size=2, max_size=4).map(sorted).map(tuple))
def test_steps_are_whole_within_bounds_and_use_what_is_at_hand(numbers):
    for step in moves(numbers):
        assert countdown.evaluate(f"{step.left}{step.symbol}{step.right}") == step.value
        assert step.left >= step.right
        assert 1 <= step.value <= MAX_VALUE
        rest = list(step.after)
        rest.remove(step.value)
        assert sorted([*rest, step.left, step.right]) == list(numbers)


@given(
    st.lists(st.integers(1, 10), min_size=2, max_size=4).map(sorted).map(tuple), st.integers(0, 99)
)
def test_any_way_that_is_worked_out_is_right(numbers, seed):
    rng, steps, at_hand = random.Random(seed), [], numbers
    while len(at_hand) > 1 and moves(at_hand):
        steps.append(rng.choice(moves(at_hand)))
        at_hand = steps[-1].after
    if len(at_hand) == 1:
        text = worked_out(numbers, steps)
        assert is_right(text, numbers, at_hand[0])
        assert first_false_step(text, numbers, at_hand[0]) == -1


def test_expressions_have_only_the_brackets_that_they_need():
    steps = {step.text: step for step in moves((2, 3, 5))}
    expressions = Expressions((2, 3, 5))
    expressions.take(steps["5+3=8"])
    assert expressions.text == "5+3"
    expressions.take({step.text: step for step in moves((2, 8))}["8*2=16"])
    assert expressions.text == "(5+3)*2"
    with pytest.raises(KeyError):
        expressions.take(steps["5+3=8"])


@pytest.mark.parametrize(
    ("completion", "right", "false"),
    [
        (RIGHT, True, -1),
        (RIGHT.replace("15+9=24", "15+9=25"), True, 9),  # the answer is right, a step is not
        (RIGHT.replace("35-3=32", "35-3=31"), True, 1),  # mended: given up, begun again
        (RIGHT.replace("=5*3+7+2", "=5*3+7-2"), False, 10),  # does not equal the target
        (RIGHT.replace("=5*3+7+2", "=5*3+7+2+2"), False, 10),  # a number used twice
        (RIGHT.replace("=5*3+7+2", "=24"), False, 10),
        (RIGHT + "\n", False, 11),  # the answer is the last line
        (RIGHT + "\n:", False, 11),
        ("7*5=35\n35-3=3", False, 1),  # cut off: the last line
        ("7*5=35\n35-3=32", False, 1),  # no answer: the last line
        ("7*5=35\n7-2=5", False, 1),  # 7 is used up
        ("7*5=35\n:\n7-2=5\n=5*3+7+2", True, -1),  # fewer steps than numbers, and right
        ("7*5=35=35", False, 0),
        ("7x5=35", False, 0),
        ("", False, 0),
        ("7/2=3", False, 0),
        ("=5*3+7+2", True, -1),
        ("=5*3+7+2\n=5*3+7+2", False, 1),  # an answer is given once
        ("= 5*3 + 7+2", True, -1),
    ],
)
def test_what_is_right_and_where_the_first_false_step_is(completion, right, false):
    assert is_right(completion, NUMBERS, TARGET) == right
    assert first_false_step(completion, NUMBERS, TARGET) == false


@given(st.text("0123456789+-*/(),:= \n", max_size=60))
def test_a_wrong_completion_has_a_false_step_and_one_without_is_right(completion):
    place = first_false_step(completion, NUMBERS, TARGET)
    right = is_right(completion, NUMBERS, TARGET)
    assert place < len(completion.split("\n"))
    assert right or place >= 0


def test_the_reward_logs_steps_and_does_not_reward_them():
    columns, metrics = {}, {}
    rows = [RIGHT, RIGHT.replace("35-3=32", "35-3=31"), "7*5=35\n35-3=32\n=7*5-3"]
    rewards = correct(
        [], rows, [NUMBERS] * 3, [TARGET] * 3, columns.__setitem__, metrics.__setitem__
    )
    assert rewards == [1.0, 1.0, 0.0]
    assert columns == {"first_false_step": [-1, 1, 2], "num_tries": [3, 3, 1]}
    assert metrics == {
        "worked/tries": pytest.approx(7 / 3), "worked/frac_false_step": pytest.approx(2 / 3)
    }  # fmt: skip
    assert correct([], rows, [NUMBERS] * 3, [TARGET] * 3) == rewards


def test_answers_that_differ_in_order_alone_are_one():
    assert extract_answer("7+2=9\n=7+2+5*3") == extract_answer("=3*5+(2+7)") == "2+3*5+7"
    assert extract_answer("7+2=9") is None
    assert extract_answer("=7+") is None


def test_the_task_has_the_splits_the_reward_and_the_facts():
    task = load_task("worked_countdown", num_train=7, num_validation=3, num_heldout=0)
    assert [len(task.train), len(task.validation), len(task.heldout)] == [7, 3, 0]
    assert task.max_tokens == 160
    assert task.final_answers([RIGHT, "7"]) == ["2+3*5+7", None]
    assert task.train[0].columns["num_solutions"] >= 1
