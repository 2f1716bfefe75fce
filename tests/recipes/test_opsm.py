import math

import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    pushed,
    ragged_batch,
    rows_learning,
    stages,
    tokens_of,
)

from strop import functional
from strop.recipes.grpo import grpo
from strop.recipes.opsm import opsm


def test_worked_example_through_the_padded_call():
    """Four answers of two tokens: mean drifts .3 and .1, each good and bad; threshold .2."""
    old = torch.full((4, 2), -1.0).double()
    drift = torch.tensor([[0.4, 0.2], [0.4, 0.2], [0.2, 0.0], [0.2, 0.0]]).double()
    given = {
        "logp": old - drift,
        "logp_old": old,
        "advantages": torch.tensor([1.0, -1, 1, -1]).double(),
        "mask": torch.ones(4, 2),
    }
    weights = functional.token_weights("opsm", params={"threshold": 0.2}, **given)
    free = functional.token_weights("grpo", **given)
    assert weights[1].tolist() == [0.0, 0.0]
    assert weights[[0, 2, 3]].equal(free[[0, 2, 3]])  # the denominator counts all four
    assert (free[3] != 0).any()
    _, metrics = functional.policy_loss("opsm", params={"threshold": 0.2}, **given)
    assert metrics["opsm/dropped_mean"] == 0.25
    near = torch.full((4, 2), -1.3).double()  # what the engine recorded decides where it is given
    kept = functional.token_weights("opsm", params={"threshold": 0.2}, logp_beh=near, **given)
    assert kept.equal(free)


def test_gradient_is_that_of_the_published_loss():
    algorithm = opsm(threshold=0.1, clip_high=0.3)
    given = ragged_batch(1)
    void_T = torch.arange(given.size("T")) % 4 == 0  # no engine drew these
    behavior_T = torch.where(void_T, math.nan, given["logp_behavior_T"])
    batch = stages(algorithm, given.set(logp_behavior_T=behavior_T))
    rows = rows_learning(batch)
    seen_T = torch.where(void_T, batch["logp_old_T"], given["logp_behavior_T"])

    def loss_of(logp_T):
        total, dropped = logp_T.new_zeros(()), 0
        rollouts = sorted({int(batch["rollout_T"][t]) for t in rows})
        for i in rollouts:
            tokens = tokens_of(batch, i)
            k = float((seen_T - logp_T.detach())[tokens].mean())
            if batch["advantage_B"][i] < 0 and k > 0.1:
                dropped += 1
                continue
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            losses = clipped(ratio, batch["advantage_B"][i], 0.2, 0.3)
            total = total + losses.mean() / len(rollouts)
        assert dropped
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_without_a_threshold_it_is_grpo():
    batch = stages(grpo(), ragged_batch(2))
    ours, theirs = pushed(opsm(threshold=math.inf), batch), pushed(grpo(), batch)
    assert ours[0] == theirs[0]
    assert ours[1]["logp_T"].equal(theirs[1]["logp_T"])


def test_the_drift_is_of_the_current_policy():
    """The same answer teaches in one update and no longer in the next."""
    near = flat_batch((1,), logp_T=[-1.0], logp_old_T=[-1.0], advantage_T=[-1.0])
    far = near.set(logp_T=near["logp_T"] - 0.6)
    assert pushed(opsm(), near)[1]["logp_T"] != 0
    assert pushed(opsm(clip_low=0.9), far)[1]["logp_T"] == 0
