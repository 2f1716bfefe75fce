"""`strop audit` as a user types it, and the page that its tool writes."""

import csv
import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Strop

from strop.catalogue import catalogue
from strop.cli.audit import _json

ROOT = Path(__file__).parents[2]
SMALL = ("--group", "2", "--success", "0.3", "--staleness", "0", "--updates", "1")


def test_a_table_for_each_method(strop: Strop) -> None:
    result = strop("audit", "grpo", "rloo(num_rollouts=3)", *SMALL, "--seed", "1")
    assert result.code == 0, result.err
    assert "grpo on a tree of 4 answers" in result.out
    base = [line.split() for line in result.out.splitlines() if line.startswith("base")]
    assert base[1][1:4] == ["1.000", "0.000", "1.000"]  # scale, bias and cosine of rloo
    assert all(len(line) <= 80 for line in result.out.splitlines())
    assert " ".join(result.out.split()).count("scale how many times the mean step contains") == 1
    assert "silent share" in " ".join(result.out.split())
    assert "learner over" not in result.out  # its column is not shown


def test_drawn_numbers_have_their_whole_intervals(strop: Strop) -> None:
    words = ("--group", "2,3", *SMALL[2:], "--depth", "2", "--most", "1", "--draws", "40")
    result = strop("audit", "grpo", *words)
    assert result.code == 0, result.err
    lines = [line for line in result.out.splitlines() if "±" in line]
    assert max(map(len, lines)) > 80  # characters of the terminal
    assert "…" not in result.out


def test_json_and_csv_have_every_setting(strop: Strop, tmp_path: Path) -> None:
    out = tmp_path / "audit.csv"
    options = ("--group", "2,3", "--success", "0.2,0.5", "--staleness", "0,1", "--updates", "1,2")
    result = strop("audit", "dr_grpo", *options, "--json", "--csv", out)
    assert result.code == 0, result.err
    lines = [json.loads(line) for line in result.out.splitlines()]
    settings = [
        (line["group"], line["success"], line["staleness"], line["updates"]) for line in lines
    ]
    assert settings == [
        (3, 0.5, 0, 0),
        (2, 0.5, 0, 0),
        (3, 0.2, 0, 0),
        (3, 0.5, 1, 0),
        (3, 0.5, 0, 2),  # its own number of updates, 1, is the base
    ]
    assert lines[0]["scale"] == pytest.approx(2 / 3 / 3, abs=1e-5)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["scale"]) for row in rows] == [line["scale"] for line in lines]


def test_each_phase_that_can_be_enumerated_is(strop: Strop) -> None:
    result = strop("audit", "cure", *SMALL)
    assert result.code == 0, result.err
    assert "cure: explore is left out: its rollout branch_at_critical_tokens does not" in result.err
    assert "cure: sharpen on a tree of 4 answers" in result.out
    refused = strop("audit", "until(2, sft) | dpo", *SMALL)
    assert refused.code == 2
    assert "does not draw answers independently" in refused.err


def test_options_of_the_method_hold(strop: Strop) -> None:
    """Of two answers (r - mean) / std is +-0.707, what leaves itself out +-1."""
    chain = "advantage=subtract_group_mean(leave_one_out=True) | spread_evenly"
    said = [strop("audit", "grpo", *words, *SMALL, "--json") for words in ((), (chain,))]
    plain, changed = (json.loads(each.out.splitlines()[0])["scale"] for each in said)
    assert changed / plain == pytest.approx(math.sqrt(2), rel=1e-3)


def test_a_group_that_the_user_gives_is_the_one_that_is_shown(strop: Strop) -> None:
    chain = "sampling=draw_in_shuffled_order(num_rollouts=3)"
    for words in (("rloo", "sampling.num_rollouts=3"), ("rloo(num_rollouts=3)",), ("rloo", chain)):
        result = strop("audit", *words, *SMALL[2:], "--depth", "2", "--group", "2,4,4", "--json")
        assert result.code == 0, result.err
        rows = [json.loads(line) for line in result.out.splitlines()]
        assert {row["group"] for row in rows} == {3}
    for words in (
        ("grpo", "sampling.num_rollouts=linear(3, 9)"),
        ("grpo(num_rollouts=linear(3, 9))",),
    ):
        result = strop("audit", *words, *SMALL[2:], "--depth", "2", "--json")  # the first step's
        assert {json.loads(line)["group"] for line in result.out.splitlines()} == {3}, result.err
    result = strop(
        "audit", "mc_grpo(num_rollouts=3)", *SMALL[2:], "--depth", "2", "--json"
    )  # it draws one more
    assert {json.loads(line)["group"] for line in result.out.splitlines()} == {3}
    result = strop("audit", "rloo", *SMALL[2:], "--depth", "2", "--group", "2,4,4", "--json")
    assert [json.loads(line)["group"] for line in result.out.splitlines()] == [4, 2]


