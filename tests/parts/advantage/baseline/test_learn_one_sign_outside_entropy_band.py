import math

import pytest
import torch
from builders import flat_batch, ragged_batch, run

from strop.parts.advantage.baseline.learn_one_sign_outside_entropy_band import (
    LearnOneSignOutsideEntropyBand,
)
from strop.support.errors import UserError

PART = LearnOneSignOutsideEntropyBand(0.4, 0.6)


def _batch(entropy):
    return flat_batch(
        (1, 1, 1, 2),
        reward_B=[1.0, 1.0, 1.0, -1.0],
        advantage_B=[0.5, 0.5, 0.5, -1.5],
        entropy_old_T=[entropy] * 5,
    )


@pytest.mark.parametrize(
    ("entropy", "expected"),
    [(0.3, [0, 0, 0, -1]), (0.7, [1, 1, 1, 0]), (0.5, [0.5, 0.5, 0.5, -1.5]),
     (0.4, [0.5, 0.5, 0.5, -1.5]), (0.6, [0.5, 0.5, 0.5, -1.5])],
)  # fmt: skip
def test_worked_example(entropy, expected):
    assert run(PART, _batch(entropy)).value.tolist() == expected


def test_positive_weight_and_given_entropy():
    part = LearnOneSignOutsideEntropyBand(0.4, 0.6, positive_weight=0.1)
    found = run(part, _batch(0.9).set(batch_entropy=torch.tensor(0.1)))
    assert found.value.tolist() == [0.1, 0.1, 0.1, -1]
    assert found.metrics["entropy_control/direction"] == -1
    assert found.metrics["entropy_control/entropy"] == pytest.approx(0.1)
    with pytest.raises(UserError, match="positive_weight must be at least 0"):
        LearnOneSignOutsideEntropyBand(positive_weight=-0.1)  # which would blame what is right


def test_entropy_is_that_of_scored_policy_tokens():
    batch = ragged_batch(3)
    batch = batch.set(reward_B=batch["reward_B"].nan_to_num())
    rows = batch["gradient_T"].nonzero().squeeze(1).tolist()  # policy tokens of scored rollouts
    expected = sum(float(batch["entropy_old_T"][t]) for t in rows) / len(rows)
    for low, high in ((-math.inf, expected + 1e-9), (expected + 1e-9, 9.0), (0.0, expected - 1e-9)):
        found = run(LearnOneSignOutsideEntropyBand(low, high), batch)
        assert found.metrics["entropy_control/entropy"] == pytest.approx(expected, rel=1e-12)
        direction = 1 if expected > high else -1 if expected < low else 0
        assert found.metrics["entropy_control/direction"] == direction
        assert found.value[4] == 0  # unscored


def test_needs_an_entropy():
    batch = _batch(0.5)
    without = {k: v for k, v in batch.columns.items() if k != "entropy_old_T"}
    with pytest.raises(UserError, match="batch_entropy"):
        run(PART, type(batch)(without))
