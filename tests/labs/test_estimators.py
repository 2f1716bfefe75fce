"""The four lessons: their exact numbers are exact, and their effects remain visible."""

import pytest
import torch
from opened import opened

lab = opened("estimators")


def test_an_answer_cut_off_is_worth_what_the_objective_says():
    found = lab.cut_ends()
    _, no_limit, _, finished = range(4)
    assert found["worth what the true critic says"][no_limit] == pytest.approx(0, abs=1e-9)
    assert found["worth nothing"][finished] == pytest.approx(0, abs=1e-9)
    for name, numbers in found.rows:
        if name != "worth what the true critic says":
            assert numbers[no_limit] > 0.5
    # of one limit for all, nothing is cut, and all ways are one but for the baseline
    whole = lab.cut_ends(longest=2, limit=2)
    assert whole["worth what the true critic says"][no_limit] == pytest.approx(0, abs=1e-9)


def test_a_moved_estimate_keeps_its_mean_and_has_a_floor():
    plain, moved = (lab.shifted(num_problems=100)[name] for name in ("plain", "moved"))
    assert plain[0] == pytest.approx(0, abs=1e-9)
    assert moved[0] == pytest.approx(0, abs=1e-9)
    assert moved[1] > plain[1]
    assert plain[3] + moved[3] == pytest.approx(1)


def test_both_gradients_of_an_inventory_agree():
    found = lab.differentiable(num_traces=4000)
    (mean, error, _), (other, noise, times) = (row.numbers for row in found.rows)
    assert mean == pytest.approx(other, abs=3 * (error**2 + noise**2) ** 0.5)
    assert times > 50


def test_the_mean_of_the_worst_half():
    even = torch.full((4,), 0.25, dtype=torch.float64)
    assert float(lab.cvar([10.0, 1.0, 3.0, 2.0], even)) == pytest.approx(1.5)
    # without the stock risky twice: 10 (.49), 3 (.42), -4 (.09): (.09 * -4 + .41 * 3) / .5
    # with it risky, then safe after 5, risky after -2: (.09 * -4 + .21 * 3 + .2 * 5.5) / .5
    assert lab._best_plan(False) == pytest.approx(1.74)
    assert lab._best_plan(True) == pytest.approx(2.74)
    assert lab._learnt(True, 200, 2) == pytest.approx(2.74, abs=0.05)


def test_a_lesson_that_is_not_there(capsys):
    assert lab.main(["shift"]) == 2
    assert "error: no lesson shift: give some of cut_ends, shifted" in capsys.readouterr().err
