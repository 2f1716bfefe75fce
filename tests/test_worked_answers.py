"""The numbers that the programs on worked answers compute for tokens, lines and credit."""

import csv
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import credit_on_false_steps
import entropy_by_role
from credit_on_false_steps import judge, kind_of, line_means, ranks, spearman
from entropy_by_role import interval, labels_of, summaries
from worked_answers import lines_of, roles_of

from strop.support.errors import UserError

SHORT = {
    "first of a line": "F", "left number, further digits": "l", "symbol": "s", "right number": "r",
    "equals sign": "e", "result": "v", "answer": "a", "line break": "b", "end": ".", "other": "?",
}  # fmt: skip


def short(pieces):
    return "".join(SHORT[role] for role in roles_of(pieces))


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("12*3=36\n", "Flsrevvb"),
        ("7-5=2\n:\n", "FsrevbFb"),
        ("7-5=2\n=(7-5)*10", "FsrevbFaaaaaaaa"),
        ("7-=2", "Fs??"),  # no right number
        ("7*5+2=37\nx", "Fsr?????bF"),
        (":5\n\n=2\n3", "F?bFFabF"),
        ("+5=5\n", "F???b"),
    ],
)
def test_roles_of_characters(text, roles):
    assert short([*text, ""]) == roles + "."


def test_a_token_of_several_characters_has_the_role_of_its_first():
    assert short(["12", "*3", "=", "36\n", ":", "\n=", "12-", "3", ""]) == "FsevFbaa."
    assert lines_of(["12", "*3", "=36\n", ":", "\n=", "1", ""]) == [0, 0, 0, 1, 1, 2, 2]


def test_a_line_break_belongs_to_the_line_that_it_ends():
    assert lines_of([*"1+2\n:\n=", ""]) == [0, 0, 0, 0, 1, 1, 2, 2]


