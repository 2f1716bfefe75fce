"""The choice by early scores, checked by hand."""

from test_plan_of_comparison import planned

from strop.comparison import early
from strop.comparison.scores import Row
from strop.comparison.table import markdown

METHODS = ["grpo", "rloo", "dr_grpo", "gpg"]
EARLY = {"grpo": 0.1, "rloo": 0.4, "dr_grpo": 0.3, "gpg": 0.2}
LAST = {"grpo": 0.6, "rloo": 1.0, "dr_grpo": 0.7, "gpg": 0.4}


def rows(step, means):
    """Two seeds around each mean."""
    return [Row(label, seed, step, {"pass@1": mean + 0.05 * (2 * seed - 1)})
            for label, mean in means.items() for seed in (0, 1)]  # fmt: skip


def test_the_top_of_an_early_step_is_judged_by_the_last():
    plan = planned(METHODS, at="3,6", k="1")
    found = early.lines_of(plan, rows(3, EARLY) + rows(6, LAST))
    # ranks 0 3 2 1 and 1 3 2 0: rho = 1 - 6 * 2 / (4 * 15) = 0.8; of two: 1.0 and 0.7, deviation
    # 0.15, baseline 0.6
    assert found == [
        ("3", "0.80", "1", "1.000", "1.000", "0.00", ""),
        ("3", "0.80", "2", "1.000", "0.700", "0.00", "2.67"),
    ]
    assert "## What early scores pick" in markdown(plan, rows(3, EARLY) + rows(6, LAST))
    longer = planned(METHODS, at="3,5,6", k="1")
    several = early.lines_of(longer, rows(3, EARLY) + rows(5, EARLY) + rows(6, LAST))
    assert several == found + [("5", *line[1:]) for line in found]


def test_nothing_is_picked_from_few_methods_or_by_one_step():
    few = planned(METHODS[:3], at="3,6", k="1")
    assert early.lines_of(few, rows(3, EARLY) + rows(6, LAST)) == []
    assert early.lines_of(planned(METHODS, k="1"), rows(6, LAST)) == []


def test_methods_are_ranked_on_the_seeds_that_all_of_them_have():
    plan = planned(METHODS, at="3,6", k="1")
    whole = rows(3, EARLY) + rows(6, LAST)
    good = 5.0  # of a seed that only two methods have finished
    more = [Row(label, 2, step, {"pass@1": good}) for label in ("gpg", "grpo") for step in (3, 6)]
    assert early.lines_of(plan, whole + more) == early.lines_of(plan, whole)
    early_alone = [Row("rloo", 2, 3, {"pass@1": good})]
    assert early.lines_of(plan, whole + early_alone) == early.lines_of(plan, whole)


def test_nothing_is_picked_where_methods_have_no_seed_in_common():
    plan = planned(METHODS, at="3,6", k="1")
    whole = [row for row in rows(3, EARLY) + rows(6, LAST) if row.seed == (row.label == "grpo")]
    assert early.lines_of(plan, whole) == []
    assert early.lines_of(plan, [row for row in whole if row.label == "grpo"]) == []
