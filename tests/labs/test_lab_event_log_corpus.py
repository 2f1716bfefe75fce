"""labs/event_log_corpus.py: the floor, solved questions, and the three ways to ask."""

import re

import numpy as np
from opened import opened

from strop.api.evaluate import Evaluation
from strop.evaluation.samples import Estimate

lab = opened("event_log_corpus")


def test_the_floor_is_printed(capsys):
    lab.main(["--corpora", "1", "--show", "2"])
    said = capsys.readouterr().out
    rows = re.findall(r"^(\S+) +(\d+)  ([\d.]+)  ([\d.]+)  ([\d.]+)  ([\d.]+)$", said, re.M)
    assert [row[0] for row in rows][-1] == "all"
    assert sum(int(row[1]) for row in rows[:-1]) == int(rows[-1][1])
    assert all(list(map(float, row[2:])) == sorted(map(float, row[2:])) for row in rows)
    assert said.startswith("[d1] Monday of week 1, 09:00, ")


def test_solved_questions_are_of_the_mode():
    search, passages, closed = (lab.shot(mode, 0, 3) for mode in lab.MODES)
    assert [each["role"] for each in search] == ["user", "assistant", "tool", "assistant"]
    assert search[-1] == passages[-1] == closed[-1]
    assert search[-1]["content"] in search[2]["content"]
    assert search[1]["content"].startswith('<tool_call>{"name": "search"')
    assert passages[0]["content"].startswith("Documents:\n[d")
    assert len(closed) == 2


def test_three_ways_to_ask(capsys, monkeypatch):
    asked, scores = [], {"search": [1.0, 1, 0], "passages": [1.0, 1, 1], "closed": [0.0, 0, 0]}

    def evaluate(model, **options):
        mode = options["data_task_config"]["mode"]
        asked.append((model, mode, options["prompts"]))
        worth = np.array(scores[mode])
        found = {"pass@1": Estimate(worth.mean(), 0, 1, 3), "measures/recall": Estimate(1, 1, 1, 3)}
        return Evaluation("", found, 0, {"mean@n": worth})

    monkeypatch.setattr(lab.strop, "evaluate", evaluate)
    lab.main(["--corpora", "1", "--model", "M", "--prompts", "3", "--shots", "1"])
    assert asked == [("M", "search", 3), ("M", "passages", 3), ("M", "closed", 3)]
    said = capsys.readouterr().out
    assert "tool gain: 0.667" in said
    assert "reading gap: 0.333" in said


def test_a_model_that_knows_no_letters(refused):
    assert re.search(
        r"error: .*(character|letter|token)",
        refused(lab.main, ["--corpora", "1", "--model", "tiny", "--prompts", "1"]),
    )