def test_draws_that_all_move_nothing_have_no_noise(strop: Strop) -> None:
    few = ("--success", "0.001", "--staleness", "0", "--updates", "1", "--most", "1")
    result = strop("audit", "grpo", "--group", "2", *few, "--draws", "40")
    assert result.code == 0, result.err


def test_a_method_has_options_of_its_own_as_in_a_comparison(strop: Strop) -> None:
    own = "grpo advantage=subtract_group_mean(leave_one_out=True)|spread_evenly"
    result = strop("audit", "grpo", own, *SMALL, "--json")
    assert result.code == 0, result.err
    rows = {row["recipe"]: row for row in map(json.loads, result.out.splitlines())}
    assert set(rows) == {"grpo", own}
    assert rows[own]["scale"] > 1.4 * rows["grpo"]["scale"]


def test_all_methods_are_checked_before_any_is_audited(strop: Strop) -> None:
    for words, message in (
        (("rloo(foo=1)",), "recipe rloo has no parameter foo"),
        (("rloo loss.clip_hihg=1",), "clip_hihg"),
        (("loss.clip_high=0.3", "rloo"), "write 'grpo loss.clip_high=0.3' in quotes"),
    ):
        result = strop("audit", "grpo", *words, *SMALL)
        assert (result.code, result.out) == (2, "")
        assert message in result.err


def test_the_largest_group_says_how_many_answers_are_drawn(
    strop: Strop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.api.audit.MOST_ANSWERS", 200)
    words = ("audit", "grpo", *SMALL, "--group", "2,4", "--draws")
    assert strop(*words, "50").code == 0
    assert "51 draws of 1 x 4 answers are 204, more than 200" in strop(*words, "51").err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("audit", "sft"), "does not draw answers independently"),
        (("audit", "no_such"), "no recipe"),
        (("audit", "training.steps=2"), "name a recipe"),
        (("audit", "grpo", "--group", "0"), "--group 0"),
        (("audit", "grpo", "--group", "999999"), "lower --group, --prompts or --draws"),
        (("audit", "grpo", "--success", "2"), "success of 2"),
        (
            ("audit", "grpo", "--success", "x"),
            "--success takes numbers with commas between them, not 'x'",
        ),
        (("audit", "grpo", "--depth", "30"), "can be enumerated"),
        (("audit", "grpo", "--depth", "2147483648"), "can be enumerated"),
        (("audit", "grpo", "--seed", "-1"), "the seed is -1: it must lie from 0"),
        (("audit", "grpo", "--updates", "1,10001"), "--updates 10001: 10000 are the most"),
        (("audit", "grpo", "--seed", "9" * 30), "the seed is 999"),
        (("audit", "grpo", "--step", "nan"), "--step"),
        (
            ("audit", "grpo", *SMALL, "--csv", "/nowhere/a.csv"),
            "a.csv could not be written to /nowhere",
        ),
    ],
)
def test_mistakes_are_one_line(strop: Strop, words: tuple[str, ...], message: str) -> None:
    result = strop(*words)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("audit_tool", ROOT / "tools/write_audit.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_page_names_every_recipe_and_is_what_the_tool_writes() -> None:
    page = (ROOT / "docs/AUDIT.md").read_text(encoding="utf-8")
    missing = [e.name for e in catalogue.recipes() if not re.search(rf"\n\| `{e.name}`[: ]", page)]
    assert missing == [], "python tools/write_audit.py"
    tool = _tool()
    for recipe in ("rloo", "dapo"):  # one of them asks for other groups, and clips
        assert tool.row(recipe) in page, "python tools/write_audit.py"
    for method in tool.ESTIMATORS:
        assert f"\n| `{method}` |" in page, "python tools/write_audit.py"


def test_a_number_that_is_not_finite_is_null_for_machines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _json({"recipe": "grpo", "bias": float("nan"), "error": float("inf"), "scale": 1.0})
    assert capsys.readouterr().out == (
        '{"recipe": "grpo", "bias": null, "error": null, "scale": 1.0}\n'
    )
