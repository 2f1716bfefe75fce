"""The reward of a program, for rollouts and, with other columns, for turns."""

import pytest
from builders import NAN, flat_batch, run

from strop.method import part as parts
from strop.method.part import Use
from strop.parts.reward.reward_profiled_speed import RewardProfiledSpeed

GIVEN = {
    "correct": [True, True, True, False, False, True],
    "speedup": [1.8, 7.0, 2.0, 2.0, NAN, 1.0],
    "profiled": [0.4, 0.5, 0.9, 0.9, NAN, NAN],
    "decoy": [False, False, True, False, False, False],
}


def paid(table, **fields):
    batch = flat_batch((1,) * 6, **{f"{name}_{table}": column for name, column in GIVEN.items()})
    renamed = tuple((f"{name}_B", f"{name}_{table}") for name in (*GIVEN, "reward"))
    use = Use(RewardProfiledSpeed(**fields), renamed)
    return parts.write(batch, use, parts.call(use, batch))[f"reward_{table}"].tolist()


@pytest.mark.parametrize("table", ["B", "K"])
def test_worked_example(table):
    # (1 + 1.8 + .4) / 2; 7 is paid as 3; a decoy, a wrong one, one that did not run; no profile
    assert paid(table) == pytest.approx([1.6, 2.25, 0, 0, 0, 1.0])
    assert paid(table, variant="paper", cap=1.0) == pytest.approx([2.4, 2.5, 0, 0, 0, 2.0])
    assert paid(table, pay_incorrect=True, penalty=-1.0)[2:5] == pytest.approx([-1, 1.0, -1])


def test_the_speedup_of_correct_programs_and_decoys_are_logged():
    batch = flat_batch((1,) * 6, **{f"{name}_B": column for name, column in GIVEN.items()})
    told = run(RewardProfiledSpeed(), batch).metrics  # of 1.8, 7 and 1
    assert told["profile/speedup_mean"] == pytest.approx(9.8 / 3)
    assert told["profile/frac_decoy"] == pytest.approx(1 / 6)
