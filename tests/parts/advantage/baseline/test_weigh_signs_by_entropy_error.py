import pytest
import torch
from builders import flat_batch, ragged_batch, run

from strop.parts.advantage.baseline.weigh_signs_by_entropy_error import WeighSignsByEntropyError
from strop.support.errors import UserError

REWARDS = [1.0, 1.0, 1.0, -1.0]


def _batch(entropy):
    return flat_batch((1, 1, 1, 2), reward_B=REWARDS, entropy_old_T=[entropy] * 5)


@pytest.mark.parametrize(
    ("integral", "entropy", "tilt", "positive", "negative"),
    # e = .3, .3, -.2; alpha = integral + e
    [(0.0, 0.8, 0.3, 1.3, -0.7), (0.003, 0.8, 0.303, 1.303, -0.697),
     (0.006, 0.3, -0.194, 0.806, -1.194)],
)  # fmt: skip
def test_worked_example(integral, entropy, tilt, positive, negative):
    found = run(WeighSignsByEntropyError(integral=integral), _batch(entropy))
    assert found.value.tolist() == pytest.approx([positive] * 3 + [negative])
    assert found.metrics["entropy_control/tilt"] == pytest.approx(tilt)
    assert found.metrics["entropy_control/error"] == pytest.approx(entropy - 0.5)
    assert found.metrics["entropy_control/entropy"] == pytest.approx(entropy)


def test_equals_raw_rewards_at_the_target_and_without_gain():
    assert run(WeighSignsByEntropyError(), _batch(0.5)).value.tolist() == REWARDS
    assert run(WeighSignsByEntropyError(gain=0.0), _batch(9.0)).value.tolist() == REWARDS


def test_matches_a_slow_loop():
    batch = ragged_batch(3)
    part = WeighSignsByEntropyError(0.7, 0.4, -0.1)
    found = run(part, batch)
    rows = batch["gradient_T"].nonzero().squeeze(1).tolist()  # policy tokens of scored rollouts
    entropy = sum(float(batch["entropy_old_T"][t]) for t in rows) / len(rows)
    tilt = -0.1 + 0.4 * (entropy - 0.7)
    for i in range(batch.size("B")):
        reward = float(batch["reward_B"][i])
        expected = reward * (1 + tilt if reward > 0 else 1 - tilt)
        if not batch["scored_B"][i]:
            expected = 0.0
        assert float(found.value[i]) == pytest.approx(expected, rel=1e-9)


def test_edges():
    given = _batch(0.9).set(batch_entropy=torch.tensor(0.3, dtype=torch.float64))
    found = run(WeighSignsByEntropyError(), given)
    assert found.metrics["entropy_control/error"] == pytest.approx(-0.2)
    turned = run(WeighSignsByEntropyError(), _batch(2.0)).value  # alpha 1.5 is above 1
    assert turned.tolist() == pytest.approx([2.5, 2.5, 2.5, 0.5])
    nothing = flat_batch((1, 1), reward_B=[0.0, 1.0], entropy_old_T=[0.9, 0.9])
    assert run(WeighSignsByEntropyError(), nothing).value.tolist() == pytest.approx([0, 1.4])
    without = {k: v for k, v in _batch(0.5).columns.items() if k != "entropy_old_T"}
    with pytest.raises(UserError, match="batch_entropy"):
        run(WeighSignsByEntropyError(), type(given)(without))
