"""What is said before step 1 of rewards that take answers for texts where they are messages."""

import pytest
from grading import spec

from strop.diagnosis.data import _reward_finding
from strop.rewards.grader import Grader
from strop.rewards.trial import ADVICE, notes_of_failing
from strop.support.errors import UserError

REWARDS = """
import re

def of_text(completions):
    return [float(bool(re.search("7", text))) for text in completions]

def of_form(completions):
    "Wants a tag, which the answers of a trial do not have."
    return [float(re.search("<a>(.*)</a>", text).group(1)) for text in completions]

def of_message(completions):
    return [float(re.search("<a>(.*)</a>", c[0]["content"]).group(1)) for c in completions]

def of_both(completions):
    return 1.0 if isinstance(completions[0], str) else [float(c) for c in completions]
"""
CHAT = [{"role": "user", "content": "3 + 4?"}]


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The notes about one of the rewards after two prompts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)

    def call(name, prompt):
        with Grader([spec(name)]) as grader:
            failing = grader.grade([prompt] * 2, ["7", "8"], [()] * 2, {}, groups=[0, 1]).failing
            return notes_of_failing(failing, grader, [prompt] * 2, ["p", "p"], ["7", "8"], {})

    return call


def test_a_reward_that_scores_texts_alone_is_refused_after_a_chat_prompt(told):
    assert told("of_text", "3 + 4?") == []
    with pytest.raises(UserError, match=r'list of one message, not a text.*\[0\]\["content"\]$'):
        told("of_text", CHAT)


def test_a_reward_that_may_want_a_form_is_noted(told):
    (of_form,), (of_message,) = told("of_form", CHAT), told("of_message", CHAT)
    assert of_form.endswith(ADVICE)  # it fails on texts, too
    (of_both,) = told("of_both", CHAT)
    assert of_both.endswith(ADVICE)  # for texts it gives no list
    for note in (of_message, *told("of_form", "3 + 4?")):
        assert "'NoneType' object has no attribute 'group'" in note
        assert note.endswith("the run stops in its first steps")


def test_the_doctor_names_messages_taken_for_texts():
    def advice(prompt, message):
        row = {"reward": "r", "answer": "empty", "scores": [None], "failures": [message]}
        return _reward_finding([row], [prompt]).advice

    assert advice(CHAT, "TypeError: expected string, got 'list'") == ADVICE
    for prompt, message in ((CHAT, "ValueError: no number"), ("p", "TypeError: got 'list'")):
        assert "cannot be parsed the score 0" in advice(prompt, message)
