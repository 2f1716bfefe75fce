"""Limits, divergences by turn, and the fit of an equilibrium."""

import math

import numpy as np
import pytest
import torch

from strop.batch.batch import Batch
from strop.evaluation.semi_online import semi_online_performance
from strop.evaluation.turns import fit_equilibrium, full_kl, sampled_kl, turn_drift, turn_limits


def test_worked_limits():
    assert turn_limits([10, 12, 20, 30, 48]) == [12, 20, 30]
    assert turn_limits([3, 4], (50,)) == [4]
    with pytest.raises(ValueError, match="no episodes"):
        turn_limits([])


def test_worked_divergence():
    q = torch.tensor([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.25, 0.25]], dtype=torch.float64)
    assert full_kl(q.log(), p.log()).tolist() == pytest.approx([0.0851, math.log(2)], abs=1e-4)


def test_the_sampled_estimate_is_the_divergence_on_average():
    q, p = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    estimate = (q * sampled_kl(q.log(), p.log())).sum()
    assert float(estimate) == pytest.approx(float(full_kl(q.log()[None], p.log()[None])[0]))


def test_drift_is_a_mean_over_the_tokens_of_a_turn_and_then_over_rollouts():
    # rollout 0: turn 0 of two tokens, turn 1 of one; rollout 1: turn 0 without a policy token
    batch = Batch(
        {
            "turn_T": torch.tensor([0, 0, 0, 1, 1, 2, 3]),
            "mask_T": torch.tensor([False, True, True, False, True, False, True]),
            "rollout_K": torch.tensor([0, 0, 1, 1]), "index_K": torch.tensor([0, 1, 0, 1]),
            "group_B": torch.zeros(2, dtype=torch.long), "uid_P": torch.zeros(1),
            "draw_P": torch.zeros(1),
        }
    )  # fmt: skip
    kl_T = torch.tensor([torch.nan, 0.2, 0.4, torch.nan, 0.1, torch.nan, 0.5])
    assert turn_drift(batch, kl_T).tolist() == pytest.approx([0.3, 0.3])
    nothing = batch.set(mask_T=torch.zeros(7, dtype=torch.bool))
    assert turn_drift(nothing, kl_T).isnan().all()


def test_the_fit_finds_rate_and_level_again():
    levels = [2.0]
    for _ in range(6):
        levels.append(levels[-1] + 0.3 * (0.8 - levels[-1]))
    assert fit_equilibrium(levels) == pytest.approx((0.3, 0.8))
    noise = np.random.default_rng(0)
    many = np.full((200, 8), np.nan)
    for row in many:
        row[0] = noise.uniform(0, 2)
        for k in range(1, int(noise.integers(3, 9))):
            row[k] = row[k - 1] + 0.4 * (1.0 - row[k - 1]) + noise.normal(0, 0.05)
    rate, drift = fit_equilibrium(many)
    assert rate == pytest.approx(0.4, abs=0.02)
    assert drift == pytest.approx(1.0, abs=0.02)


def test_without_two_levels_there_is_no_fit():
    for drift in ([1.0, 1.0, 1.0], [1.0, 2.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="different levels"):
            fit_equilibrium(drift)


def test_progress_and_success_up_to_the_first_wrong_action():
    # done 2 of 2, 1 of 4 (a patched episode goes on), 0 of 1
    match = [1, 1, 1, 0, 1, 0]
    found = semi_online_performance(match, [0, 0, 1, 1, 1, 2], [2, 4, 1])
    progress, success = (1 + 0.25 + 0) / 3, 1 / 3
    assert found == pytest.approx(
        {"PG": progress, "TSR": success, "Score": (progress + success) / 2}
    )


def test_progress_needs_as_many_expert_actions_as_turns():
    with pytest.raises(ValueError, match="as many expert actions"):
        semi_online_performance([1, 1], [0, 0], [1])
    assert math.isnan(semi_online_performance([], [], [])["PG"])
