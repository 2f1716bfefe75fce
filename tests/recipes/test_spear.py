import dataclasses

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, pushed, ragged_batch, run, stages

from strop.method.part import Use
from strop.parts.curation.keep_widest_groups import KeepWidestGroups
from strop.parts.loss.bound.drop_high_covariance_tokens import DropHighCovarianceTokens
from strop.parts.reward.reward_answered_turns import RewardAnsweredTurns
from strop.parts.selection.drop_truncated_rollouts import DropTruncatedRollouts
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.spear import spear


def weights_at(step):
    at = spear().at_step(step, 1000)
    (paid,) = (u.part for u in at.reward if isinstance(u.part, RewardAnsweredTurns))
    return paid.weight, at.terms[-1].coef


def test_worked_example_of_both_schedules():
    # step 50 of T = 200: the turns' factor .8536, imitation's .1464; then 0 and 1 for good
    assert weights_at(50) == pytest.approx((0.8535534, 0.1464466))
    assert weights_at(200) == weights_at(700) == (0.0, 1.0)


def test_five_answered_turns_earn_427_thousandths():
    # turns of the rollouts: 6 (5 of them answered), 1, 13; the last reaches the most
    turn_B = torch.tensor([6, 1, 13])
    rollout_K = torch.repeat_interleave(torch.arange(3), turn_B)
    batch = flat_batch((1, 1, 1), reward_B=[1.0, 0.0, 0.0]).set(
        rollout_K=rollout_K, turn_T=torch.tensor([0, 6, 7])
    )
    part = RewardAnsweredTurns(weight=weights_at(50)[0])
    found = run(part, batch)
    assert found.value.tolist() == pytest.approx([1 + 0.4267767, 0.0, 0.8535534])
    assert found.metrics["reward/turn_bonus"] == pytest.approx((0.4267767 + 0.8535534) / 3)
    unscored = batch.set(scored_B=torch.tensor([False, True, True]))
    assert run(part, unscored).value.tolist()[0] == 1.0


def test_worked_example_of_covariances():
    # cov = [.875, 1.025, -.2625, -.3375]: with lb = 1 the second alone may be dropped
    batch = flat_batch((4,), advantage_T=[1.0, -1.0, 0.5, -0.5], logp_T=[-0.1, -2.0, -1.5, -0.3])
    part = DropHighCovarianceTokens(0.2, 0.28, drop_share=0.02, cov_low=1.0, cov_high=40.0)
    found = run(part, batch.set(log_ratio_T=torch.zeros(4).double()), rng=torch.Generator())
    assert found.value.tolist() == [1.0, 0.0, 0.5, -0.5]


def test_without_replay_and_bonus_it_is_its_base():
    base = dr_grpo(clip_high=0.28)
    base = dataclasses.replace(base, selection=(Use(DropTruncatedRollouts()),))
    plain = spear(T_tool=0, coef=0.0, kept=1.0, ratio=0.0)
    assert plain == base
    batch = ragged_batch(3)
    ours, theirs = (pushed(each, stages(each, batch)) for each in (plain, base))
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1]["logp_T"], theirs[1]["logp_T"])


def test_defaults_are_the_papers():
    widest, curation = spear().curation
    assert widest.part.share == 0.75
    assert (curation.part.size, curation.part.history, curation.part.max_age) == (2048, 10240, 10)
    fresh, imitate = (term.objective.part for term in spear().terms)
    assert fresh == imitate
    assert (imitate.drop_share, imitate.cov_low, imitate.cov_high) == (0.02, 1.0, 40.0)
    assert (imitate.clip_low, imitate.clip_high) == (0.2, 0.28)


def test_the_groups_whose_rewards_differ_most_stay():
    # unbiased deviations: of (1, 0) .7071, (0.5, 0.5, unscored) 0, (1, 0, 0) .5774, one rollout 0
    groups = (0, 0, 1, 1, 1, 2, 2, 2, 3)
    rewards = [1.0, 0.0, 0.5, 0.5, 9.0, 1.0, 0.0, 0.0, 1.0]
    batch = flat_batch((1,) * 9, groups=groups, reward_B=rewards)
    batch = batch.set(scored_B=torch.tensor([n != 4 for n in range(9)]))

    def kept(share):
        return run(KeepWidestGroups(share), batch).value.keep_B.tolist()

    assert kept(0.5) == [True, True, False, False, False, True, True, True, False]
    assert kept(0.75) == [True] * 8 + [False]  # of two of spread 0 the first
    assert kept(0.0) == [True, True] + [False] * 7
    told = run(KeepWidestGroups(0.5), batch).metrics
    assert told["widest/spread"] == pytest.approx((0.5**0.5 + 1 / 3**0.5) / 4)
    assert told["widest/spread_kept"] == pytest.approx((0.5**0.5 + 1 / 3**0.5) / 2)


def test_fresh_tokens_of_high_covariance_do_not_learn_either():
    # the worked covariances: of four fresh tokens the second gets no gradient
    algorithm = spear(coef=0.0, T_tool=0, kept=1.0, length=4)
    batch = flat_batch((4,), reward_B=[1.0], logp_T=[-0.1, -2.0, -1.5, -0.3])
    batch = stages(algorithm, batch).set(advantage_T=torch.tensor([1.0, -1.0, 0.5, -0.5]).double())
    batch = batch.set(logp_old_T=batch["logp_T"])
    pushes = pushed(algorithm, batch)[1]["logp_T"]
    assert pushes.tolist() == [-0.25, 0.0, -0.125, 0.125]


@pytest.mark.parametrize("seed", range(3))
def test_loss_of_fresh_and_of_replayed_rollouts(seed):
    algorithm = spear(T_sil=0, coef=0.5, lb=1e3, ub=2e3, length=7)
    batch = ragged_batch(seed, groups=(3, 2, 1))
    replayed_B = batch["group_B"] == 2
    origin_T = torch.where(replayed_B[batch["rollout_T"]], 4, 0)
    mean_P = [float(batch["reward_B"][(batch["group_B"] == g) & batch["scored_B"]].mean())
              for g in range(3)]  # fmt: skip
    made_B = batch["reward_B"] - torch.tensor(mean_P).double()[batch["group_B"]]
    made_B = torch.where(replayed_B, 0.6, made_B)  # R - P50
    batch = batch.set(origin_T=torch.where(batch["mask_T"], origin_T, 1), made_advantage_B=made_B)
    batch = stages(algorithm, batch)

    def loss(logp_T):
        total = 0.0
        for old, weight, center in ((False, 1.0, "logp_old_T"), (True, 0.5, "logp_sampler_T")):
            rows = [i for i in range(6) if batch["scored_B"][i] and not batch["truncated_B"][i]
                    and bool(replayed_B[i]) == old]  # fmt: skip
            for i in rows:
                here_T = (batch["rollout_T"] == i) & batch["mask_T"]
                ratio = (logp_T - batch[center])[here_T].exp()
                total = total + weight * clipped(ratio, made_B[i], 0.2, 0.28).sum() / 7 / len(rows)
        return total

    assert_same_push(algorithm, batch, loss)
