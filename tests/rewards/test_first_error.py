"""Judges that name the first wrong step: their reward, their data, and a frozen one in use."""

import random

import pytest
from judge_server import serve

from strop.environments import worked_countdown
from strop.environments.flawed_countdown import planted, rows
from strop.rewards.first_error import flaw, read_verdict, verdict, verdict_reward
from strop.support.errors import UserError


@pytest.mark.parametrize(
    ("text", "message"),
    [("3", 3), (" -1\n", -1), ("so \\boxed{1} or \\boxed{ 2 }", 2), ("", None), ("step 3", None),
     ("\\boxed{none}", None), ("1.5", None), ("--1", None)],
)  # fmt: skip
def test_verdicts_are_read(text, message):
    assert read_verdict(text) == message


def test_worked_example_of_the_reward():
    # four steps, the third is wrong: right 1; one away 3/4, two 1/2; sound -1; outside, unreadable
    found = [verdict_reward(said, 2, 4) for said in (2, 1, 3, 0, -1, 4, -2, None)]
    assert found == [1, 0.75, 0.75, 0.5, -1, -1, -1, -1]
    assert [verdict_reward(said, -1, 4) for said in (-1, 0, 3, None)] == [1, -1, -1, -1]
    logged = {}
    columns = {"first_error": [0, -1, 1], "num_steps": [2, 2, 4], "log_metric": logged.__setitem__}
    assert verdict(["0", "\\boxed{-1}", [{"content": "3"}]], **columns) == [1, 1, 0.5]
    assert logged == {"judge/frac_right": pytest.approx(2 / 3)}
    with pytest.raises(UserError, match="has first_error None and num_steps 2: give whole numbers"):
        verdict(["x"], [None], [2])
    with pytest.raises(UserError, match=r"num_steps 0: give whole numbers, .*, 1 or more"):
        verdict(["-1"], [-1], [0])


def test_planted_steps_are_the_first_that_are_wrong_and_the_answer_stays_right():
    for row in rows("validation", 40):
        worked = row["prompt"].partition("\n")[2].removesuffix("\n:")
        given = row["numbers"], row["target"]
        assert row["num_steps"] == worked.count("\n") + 1
        assert row["first_error"] == worked_countdown.first_false_step(worked, *given)
        assert row["completion"] == str(row["first_error"])
        assert worked_countdown.is_right(worked, *given)
    flawed = [row["first_error"] >= 0 for row in rows("validation", 40)]
    assert flawed == [True, False] * 20
    assert rows("validation", 6) == rows("validation", 6) != rows("validation", 6, seed=1)
    one = planted("3+4=7\n=3+4", random.Random(0))
    assert one.startswith("3+4=")
    assert one.endswith("\n=3+4")
    assert not one.startswith("3+4=7\n")


def test_a_judge_behind_an_endpoint_gives_the_number_that_it_said(tmp_path):
    said = iter(["First wrong: 3", "First wrong: -1", "no idea", "First wrong: 0"])
    with serve(lambda body: next(said)) as served:
        file = tmp_path / "judge.toml"
        file.write_text(
            f'base_url = "{served.url}"\nmodel = "m"\nprompt = "{{completion}}"\n'
            "score = 'wrong: (-?\\d+)'\nscale = [-1, 160]\nconcurrency = 1\n"
        )
        asked = flaw(judge=str(file))
        found = asked(["p"] * 4, ["a", "b", "c", "d"], log_extra=lambda *_: None)
    assert found == [3, -1, None, 0]
    file.write_text(file.read_text().replace("[-1, 160]", "[0, 160]"))
    with pytest.raises(UserError, match="begin with -1"):
        flaw(judge=str(file))
    for options in ({}, {"judge": str(file), "model": "m"}):
        with pytest.raises(UserError, match="one of them"):
            flaw(**options)
    with pytest.raises(UserError, match="cannot be loaded"):
        flaw(model=str(tmp_path))
    wrong = {"\\boxed{}": r"has the field \{\}", "{answer}": r"has the field \{answer\}",
             "{prompt!x}": "nothing can fill", "{": "cannot be read"}  # fmt: skip
    for prompt, why in wrong.items():
        with pytest.raises(UserError, match=f"flaw: prompt=.*{why}.* its fields are prompt and"):
            flaw(model=str(tmp_path), prompt=prompt)
    with pytest.raises(UserError, match="flaw: max_tokens=0: make it a whole number from 1"):
        flaw(model=str(tmp_path), max_tokens=0)
