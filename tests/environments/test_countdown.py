"""Countdown: the splits, the verifier and the canonical text of an answer."""

import hashlib
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.environments import countdown
from strop.environments.countdown import (
    correct,
    evaluate,
    extract_answer,
    is_well_formed,
    joined,
    solutions,
)

ROWS = {split: countdown.puzzles(split) for split in countdown.SPLITS}
DIGESTS = {
    "train": "a6605cf504247c21812c4fc022bfcd6829d644c136e2c68a0017c2d1b56cc6a7",
    "validation": "8d268b7b3f5f1c3f4f6981e02290b8ba2818995bd39402f7b67902a201f68de4",
    "held_out": "8aef8e7f8fb349300bc4fb26ec1af876ae4151dd705fa81cf426becf9f3bea52",
}
ANSWER_CHARACTERS = "0123456789+-*/() "
number = st.integers(1, 12)


def score(completion: str, numbers: list[int], target: int) -> float:
    [value] = correct(["ignored"], [completion], numbers=[numbers], target=[target], extra=[1])
    return value


def expression_text(numbers: list[int], data: st.DataObject) -> str:
    """A random expression of the numbers in this order, every part in brackets."""
    if len(numbers) == 1:
        return str(numbers[0])
    cut = data.draw(st.integers(1, len(numbers) - 1))
    left, right = expression_text(numbers[:cut], data), expression_text(numbers[cut:], data)
    return f"({left}{data.draw(st.sampled_from('+-*/'))}{right})"


def test_splits_have_their_sizes_and_share_no_puzzle():
    assert {split: len(rows) for split, rows in ROWS.items()} == {
        "train": 3700,
        "validation": 256,
        "held_out": 512,
    }
    keys = [(*sorted(r["numbers"]), r["target"]) for rows in ROWS.values() for r in rows]
    assert len(set(keys)) == len(keys) == 4468


@pytest.mark.parametrize("split", countdown.SPLITS)
def test_rows_are_the_same_on_every_machine(split):
    puzzles = [{k: v for k, v in row.items() if k != "completion"} for row in ROWS[split]]
    assert hashlib.sha256(json.dumps(puzzles).encode()).hexdigest() == DIGESTS[split]


@pytest.mark.parametrize("split", countdown.SPLITS)
def test_the_completion_is_a_right_answer_that_fits(split):
    for row in ROWS[split]:
        answers = countdown.solutions(row["numbers"], row["target"])
        assert row["completion"] in answers
        assert len(row["completion"]) == min(map(len, answers)) < countdown.MAX_TOKENS


def test_unknown_split_is_named():
    with pytest.raises(ValueError, match=r"'test'.*held_out"):
        countdown.puzzles("test")


@pytest.mark.parametrize("split", countdown.SPLITS)
def test_every_puzzle_has_a_solution_that_the_verifier_accepts(split):
    rows = ROWS[split]
    answers = [solutions(row["numbers"], row["target"])[-1] for row in rows]
    numbers, targets = [r["numbers"] for r in rows], [r["target"] for r in rows]
    assert correct([], answers, numbers=numbers, target=targets) == [1.0] * len(rows)
    off_by_one = [target + 1 for target in targets]
    assert correct([], answers, numbers=numbers, target=off_by_one) == [0.0] * len(rows)
    assert max(map(len, answers)) < countdown.MAX_TOKENS  # leaves room for the end
    for row in rows:
        text = ",".join(map(str, row["numbers"])) + f":{row['target']}="
        assert row["prompt"] == text


