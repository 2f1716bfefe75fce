"""Whether a failure is the answer's own or the reward's, judged by other answers."""

import pytest
from grading import grade, spec

from strop.rewards.grader import Grader, reference
from strop.support.exits import Exit
from strop.training.services.run import counted

REWARDS = """
import os, time

def tagged(completions, answer):
    "Wants a tag, which references do not have."
    return [float(text.split(">")[1] == a) for text, a in zip(completions, answer)]

def no_brackets(completions, answer):
    for text in completions:
        if "(" in text:
            raise ValueError(text)
    return [float(text == a) for text, a in zip(completions, answer)]

def broken(completions, answer):
    return [undefined] * len(completions)

def sometimes_nan(completions):
    return [float("nan") if text == "nan" else "1" if text == "text" else 1.0
            for text in completions]

def declares(completions):
    from strop.rewards.scored import Unscored
    if "raise" in completions:
        raise ValueError
    return [Unscored("mine") if text == "declare" else 1.0 for text in completions]

def ones(completions):
    return [1.0] * len(completions)

def vanishes(completions):
    if "hide" in completions:
        os.remove("rewards.py")
        os._exit(3)
    return [1.0] * len(completions)
"""


@pytest.fixture
def causes(tmp_path, monkeypatch):
    """What each row of a function ended with, given groups and references."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)

    def ask(function, completions, groups, answer=None):
        columns = {} if answer is None else {"answer": answer}
        num = len(completions)
        with Grader([spec(function)]) as grader:
            found = grader.grade(["p"] * num, completions, [[]] * num, columns, groups=groups)
        by_row = {f.row: f.cause.label for f in found.failures}
        return [by_row.get(row, "-") for row in range(num)]

    return ask


def test_an_answer_that_fails_where_others_pass_fails_by_itself(causes):
    # Without its tag a reference fails too, as all references do: that says nothing.
    answers = [">4", "4", ">5", "nothing"]
    assert causes("tagged", answers, [0, 0, 1, 1], ["4", "4", "5", "5"]) == [
        "-", "exception", "-", "exception",
    ]  # fmt: skip


def test_a_reward_that_fails_on_the_reference_too_is_at_fault(causes):
    # "(1)" is right and cannot be read; the reference of the other row can be.
    answers = ["(1)", "2", "5(", "5"]
    assert causes("no_brackets", answers, [0, 0, 1, 1], ["(1)", "(1)", "5", "5"]) == [
        "reward_bug", "-", "exception", "-",
    ]  # fmt: skip


def test_a_reference_may_be_a_message():
    columns = {"completion": [[{"role": "assistant", "content": "4"}], None], "answer": ["5", 6]}
    assert [reference(columns, row) for row in range(2)] == ["4", "6"]


def test_a_reward_that_scores_nothing_is_at_fault(causes):
    assert causes("broken", ["1", "2"], [0, 1], ["1", "2"]) == ["reward_bug"] * 2
    # ... and one that scores the references is not, if no answer of the batch can be read
    assert causes("no_brackets", ["(", "(("], [0, 1], ["1", "2"]) == ["exception"] * 2


def test_what_is_no_number_costs_its_row(causes):
    assert causes("sometimes_nan", ["nan", "a", "text"], [0, 0, 0]) == [
        "unreadable", "-", "unreadable",
    ]  # fmt: skip


def test_a_process_that_does_not_start_again_costs_no_answer_its_score(causes):
    assert causes("vanishes", ["a", "hide", "b"], [0, 0, 0]) == [
        "start_failed", "start_failed", "not_tried",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("on_failure", "outcome", "scored"),
    [(-1.0, [2.5, -1.5, 0.0], [True, True, False]), (None, [2.5, 0.0, 0.0], [True, False, False])],
)
def test_what_an_answers_own_failure_counts(causes, on_failure, outcome, scored):
    # 2 * 1 + 0.5 * 1; 2 * -1 + 0.5 * 1; the third says by itself that it has no score
    with Grader([spec("declares", weight=2.0), spec("ones", weight=0.5)]) as grader:
        grades = grade(grader, ["a", "raise", "declare"])
    graded = counted(grades, grader.specs, on_failure)
    assert graded.outcome_B.tolist() == outcome
    assert graded.scored_B.tolist() == scored
    assert graded.exit_B.tolist() == [Exit.DONE, Exit.EXCEPTION, Exit.DECLARED]
