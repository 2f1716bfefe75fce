"""Final answers in text, and the built-in rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.rewards.answers import exact_match, extract_answer, references
from strop.rewards.mathematics import math_verify
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer> 4 </answer>", "4"),
        ("<answer>1</answer> no, <answer>2</answer> done \\boxed{3}", "2"),
        ("so \\boxed{1} or \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed{7} and then \\boxed{unclosed", "7"),
        ("} { \\boxed{5} {", "5"),
        ("thinking\n 42 \n\n", "42"),
        ("<answer>unclosed\n9", "9"),
        ("<think>is it \\boxed{7}?</think> It is\n9", "9"),
        ("<think><answer>7</answer></think>\\boxed{8}", "8"),
        ("so \\boxed{7}</think>\n", "7"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_extract_answer(completion, answer):
    assert extract_answer(completion) == answer


@given(st.text(alphabet="ab{}\\\n<>", max_size=60), st.text(alphabet="ab12+", min_size=1))
def test_a_closing_boxed_answer_is_always_found(before, answer):
    assert extract_answer(f"{before.replace('<', '')}\n\\boxed{{{answer}}}") == answer


def test_many_unclosed_boxes_take_linear_time():
    assert extract_answer("\\boxed{" * 200_000 + "\n8") == "8"


def test_exact_match():
    chat = [{"role": "assistant", "content": "<answer>4</answer>"}]
    said = [chat, "x\n5", "6", "7"]
    assert exact_match(said, answer=["4", 5, "60", None]) == [1.0, 1.0, 0.0, None]
    assert exact_match(["5"], ground_truth=["5"], answer=["2 + 3 #### 5"]) == [1.0]
    with pytest.raises(UserError, match="'answer' or 'ground_truth'"):
        exact_match(said)


def test_a_reference_may_mark_its_answer_as_completions_do():
    marked = ["so \\boxed{4}", "<answer> 4 </answer>", "4", "\\boxed{5}"]
    assert exact_match(["it is \\boxed{4}"] * 4, answer=marked) == [1.0, 1.0, 1.0, 0.0]
    assert exact_match(["so\n4\n5"], answer=["4\n5"]) == [0.0]  # a last line marks nothing


def test_an_accent_may_be_a_character_of_its_own():
    composed, apart = "caf\u00e9", "cafe\u0301"
    said, wanted = [composed, apart, "cafe"], [apart, composed, apart]
    assert exact_match(said, answer=wanted) == [1.0, 1.0, 0.0]


def test_an_empty_reference_pays_no_empty_answer():
    assert exact_match(["", " ", "3"], answer=["", "  ", "3"]) == [None, None, 1.0]


def test_a_column_of_integers_with_gaps_holds_floats():
    assert exact_match(["12", "12.0", "3", "0"], answer=[12.0, 12.0, 3.5, float("nan")]) == [
        1.0,
        1.0,
        0.0,
        None,
    ]


@pytest.mark.parametrize("reward", [exact_match, math_verify])
@pytest.mark.parametrize("several", [["1", "2"], {"value": 1}])
def test_a_reference_of_several_values_is_refused(reward, several):
    with pytest.raises(UserError, match=r"the reference of a row is .*make it a text or a number"):
        reward(["1"], answer=[several])


def test_each_row_has_its_own_reference_column():
    # Rows of GSM8K's layout beside rows with an answer alone: columns that a row lacks are None.
    columns = {"ground_truth": ["2", None, None], "answer": ["so #### 2", "4", None]}
    assert exact_match(["2", "4", "6"], **columns) == [1.0, 1.0, None]
    assert references(*columns.values()) == ["2", "4", None]
    assert references(None, ["1"]) == ["1"]
    assert references(["", " ", 2, ""], ["1", None, "", ""]) == ["1", " ", 2, ""]  # of a CSV file
    assert references(None, None) is None
