import math

import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    members_of,
    ragged_batch,
    run,
    stages,
    tokens_of,
)

from strop import functional
from strop.parts.advantage.baseline.rank_right_above_wrong import RankRightAboveWrong
from strop.recipes.capo import capo
from strop.recipes.dr_grpo import dr_grpo
from strop.support.errors import UserError

CONFIDENCE = (-0.2, -0.6, -0.3, -0.9)
REWARDS = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()


def call(**params):
    logp_old = torch.tensor(CONFIDENCE, dtype=torch.float64)[:, None].expand(4, 3)
    found = functional.advantages(
        "capo", rewards=REWARDS, groups=torch.zeros(4).long(),
        mask=torch.ones(4, 3), logp_old=logp_old, params=params,
    )  # fmt: skip
    assert found.eq(found[:, :1]).all()
    return found[:, 0]


def test_worked_example():
    # rollout 0: (sigmoid(-.1 / .6) + sigmoid(-.7 / .6)) / .6 = (.4584 + .2375) / .6
    assert call().tolist() == pytest.approx([1.1598, 1.6667, -1.8015, -1.0250], abs=5e-5)
    plain = call(include_inv_tau=False)
    assert plain.tolist() == pytest.approx([0.6959, 1.0, -1.0809, -0.6150], abs=5e-5)
    assert call(pair_reduction="mean").tolist() == pytest.approx((call() / 4).tolist())
    assert float(call().sum()) == pytest.approx(0)


def test_for_large_tau_it_is_the_centred_reward():
    centred = functional.advantages("dr_grpo", rewards=REWARDS, groups=torch.zeros(4).long())
    torch.testing.assert_close(call(tau=1e9), 4 / (2 * 1e9) * centred)
    torch.testing.assert_close(call(tau=1e9, include_inv_tau=False), 2 * centred)


def test_gradient_is_that_of_the_published_loss():
    algorithm = capo(tau=0.4, ref_high=4.0, ref_low=2.0, success=0.5)
    batch = stages(algorithm, ragged_batch(1, groups=(3, 1, 5, 4)))
    mean = {}
    for i in range(batch.size("B")):
        mean[i] = {
            n: float(batch[n][tokens_of(batch, i)].mean()) for n in ("logp_old_T", "logp_ref_T")
        }
    advantage, dropped = {}, 0
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        right = [i for i in members if float(batch["reward_B"][i]) >= 0.5]
        wrong = [j for j in members if j not in right]
        for i in members:
            others, sign = (wrong, 1) if i in right else (right, -1)
            gaps = [sign * (mean[i]["logp_old_T"] - mean[j]["logp_old_T"]) for j in others]
            advantage[i] = sign * sum(1 / (1 + math.exp(gap / 0.4)) for gap in gaps) / 0.4
            perplexity = math.exp(-mean[i]["logp_ref_T"])
            if perplexity > 4.0 if i in right else perplexity < 2.0:
                advantage[i], dropped = 0.0, dropped + 1
    assert 0 < dropped < len(advantage)
    taught = {i for i, _ in learning(batch)}
    assert {i for i, value in advantage.items() if value} <= taught

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for i, value in advantage.items():
            rows = tokens_of(batch, i)
            ratio = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
            size = torch.tensor(value, dtype=torch.float64)
            total = total + clipped(ratio, size, 0.2, 0.2).mean() / len(advantage)
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_mask_of_the_padded_call():
    given = {"groups": torch.zeros(4).long(), "mask": torch.ones(4, 1).bool(), "rewards": REWARDS}
    logp_ref = -torch.tensor([2.4, 2.6, 1.04, 1.06]).double().log()[:, None]
    learns, counts = functional.selection("capo", advantages=REWARDS, logp_ref=logp_ref, **given)
    assert learns[:, 0].tolist() == [True, False, False, True]
    assert counts.all()


def test_edges():
    batch = flat_batch((2, 1, 1, 1), groups=(0, 0, 1, 2), reward_B=[1.0, 1.0, 0.0, 1.0])
    batch = batch.set(
        logp_old_T=torch.tensor([-0.1, -0.2, -0.5, -0.6, -0.1]), logp_ref_T=torch.full((5,), -0.5)
    )
    assert not stages(capo(), batch)["advantage_T"].any()  # no pairs: all right, or alone
    for wrong in ({"tau": 0.0}, {"pair_reduction": "max"}):
        with pytest.raises(UserError, match="rank_right_above_wrong"):
            capo(**wrong)
    assert capo() != dr_grpo()


def test_the_share_of_pairs_in_the_wrong_order_is_logged():
    # of the pairs (-.2, -.3), (-.2, -.9), (-.6, -.3), (-.6, -.9) the third alone
    batch = flat_batch((1,) * 4, reward_B=REWARDS, logp_old_T=list(CONFIDENCE))
    told = run(RankRightAboveWrong(), batch).metrics
    assert told == {"ranking/frac_wrong_order": 0.25}
    alone = run(RankRightAboveWrong(), batch.set(reward_B=REWARDS * 0)).metrics
    assert alone == {"ranking/frac_wrong_order": 0.0}
