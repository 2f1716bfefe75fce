"""Where a test runs and which names it refers to, read from the test alone."""

import pytest

from strop.sandbox.judge import merge
from strop.sandbox.plan import plan_of


@pytest.mark.parametrize(
    ("test", "inside"),
    [
        ("assert f(2) == 4", False),
        ("import sys, types\nassert f(2) == 4", True),  # objects of `types` cannot be sent
        ("import sys\nassert f(2) <= sys.maxsize", False),
        ("import sys\nsys.stdin = 3", True),
        ("input = [1, 2]\nassert f(input) == 3", False),  # a variable of the test
        ("assert f(input) == 3", True),
        ("assert eval(f(2)) == 4", True),  # the answer's text would run beside the test
        ("import random\nassert f(random.random()) < 1", False),
        ("import random\nrandom.seed(1)\nassert f(2) == 4", True),
        ("import numpy as np\nassert np.allclose(f(2), 4)", False),
        ("import pandas as pd\nassert f(2).equals(pd.DataFrame())", True),
        ("from unittest import mock\nassert f(2) == 4", True),
        ("import io\nassert f(io.StringIO('a')) == 'a'", True),
        ("assert f(2) ==", False),
    ],
)
def test_where_a_test_runs(test, inside):
    assert plan_of(test)["inside"] is inside


@pytest.mark.parametrize(
    ("test", "shadowed", "helpers"),
    [
        ("assert max([1, 5]) == 5", ["max"], {}),
        ("assert abs(f(2) - 4) < 1", [], {}),
        ("from answer import f\nassert abs(f(2) - 4) < 1", [], {}),
        ("assert math.isclose(f(2), 4)", [], {"math": ("math", "")}),
        ("assert isclose(f(2), 4)", [], {"isclose": ("math", "isclose")}),
        ("assert isclose(2, 2)", [], {}),  # nothing else can be the answer's
        ("math = f(2)\nassert math.real == 4", [], {}),
        ("assert copy([1]) == [1]", [], {}),  # no module: it is called
    ],
)
def test_whose_names_they_are(test, shadowed, helpers):
    plan = plan_of(test)
    assert plan["helpers"] == helpers
    assert plan["shadowed"] == shadowed


def test_literals_and_real_functions_stay_outside():
    test = "import sys\nsys.stdin = None\nassert abs(f(2) - 4) < 1e-6 and g(3) == [h, 'four']"
    plan = plan_of(test)
    assert plan["needed"] == [0, 1]
    near, equal = (eval(code, {}) for code in plan["checks"])
    assert near(4.0000001)
    assert not near(4.1)
    assert equal(["x", "four"], "x")
    assert not equal(["x", "four"], "y")
    inside = str(plan["code"].co_consts)
    assert "four" not in inside
    assert "1e-06" not in inside


def test_arguments_are_changed_in_place():
    inner = [3]
    given = [inner, {"a": {1}}, (inner, "x"), 5]
    merge(given, [[3, 4], {"a": {2}, "b": 0}, ([3, 4], "x"), 6, 7])
    assert given == [[3, 4], {"a": {2}, "b": 0}, ([3, 4], "x"), 6, 7]
    assert given[0] is inner
    assert given[2][0] is inner