def test_solutions_are_all_texts_without_needless_brackets():
    assert solutions([7, 5, 3], 22) == ["3*5+7", "5*3+7", "7+3*5", "7+5*3"]
    assert "8/(3-8/3)" not in solutions([3, 3, 8], 24)  # uses two eights
    quotients = ["2*9/3", "9*2/3", "2/3*9", "9/3*2", "2/(3/9)", "9/(3/2)"]
    assert solutions([2, 3, 9], 6) == sorted([*quotients, "(3+9)/2", "(9+3)/2"])


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("3*5+7", 1.0),
        (" 7 + 3*5 ", 1.0),
        ("((7)+(5*3))", 1.0),
        ("(3+5)*7", 0.0),  # 56
        ("3*5+7=22", 0.0),
        ("3*5+7+7-7", 0.0),  # seven three times
        ("15+7", 0.0),
        ("22", 0.0),
        ("3*5--7", 0.0),
        ("+3*5+7", 0.0),
        ("3*5+7.0", 0.0),
        ("3*5+07", 0.0),
        ("3*5 7", 0.0),
        ("3(5)+7", 0.0),
        ("5**3//7", 0.0),  # 17 with other numbers' rules: not among the four operations
        ("3,5,7", 0.0),
        ("", 0.0),
        ("(" * 90, 0.0),
        ("3*5+7" + " +0" * 40, 0.0),
        ("__import__('os')", 0.0),
        ("3*5+7\n3*5+7", 0.0),
    ],
)
def test_verifier_on_examples(completion, value):
    assert score(completion, [3, 5, 7], 22) == value


def test_arithmetic_is_exact():
    assert evaluate("1/3*3") == 1
    assert evaluate("2/(3-5)/4") == Fraction(-1, 4)
    assert score("8/(3-8/3)", [3, 3, 8, 8], 24) == 1.0  # 8 / (1/3), wrong in binary fractions


def test_division_by_zero_is_wrong():
    assert evaluate("5/(3-3)") is None
    assert is_well_formed("5/(3-3)", [3, 3, 5])
    assert score("5/(3-3)", [3, 3, 5], 5) == 0.0


@given(st.text() | st.text(ANSWER_CHARACTERS, max_size=120), st.lists(number), st.integers())
def test_verifier_never_raises(completion, numbers, target):
    assert score(completion, numbers, target) in (0.0, 1.0)
    answer = extract_answer(completion)
    assert answer is None or extract_answer(answer) == answer


@given(st.lists(number, min_size=2, max_size=4), st.data())
def test_value_and_score_do_not_depend_on_writing(numbers, data):
    text = expression_text(numbers, data)
    value = evaluate(text)
    assert is_well_formed(text, numbers[::-1])
    if value is not None and value.denominator == 1:
        canonical = extract_answer(text)
        assert canonical is not None
        assert evaluate(canonical) == value
        assert score(text, numbers, int(value)) == score(canonical, numbers, int(value)) == 1.0
        assert score(text, numbers, int(value) + 1) == 0.0


@given(st.lists(number, min_size=2, max_size=4), st.data())
def test_a_number_left_out_or_used_twice_is_wrong(numbers, data):
    text = expression_text(numbers, data)
    for used in (numbers[1:], [*numbers, numbers[0]]):
        assert not is_well_formed(text, used)
        assert score(text, used, int(evaluate(text) or 0)) == 0.0


@given(number, number, number, st.sampled_from("+*"), st.sampled_from("+*"))
def test_commuted_answers_have_one_canonical_text(a, b, c, inner, outer):
    one = f"({a}{inner}{b}){outer}{c}"
    other = f"{c}{outer}({b}{inner}{a})"
    assert extract_answer(one) == extract_answer(other)
    assert score(one, [a, b, c], int(evaluate(one) or 0)) == 1.0
    assert score(other, [a, b, c], int(evaluate(one) or 0)) == 1.0


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("(7+5)*3", "(5+7)*3"),
        ("3*(5+7)", "(5+7)*3"),
        ("9-(5-7)", "7+9-5"),
        ("9/(5/7)", "7*9/5"),
        ("2-3*(1-4)", "2-(1-4)*3"),
        ("3 - 5", "3-5"),
        ("5-3", "5-3"),
        ("no", None),
    ],
)
def test_canonical_text(text, canonical):
    assert extract_answer(text) == canonical


def test_brackets_stand_where_they_change_the_value():
    assert joined(("8", ""), "/", ("2*2", "*")) == "8/(2*2)"
    assert joined(("8", ""), "*", ("2*2", "*")) == "8*2*2"
    assert joined(("8", ""), "-", ("2*2", "*")) == "8-2*2"
    assert joined(("8", ""), "-", ("2+2", "+")) == "8-(2+2)"