def test_labels_of_an_answer():
    labels = labels_of([*"9-1=8\n:\n=9", ""])
    assert labels["role"] == roles_of([*"9-1=8\n:\n=9", ""])
    started = [
        (place, label) for place, label in enumerate(labels["first of a line begins"]) if label
    ]
    assert started == [(0, "a step"), (6, "a new beginning"), (8, "the answer")]
    assert labels["tenth of the answer"] == ["1", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
    assert labels["line"] == ["1"] * 6 + ["2"] * 2 + ["3"] * 3
    assert labels_of(["\n"] * 20)["line"][10:13] == ["11", "12 or later", "12 or later"]


def test_a_summary_by_hand():
    entropy = torch.tensor([1.0, 3.0, 0.0, 2.0])
    top = torch.tensor([False, True, False, True])
    found = summaries(["a", "a", "b", ""], ("a", "b", "c"), entropy, top)
    assert found["a"] == (0.5, 2.0, 0.5, 0.5)
    assert found["b"] == (0.25, 0.0, 0.0, 0.0)
    assert found["c"][::2] == (0.0, 0.0)
    assert math.isnan(found["c"].entropy)
    assert math.isnan(found["c"].in_top)


def test_ranks_and_their_correlation():
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert spearman([1, 2, 9], [10, 20, 21]) == pytest.approx(1)
    # ranks 1.5 1.5 3 and 1 2 3: centred -0.5 -0.5 1 and -1 0 1; 1.5 / sqrt(1.5 * 2)
    assert spearman([4, 4, 5], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(3))
    assert math.isnan(spearman([2, 2], [1, 3]))


def test_where_the_false_line_stands_among_the_lines():
    # ranks 3 1 2 and 1.5 3 1.5: centred 1 -1 0 and -0.5 1 -0.5; -1.5 / sqrt(2 * 1.5)
    lowest = judge([0.5, -1.0, 0.0], 1)
    assert lowest == pytest.approx((-1.5 / math.sqrt(3), 1.0, 1.0, 1 / 3, 0.0))
    # ranks 2.5 4 2.5 1 and 2 2 4 2: centred 0 1.5 0 -1.5 and -0.5 -0.5 1.5 -0.5
    assert judge([0.0, 1.0, 0.0, -2.0], 2) == (0.0, 0.5, 0.0, 0.25, 0.0)
    assert judge([7.0, 7.0], 0) == (0.0, 0.5, 0.5, 0.5, 1.0)  # constant: as by chance


def test_the_credit_of_lines():
    lines = [0, 0, 1, 2, 2]
    assert line_means([1, 2, 3, 4, 6], [True] * 5, lines) == [1.5, 3, 5]
    assert line_means([1, 2, 3, 4, 6], [False, True, False, True, True], lines) == [2, 0, 5]
    third = torch.tensor(-1 / 3).item()
    assert len(set(line_means([third] * 13, [True] * 13, [0] * 3 + [1] * 10))) == 1


def test_kinds_of_false_lines():
    assert kind_of("1+2=4\n=1+2", 0, truncated=False) == "step"
    assert kind_of("1+2=3\n=1+2", 1, truncated=False) == "answer"
    assert kind_of("1+2=3\n3+", 1, truncated=True) == "cut off"
    assert kind_of("1+2=4\n3+", 0, truncated=True) == "step"


def run(program, monkeypatch, tmp_path, *words):
    out = tmp_path / "out.csv"
    monkeypatch.setattr(sys, "argv", ["program", *words, "--rollouts", "4", "--out", str(out)])
    program.main()
    with out.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_shares_add_up_on_the_shipped_model(monkeypatch, tmp_path, capsys):
    words = ("tiny-worked", "--prompts", "2", "--batches", "2")
    rows = run(entropy_by_role, monkeypatch, tmp_path, *words)
    for batch in "01":
        own = [row for row in rows if row["batch"] == batch]
        whole = {row["label"]: float(row["value"]) for row in own if row["table"] == "batch"}
        for table in ("role", "tenth of the answer", "line"):
            of = [row for row in own if row["table"] == table]
            assert sum(float(row["share"]) for row in of) == pytest.approx(1)
            assert sum(float(row["share of top"]) for row in of) == pytest.approx(1)
            known = [(float(row["share"]), float(row["entropy"])) for row in of]
            mean = sum(share * entropy for share, entropy in known if share)
            assert mean == pytest.approx(whole["entropy"], abs=1e-6)
    assert "smallest entropy in the top" in capsys.readouterr().out


def test_credit_of_one_number_an_answer_tells_nothing(monkeypatch, tmp_path, capsys):
    words = ("tiny-worked", "grpo", "--prompts", "2", "--batches", "2")
    rows = run(credit_on_false_steps, monkeypatch, tmp_path, *words)
    without = {credit_on_false_steps.LAST, credit_on_false_steps.LIKELY}
    assert {row["credit"] for row in rows} == {"grpo", *without}
    for row in rows:
        if row["credit"] == "grpo" and int(row["answers"]):
            assert float(row["rho"]) == 0
            assert float(row["above"]) == 0.5
            assert float(row["lowest"]) == pytest.approx(float(row["chance"]))
            assert float(row["constant"]) == 1
    assert "all, by construction" in capsys.readouterr().out


def test_a_method_with_a_critic_needs_a_trained_one(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"tiny-worked has no critic.*--critic-steps"):
        run(credit_on_false_steps, monkeypatch, tmp_path, "tiny-worked", "gae", "--prompts", "2")


def test_intervals_are_over_models_where_there_are_several():
    rows = [{"model": m, "x": x} for m, x in (("a", 1.0), ("a", 3.0), ("a", math.nan))]
    # over batches: 2 -+ 12.706 sqrt(2) / sqrt(2); over models, 2 and 6: 4 -+ 12.706 * 2
    assert interval(rows, "x") == "2.000 (-10.706 to 14.706)"
    assert interval([*rows, {"model": "b", "x": 6.0}], "x") == "4.000 (-21.412 to 29.412)"
    shares = [{"model": "a", "share": 0.1}, {"model": "a", "share": 0.9}]
    assert interval(shares, "share") == "0.500 (0.000 to 1.000)"
    assert interval(rows[:1], "x") == "1.000"
    assert interval(rows[2:], "x") == "-"
