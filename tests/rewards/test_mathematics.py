"""Answers compared as mathematics."""

import pytest

from strop.rewards.mathematics import math_verify
from strop.support.errors import UserError


def test_math_verify_compares_values():
    said = ["so \\boxed{1/2}", "\\boxed{0.5}", "$\\frac{2}{4}$", "\\boxed{0.51}", "no idea", ""]
    assert math_verify(said, answer=["0.5"] * 6) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert math_verify(["\\boxed{x+1}"], solution=["... $\\boxed{1+x}$"]) == [1.0]


def test_an_answer_stands_behind_the_thought():
    said = [
        "<think>Perhaps \\boxed{7}.</think> The answer is \\boxed{3}.",
        "perhaps \\boxed{7}</think>It is 3.",
        "<think>It is \\boxed{3}</think>",
        "<think>It is \\boxed{3}</think> No, \\boxed{4}",
    ]
    assert math_verify(said, answer=["3"] * 4) == [1.0, 1.0, 1.0, 0.0]


def test_an_answer_in_tags_is_the_answer():
    said = [
        "<think>or 7</think><answer>1/2</answer>",
        "<answer>$x = \\frac{1}{2}$</answer>",
        "<answer>\\boxed{0.5}</answer> \\boxed{3}",
        "<answer>0.51</answer> \\boxed{0.5}",
        "<answer></answer> \\boxed{0.5}",
        "<answer>The answer is 0.5</answer>",
    ]
    assert math_verify(said, answer=["0.5"] * 6) == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert math_verify(said[:1], answer=["so <answer>0.5</answer>"]) == [1.0]


def test_math_verify_without_reference():
    assert math_verify(["\\boxed{1}", "\\boxed{1}"], answer=[None, ""]) == [None, None]
    both = math_verify(["\\boxed{72}"], answer=["24 + 48 #### 72"], ground_truth=["72"])
    assert both == [1.0]
    with pytest.raises(UserError, match="'ground_truth', 'answer' or 'solution'"):
        math_verify(["1"])


def test_an_escaped_dollar_is_a_price():
    said = ["so \\boxed{\\$18.90}", "\\boxed{18.90}", "\\boxed{19}"]
    assert math_verify(said, answer=["\\$18.90"] * 3) == [1.0, 1.0, 0.0]
    assert math_verify(["\\boxed{5}", "\\boxed{6}"], answer=["$5"] * 2) == [1.0, 0.0]


def test_each_row_has_its_own_reference_column():
    columns = {"ground_truth": ["2", None, None], "solution": [None, None, "$4$"]}
    assert math_verify(["\\boxed{2}", "\\boxed{3}", "\\boxed{4}"], **columns) == [1.0, None, 1.0]
