import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, ragged_batch, rows_learning, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.recipes.entropic import entropic

REWARDS = [1.0, 1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("integral", "entropy", "expected"),
    [(0.0, 0.8, [1.3, 1.3, 1.3, -0.7]), (0.003, 0.8, [1.303, 1.303, 1.303, -0.697]),
     (0.006, 0.3, [0.806, 0.806, 0.806, -1.194])],
)  # fmt: skip
def test_worked_example(integral, entropy, expected):
    batch = flat_batch((1,) * 4, reward_B=REWARDS, entropy_old_T=[entropy] * 4)
    batch = stages(entropic(integral=integral), batch)
    assert batch["advantage_B"].tolist() == pytest.approx(expected)
    found = functional.advantages(
        "entropic", rewards=torch.tensor(REWARDS), groups=torch.zeros(4).long(),
        mask=torch.ones(4, 2), batch_entropy=entropy, params={"integral": integral},
    )  # fmt: skip
    assert found[:, 1].tolist() == pytest.approx(expected)


def test_gradient_is_that_of_the_weighed_rewards():
    algorithm = entropic(target=0.2, gain=0.5, integral=0.1)
    given = ragged_batch(1)
    given = given.set(reward_B=2 * given["outcome_B"] - 1)
    batch = stages(algorithm, given)
    rows = rows_learning(batch)
    entropy = sum(float(batch["entropy_old_T"][t]) for t in rows) / len(rows)
    tilt = 0.1 + 0.5 * (entropy - 0.2)
    rewards = [float(batch["reward_B"][batch["rollout_T"][t]]) for t in rows]
    values = [r * (1 + tilt if r > 0 else 1 - tilt) for r in rewards]
    advantage_N = torch.tensor(values, dtype=torch.float64)

    def loss_of(logp_T):
        ratio_N = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        d_N = batch["logp_ref_T"][rows] - logp_T[rows]
        return (clipped(ratio_N, advantage_N, 0.2, 0.2) + 1e-3 * (d_N.exp() - d_N - 1)).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_the_integral_goes_from_step_to_step_and_into_the_checkpoint(tmp_path):
    lab, runner = Lab.make(tmp_path), Runner()
    run = runner.start(lab.raw("entropic(integral=0.05)", reward="even"), tmp_path / "run")
    seen = runner.go(run).seen
    expected, tilts = 0.05, []
    for line in seen:
        error = line["entropy_control/error"]
        assert error == pytest.approx(line["entropy_control/entropy"] - 0.5)
        assert line["entropy_control/tilt"] == pytest.approx(expected + error)
        expected += 0.01 * error
        assert line["entropy_control/integral"] == pytest.approx(expected)
        tilts.append(line["entropy_control/tilt"])
    assert len(set(tilts)) == 3
    assert run.state["knobs"] == {
        "advantage.weigh_signs_by_entropy_error.integral": pytest.approx(expected)
    }
