"""Equal tuning: which settings are tried, which is chosen, and that other seeds judge it."""

import csv
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from compared import begin, compare, words_for
from models import Lab

from strop.cli.compare import Written, methods_of
from strop.comparison.plan import Plan, read_plan
from strop.comparison.tuning import choose, choosing, judged_plan, seen_again, tuning_of
from strop.support.errors import UserError

WORDS = ["grpo", "rloo loss.clip_high=0.1..0.5", "training.lr=1e-4..1e-2,log"]


def planned(
    words: list[str] = WORDS, tune: int = 3, by: str = "pass@1", yardstick: str = "steps",
    **changes: Any,
) -> Plan:  # fmt: skip
    tuning = tuning_of(tune, 2, by)
    written = Written(**{"seeds": 2, "steps": 6, "by": yardstick, **changes})
    return written.plan(methods_of(words, tune), tuning=tuning)


def test_every_method_has_as_many_settings_and_its_own_first() -> None:
    plan = planned()
    # halves of 1e-4 to 1e-2 in the logarithm: middles 10^-3.5 and 10^-2.5; of 0.1 to 0.5: 0.2, 0.4
    by_method = {of: [e for e in plan.entries if e.of == of] for of in ("grpo", "rloo")}
    assert [e.label for e in by_method["grpo"]] == [
        "grpo", "grpo training.lr=0.000316", "grpo training.lr=0.00316",
    ]  # fmt: skip
    assert [dict(e.values) for e in by_method["rloo"]] == [
        {},
        {"training.lr": "0.000316", "loss.clip_high": "0.2"},
        {"training.lr": "0.00316", "loss.clip_high": "0.4"},
    ]
    assert "lr = 0.000316\n" in by_method["grpo"][1].config
    assert (plan.baseline, plan.num_runs) == ("grpo", 6 * 2 + 2 * 2)
    assert planned(baseline="rloo").baseline == "rloo"


def test_a_plan_with_tuning_comes_back_as_it_was(tmp_path: Path) -> None:
    planned().keep(tmp_path / "made")
    assert read_plan(tmp_path / "made") == planned()
    with pytest.raises(UserError, match="differs in tuning"):
        planned(by="pass@16").keep(tmp_path / "made")


def test_the_best_mean_is_chosen_and_of_equal_ones_the_first() -> None:
    plan = planned(baseline="rloo")
    means = [0.2, 0.4, 0.3, 0.5, 0.1, 0.5]
    scores = {
        entry.label: {1000: mean - 0.1, 1001: mean + 0.1}
        for entry, mean in zip(plan.entries, means, strict=True)
    }
    tried = choose(plan, scores)
    assert all(0 <= each.score.low < each.score.high <= 1 for each in tried)
    assert [each.chosen for each in tried] == [False, True, False, True, False, False]
    judged = judged_plan(plan, tried)
    assert [entry.label for entry in judged.entries] == [plan.entries[1].label, "rloo"]
    assert (judged.baseline, judged.seeds, judged.tuning) == ("rloo", (0, 1), None)
    assert choosing(plan).seeds == (1000, 1001)
    assert choosing(plan).scoring == dataclasses.replace(plan.scoring, at=(), start=False)
    again = seen_again(tried, {"rloo": {0: 0.3, 1: 0.5}}, "pass@1")
    assert [each.again and each.again.value for each in again] == [None] * 3 + [0.4, None, None]


@pytest.mark.parametrize(
    ("words", "tune", "changes", "told"),
    [
        (["grpo", "rloo training.lr=1e-4..1e-3"], 3, {}, "grpo has nothing to tune"),
        (WORDS, 1, {}, "--tune 1 has nothing to choose from"),
        (["evaluation.every=0", *WORDS], 3, {}, "--tune-by needs validations, grpo has none"),
        (WORDS, 3, {"by": "pass@3"}, "--tune-by pass@3: validations of grpo have k of"),
        (WORDS, 3, {"by": "maj@1", "yardstick": "sampled"}, "--tune-by maj@1: --by sampled has no"),
        (["grpo", "loss.nothing=1..2"], 2, {}, "loss.nothing"),
    ],
)
def test_refusals(words: list[str], tune: int, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        planned(words, tune, **changes)


def test_a_setting_is_chosen_by_some_runs_and_judged_by_others(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    given = ["grpo", "training.lr=1e-3..3e-1,log", "--tune", "2", "--seeds", "1"]
    result = compare(words_for(lab, *given), folder).end()
    assert result.code == 0, result.err
    assert "2 settings of each method, of which validation chooses one" in result.out
    assert " settings, " in result.out
    rows = list(csv.DictReader((folder / "tuning.csv").read_text().splitlines()))
    assert [(row["method"], row["setting"], row["seed"]) for row in rows] == [
        ("grpo", "grpo", "1000"), ("grpo", "grpo training.lr=0.0173", "1000"),
    ]  # fmt: skip
    best = max(rows, key=lambda row: float(row["pass@1"]))
    assert [row["setting"] for row in rows if row["chosen"] == "1"] == [best["setting"]]
    assert {path.name for path in folder.glob("runs/*/heldout-2.json")} == {"heldout-2.json"}
    (judged,) = folder.glob("runs/*/heldout-2.json")
    assert judged.parent.name.endswith("-0")  # a seed that has not chosen
    for page in ("table.md", "compare.html"):
        assert "How the settings were chosen" in (folder / page).read_text()
    table = (folder / "table.md").read_text()
    validated = json.loads((judged.parent / "metrics.jsonl").read_text().splitlines()[-1])
    seen = validated["eval/validation/pass@1"]
    assert re.search(rf"\(chosen\).*\| {seen:.3f} \|", table)  # in the run that is judged
    again = begin(["compare", "--resume", folder], tmp_path).end()
    assert again.code == 0, again.err
    assert ": training" not in again.out
    assert (folder / "table.md").read_text() == table
