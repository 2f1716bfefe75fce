"""Finding reward functions and passing the arguments that they request."""

import sys

import pytest

from strop.rewards.function import Rollouts, load_reward
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError
from strop.support.loading import search_path


@pytest.fixture(autouse=True)
def folder(loads_here, monkeypatch):
    monkeypatch.setattr(sys, "path", search_path())  # without the folders of other tests' files
    return loads_here


def load(source):
    return load_reward(RewardSpec("r", source))


def rollouts(**columns):
    return Rollouts([0, 1], ["p", "q"], ["a", "bb"], [[1], [2, 3]], columns, step=5)


def refusal(source):
    with pytest.raises(UserError) as caught:
        load(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_asked_columns_are_passed(folder):
    (folder / "mine.py").write_text(
        "def some(completions, level=None, other=7):\n    return [level[0], other]\n"
        "def all_of(**kwargs):\n    return [len(kwargs), kwargs['trainer_state'].global_step]\n"
        "def ids(completion_ids, *, answer):\n    return [sum(i) for i in completion_ids]\n"
    )
    assert load("mine.py:some")(rollouts(level=[3, 4], answer=["x", "y"])).scores == [3.0, 7.0]
    # six supplied arguments and two columns
    assert load("mine.py:all_of")(rollouts(level=[3, 4], answer=["x", "y"])).scores == [8.0, 5.0]
    assert load("mine.py:ids")(rollouts(answer=["x", "y"])).scores == [1.0, 5.0]


def test_a_module_and_files_that_import_their_neighbours(folder):
    (folder / "helper_of_mine.py").write_text("VALUE = 2.5\n")
    (folder / "package_of_mine").mkdir()
    (folder / "package_of_mine" / "deep.py").write_text(
        "from helper_of_mine import VALUE\ndef f(completions):\n    return [VALUE] * 2\n"
    )
    (folder / "sub").mkdir()
    (folder / "sub" / "near.py").write_text("BASE = 1\n")
    (folder / "sub" / "mine.py").write_text(
        "from near import BASE\nclass Score:\n    def __call__(self, completions):\n"
        "        return [BASE] * 2\nscore = Score()\n"
    )
    assert load("package_of_mine.deep:f")(rollouts()).scores == [2.5, 2.5]
    assert load("sub/mine.py:score")(rollouts()).scores == [1.0, 1.0]


def test_built_in_rewards():
    assert load("exact_match")(rollouts(answer=["a", "b"])).scores == [1.0, 0.0]
    assert "did you mean 'exact_match'?" in refusal("exact_mach")
    assert "name the function in it, mine.py:FUNCTION" in refusal("mine.py")
    assert "FILE.py:FUNCTION" in refusal("mine.py:")


def test_functions_that_are_not_there(folder):
    (folder / "mine.py").write_text(
        "from math import sqrt\nfrom os.path import join\nVALUE = 3\n"
        "def accuracy(completions): ...\ndef zebra(completions): ...\n"
    )
    message = refusal("mine.py:acuracy")
    assert message.endswith("(did you mean 'accuracy'?); its functions are accuracy, zebra")
    assert "no function 'VALUE'" in refusal("mine.py:VALUE")
    assert "does not exist" in refusal("yours.py:f")
    assert "no module 'no_such_package' was found" in refusal("no_such_package.mod:f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\ndef f(:\n    pass\n", "broken.py:2: SyntaxError"),
        ("x = 1\n\n  y = 2\n", "broken.py:3: IndentationError"),
        ("import no_such_package\n", "broken.py:1: ModuleNotFoundError"),
        ("def g():\n    return 1 / 0\n\ng()\n", "broken.py:2: ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("source", ["broken.py:f", "broken:f"])
def test_files_that_do_not_import(folder, source, text, expected):
    (folder / "broken.py").write_text(text)
    assert expected in refusal(source)


def test_a_missing_column_is_named(folder):
    (folder / "mine.py").write_text("def f(completions, solution, k=1):\n    return [0, 0]\n")
    with pytest.raises(UserError) as caught:
        load("mine.py:f").check(["solutions", "level"])
    assert str(caught.value) == (
        "reward mine.py:f needs the parameter 'solution' and the data has no column 'solution' "
        "(did you mean 'solutions'?); its columns are solutions, level: add it, or rename one with "
        "data.columns"
    )


@pytest.mark.parametrize("scalar", ["np.array(0.5)", "np.float64(0.5)", "0.5"])
def test_one_number_for_all_completions_is_refused(folder, scalar):
    text = f"import numpy as np\ndef f(completions):\n    return {scalar}\n"
    (folder / "mine.py").write_text(text)
    with pytest.raises(UserError, match=r"returned .*0\.5.*must return a list with one number"):
        load("mine.py:f")(rollouts())


def test_log_extra_of_another_length(folder):
    (folder / "mine.py").write_text(
        "def f(completions, log_extra):\n    log_extra('note', ['x'])\n    return [0, 0]\n"
    )
    with pytest.raises(UserError, match=r"log_extra\('note'\) with 1 values for 2 completions"):
        load("mine.py:f")(rollouts())
