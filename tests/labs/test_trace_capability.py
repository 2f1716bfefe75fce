"""labs/trace_capability.py: what counts as a deficit, what an environment rewards, who answers."""

import re

import pytest
from opened import opened

from strop.environments import countdown

lab = opened("trace_capability")


def row(target, *numbers):
    return {"numbers": list(numbers), "target": target}


def test_what_a_puzzle_needs():
    assert lab.needs(row(18, 2, 9)) == {"multiply"}
    assert lab.needs(row(7, 2, 9)) == {"subtract"}
    assert lab.needs(row(36, 3, 5, 7)) == {"add", "multiply", "brackets"}  # 3*(5+7)
    assert lab.needs(row(4, 2, 2)) == set()  # 2+2, 2*2


def test_contrasts_by_hand():
    add, multiply = frozenset({"add"}), frozenset({"multiply"})
    found = lab.contrasts([1.0, 0.5, 0.0, 0.25, 0.0], [add, add, multiply, multiply, multiply])
    assert [each.name for each in found] == ["multiply", "add"]  # the others are needed nowhere
    # multiply: mean 1/12 against 3/4; variances 1/48 / 3 and 1/8 / 2, of 0.0694
    assert found[0].needing == pytest.approx(1 / 12)
    assert found[0].others == pytest.approx(0.75)
    assert found[0].errors == pytest.approx((1 / 12 - 0.75) / (1 / 144 + 1 / 16) ** 0.5)
    assert found[1].errors == pytest.approx(-found[0].errors)
    assert lab.deficits_of(found, 3) == ["multiply"]
    assert lab.deficits_of(found, 0) == []


def test_a_puzzle_falls_under_the_weakest_of_what_it_needs():
    deficits = ["brackets", "multiply"]
    assert lab.family(frozenset({"multiply", "brackets"}), deficits) == "brackets"
    assert lab.family(frozenset({"multiply", "add"}), deficits) == "multiply"
    assert lab.family(frozenset({"add"}), deficits) == lab.NONE


def test_an_environment_pays_for_its_capability():
    answers = ["2*2", "2+2", "2*3"]
    told = {"prompts": [""] * 3, "numbers": [[2, 2]] * 3, "target": [4] * 3}
    assert lab.verifier("multiply")(completions=answers, **told) == [1, 0, 0]
    assert lab.verifier("add")(completions=answers, **told) == [0, 1, 0]


def test_the_router_learns_what_puzzles_need():
    rows = [each for each in countdown.puzzles("train") if len(each["numbers"]) == 2][:600]
    named = [lab.family(lab.needs(each), ["multiply"]) for each in rows]
    router = lab.Router(["multiply", lab.NONE]).learn(rows[:400], named[:400], steps=100)
    seen, right = router(rows[400:]), named[400:]
    share = sum(a == b for a, b in zip(seen, right, strict=True)) / len(right)
    assert share > right.count(lab.NONE) / len(right) + 0.03  # more than to say none each time


def test_a_short_run(tmp_path, capsys, monkeypatch):
    puzzles = countdown.puzzles
    monkeypatch.setattr(lab.countdown, "puzzles", lambda split: puzzles(split)[:300])
    real, found = lab.score, []

    def score(source, rows, samples):  # a model is opened each time: twice is enough
        found.append(real(source, rows, samples) if len(found) < 2 else len(rows) / 2)
        return found[-1]

    monkeypatch.setattr(lab, "score", score)
    words = "--seeds 1 --steps 1 --prompts 16 --probe 96 --most 1 --held-out 12 --samples 1"
    lab.main([*words.split(), "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert len(re.findall(r"\n  deficits: (brackets|divide|multiply)\n", said)) == 1
    assert "routed - one adapter: " in said
    config = (tmp_path / "seed-0/alone/config.toml").read_text()
    assert "lora_rank = 8" in config
    spent, alone = (
        lab.tokens_of(lab.strop.Run(str(tmp_path / "seed-0" / name))) for name in ("probe", "alone")
    )
    assert alone >= spent  # the probe counts among the tokens of the deficits


def test_no_deficit_is_an_error(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(lab, "probe", lambda *_: ([row(18, 2, 9), row(11, 2, 9)], [1.0, 1.0]))
    assert re.search(
        "error: no deficit was found", refused(lab.main, ["--seeds", "1", "--out", str(tmp_path)])
    )
