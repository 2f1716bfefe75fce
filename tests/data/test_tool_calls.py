"""Calls in actions, and how environments describe their prompts and calls."""

from unittest import mock

import pytest

from strop.data import tool_calls
from strop.data.tool_calls import tagged_calls
from strop.environments.built_in.calculator import Calculator
from strop.environments.built_in.corridor import Corridor
from strop.environments.tasks import load_task


def test_calls_are_read_from_tags():
    action = (
        'so <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call> and\n'
        '<tool_call>\n{"name": "g", "arguments": "{\\"y\\": 2}"}\n</tool_call>'
        '<tool_call>{"name": "h", "arguments": [1]}</tool_call><tool_call>f(1)</tool_call>'
        '<tool_call>["f"]</tool_call><tool_call>{"name": 3}</tool_call>'
    )
    assert tagged_calls(action) == [
        ("f", {"x": 1}), ("g", {"y": 2}), ("h", {}), ("", {}), ("", {}), ("", {}),
    ]  # fmt: skip
    assert tagged_calls("no call") == []


def test_of_an_answer_that_repeats_an_open_tag_little_is_read_again(monkeypatch):
    """JSON is sought only where it may begin: its error counts the lines of all the text before."""
    sought = mock.Mock(wraps=tool_calls._first_value)
    monkeypatch.setattr(tool_calls, "_first_value", sought)
    assert tagged_calls("<tool_call>" * 99 + "<tool_call>\ng(1)" * 99) == []
    assert sought.call_count == 0
    assert tagged_calls('<tool_call>g<tool_call>\n{"name": "f"}</tool_call>') == [("f", {})]
    assert sought.call_count == 1


@pytest.mark.parametrize("style", ["plain", "compact"])
def test_the_calculator_knows_its_answer_its_reference_and_its_calls(style):
    calculator = Calculator(style=style, operations="-")
    calculator.reset(3)
    (reference,) = calculator.columns()["reference_calls"]
    expression = reference["arguments"]["expression"]
    assert calculator.calls(f"{expression}=") == [("calculator", {"expression": expression})]
    assert calculator.calls(calculator.columns()["answer"]) == []
    assert calculator.calls("?") == []
    assert calculator.step(calculator.columns()["answer"]).reward == 1.0


def test_columns_of_an_environment_are_those_of_its_prompts():
    rows = load_task("calculator", num_train=4, num_validation=1, num_heldout=1).train
    assert [set(row.columns) for row in rows] == [{"answer", "reference_calls", "seed"}] * 4
    assert len({row.columns["answer"] for row in rows}) > 1
    assert set(load_task("corridor", num_train=1).train[0].columns) == {"seed"}


def test_other_environments_read_tagged_calls():
    assert Corridor().calls('<tool_call>{"name": "look"}</tool_call>') == [("look", {})]
