import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from hypothesis import given
from hypothesis import strategies as st
from models import Lab, without_times
from runs import Runner

from strop.parts.curation.ask_by_hardness import AskByHardness, more_rollouts
from strop.recipes.dars import dars
from strop.recipes.dr_grpo import dr_grpo
from strop.support.errors import UserError

EIGHTHS = [n / 8 for n in range(5)]


@pytest.mark.parametrize(
    ("fields", "most", "expected"),
    [({}, 32, [24, 11, 3, 1, 0]), ({"by_hardness": True}, 64, [56, 24, 8, 3, 0]),
     ({"divided": True}, 32, [9, 5, 2, 1, 0]),
     ({"divided": True, "by_hardness": True}, 64, [23, 14, 6, 3, 0])],
)  # fmt: skip
def test_worked_example_of_the_second_round(fields, most, expected):
    assert [more_rollouts(a, 8, most, **fields) for a in EIGHTHS] == expected


def test_before_the_limit():
    # a = 0 counts as 1/16: S = .1172, (4 - .9375) / .1172 = 26.13
    assert more_rollouts(0.0, 8, 1000) == 27
    assert more_rollouts(0.25, 8, 8) == more_rollouts(1.0, 8, 64) == 0
    assert more_rollouts(0.25, 8, 4) == 0


@given(right=st.integers(1, 15), num=st.integers(2, 32), divided=st.booleans())
def test_hard_prompts_are_brought_up_to_half_solved_ones(right, num, divided):
    """With one rollout fewer their |A| in sum, at the same accuracy, would be smaller."""
    a = right / 32
    more = more_rollouts(a, num, 10**6, divided=divided)
    each = 2 * (a * (1 - a)) ** 0.5 if divided else 2 * a * (1 - a)
    peak = num if divided else num / 2
    assert (num + more) * each >= peak - 1e-6
    assert more == 0 or (num + more - 1) * each < peak


def groups(*outcomes):
    sizes = [len(each) for each in outcomes]
    rows = [float(value) for each in outcomes for value in each]
    index = [n for n, size in enumerate(sizes) for _ in range(size)]
    batch = flat_batch([1] * len(rows), index, outcome_B=rows)
    return batch.set(uid_P=torch.arange(len(sizes)) + 40, draw_P=torch.arange(len(sizes)) % 2)


def test_each_group_is_asked_once():
    batch = groups([1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0])
    part = AskByHardness(most=10)
    first = run(part, batch, state=part.init())
    asked = [(d.uid, d.num_rollouts, d.draw) for d in first.value.ask]
    assert asked == [(40, 2, 0), (42, 6, 0)]  # (2 - 1.5) / .375, 5.14 within 10 - 4
    assert first.value.ask[0].why == "2 rollouts more at 0.25 of 4"
    more = groups([1, 0, 0, 0, 0, 0], [1, 1, 0, 0], [0] * 10)
    second = run(part, more, state=first.state)
    assert second.value.ask == ()
    assert second.value.keep_B.all()
    assert second.state == part.init()
    assert second.metrics == pytest.approx({"budget/mean": 20 / 3, "budget/more": 2 / 3})
    refilled = run(part, groups([1] + [0] * 5, [1, 1, 0, 0], [0] * 10, [0, 0]), state=first.state)
    assert [draw.uid for draw in refilled.value.ask] == [43]
    unscored = batch.set(scored_B=torch.zeros(12, dtype=torch.bool))
    assert run(part, unscored, state=part.init()).value.ask == ()


def test_without_a_second_round_it_is_the_mean_of_the_group():
    batch = ragged_batch(2)
    ours, theirs = stages(dars(n_max=8), batch), stages(dr_grpo(), batch)
    torch.testing.assert_close(ours["advantage_B"], theirs["advantage_B"])
    with pytest.raises(UserError, match="most"):
        dars(n_max=0)


def test_a_run_spends_its_budget_unevenly(tmp_path):
    raw = Lab.make(tmp_path).raw("dars(n_max=12)", reward="even")
    Runner().whole(raw, tmp_path / "whole")
    assert any(line["budget/mean"] > 4 for line in without_times(tmp_path / "whole"))
