"""Answers that would pass their tests without solving the task get 0, honest answers get 1.

The task of the tricks is a function f that doubles a number, or returns a text that nobody guesses.
Each trick is tried on the test that it targets, and on the same test where it has to run inside the
answer's process.
"""

from pathlib import Path

import pytest

from strop.rewards.code import RunTests
from strop.sandbox.plan import plan_of

# The values of some tricks: nothing in them is data.
EQUAL = """
class Equal:
    __eq__ = __le__ = __lt__ = __ge__ = __gt__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = lambda self: hash(4)
    __bool__ = lambda self: True
    __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = __call__ = lambda self, *a: self
    __getattr__ = lambda self, name: self
    __float__ = lambda self: 0.0

"""
INSIDE = "import sys\nsys.setrecursionlimit(2000)\n"
# As docs/REWARDS.md says: tests that are not assertions are decided in the answer's process.
WORK_INSIDE = {
    "changing the arguments", "changing the arguments and giving them back", "patched unittest",
    "a skipped unit test", "the test's own expectation", "cases under a main part",
}  # fmt: skip


def answers(name: str) -> dict[str, tuple[str, str]]:
    """Name -> code and test of the answers in a file."""
    text = Path(__file__).with_name(f"{name}_answers.txt").read_text()
    found = {}
    for piece in text.split("=== ")[1:]:
        title, _, rest = piece.partition("\n")
        code, _, test = rest.partition("--- test\n")
        found[title] = (EQUAL + code if "Equal(" in code else code, test)
    return found


def graded(rows: dict[str, tuple[str, str]], **options: object) -> dict[str, tuple[float, str]]:
    """Score and first failure of each, all graded at once."""
    failures: list[str] = []
    reward = RunTests(seconds=20.0, answer_seconds=20.0, **options)
    scores = reward(
        [code for code, _ in rows.values()],
        lambda _, values: failures.extend(values),
        tests=[[test] for _, test in rows.values()],
    )
    return dict(zip(rows, zip(scores, failures, strict=True), strict=True))


def test_tricks_get_nothing():
    tricks = answers("trick")
    assert len(tricks) >= 60
    assert not any(plan_of(test)["inside"] for _, test in tricks.values())
    assert {name: found for name, found in graded(tricks).items() if found[0] != 0.0} == {}


def test_tricks_get_nothing_inside_but_those_that_the_page_names():
    tricks = {name: (code, INSIDE + test) for name, (code, test) in answers("trick").items()}
    assert all(plan_of(test)["inside"] for _, test in tricks.values())
    won = {name for name, (score, _) in graded(tricks).items() if score != 0.0}
    assert won == WORK_INSIDE


def test_honest_answers_pass():
    honest = answers("honest")
    inside = {name for name, (_, test) in honest.items() if plan_of(test)["inside"]}
    assert inside == {
        "replaced input", "patches", "reading with the system's streams", "a file to read",
        "types that only one process knows",
    }  # fmt: skip
    assert {name: found for name, found in graded(honest).items() if found[0] != 1.0} == {}


def test_honest_answers_pass_without_isolation():
    rows = dict(list(answers("honest").items())[::3])
    found = graded(rows, without_isolation=True)
    assert {name: what for name, what in found.items() if what[0] != 1.0} == {}


@pytest.mark.parametrize("inside", ["", INSIDE])
def test_a_wrong_answer_fails_for_its_assertion(inside):
    rows = {"wrong": ("def f(x):\n    return 3 * x\n", inside + "assert f(2) == 4")}
    assert graded(rows) == {"wrong": (0.0, "case 1: AssertionError")}
