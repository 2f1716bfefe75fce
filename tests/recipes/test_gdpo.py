import dataclasses

import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, stages

from strop import functional
from strop.method.check import check
from strop.method.part import Use
from strop.parts.advantage.baseline.normalise_each_reward import NormaliseEachReward
from strop.parts.reward.penalise_overlong_softly import PenaliseOverlongSoftly
from strop.recipes.gdpo import gdpo
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

NAN = float("nan")
COMPONENTS = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]).double()
GROUPS = torch.zeros(4).long()


def call(components=COMPONENTS, groups=GROUPS, mask=None, weights=None, **params):
    given = {} if weights is None else {"reward_weights": weights}
    found = functional.advantages(
        "gdpo", reward_components=components, groups=groups, mask=mask, params=params, **given
    )
    return found if mask is not None else found.tolist()


def test_worked_example():
    sums = call(batch_norm="none", eps=0.0)
    assert sums == pytest.approx([1.366, -0.366, -0.366, -0.634], abs=5e-4)
    assert call(eps=0.0) == pytest.approx([1.4856, -0.3981, -0.3981, -0.6895], abs=5e-4)
    # the sum first would not tell rollout 4 from 2 and 3
    summed = functional.advantages("grpo", rewards=COMPONENTS.sum(1), groups=GROUPS).tolist()
    assert summed == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_a_part_that_changes_the_sum_of_rewards_alone_is_refused():
    algorithm = gdpo()
    penalty = Use(PenaliseOverlongSoftly())
    changed = dataclasses.replace(algorithm, reward=(*algorithm.reward, penalty))
    with pytest.raises(UserError, match="penalise_overlong_softly changes reward_B, which nothing"):
        check(changed)
    check(dataclasses.replace(grpo(), reward=(*grpo().reward, penalty)))


def test_one_reward_is_grpo_and_a_normalisation_of_the_batch():
    batch = ragged_batch(3, unscored=())
    batch = batch.set(reward_BM=batch["reward_B"][:, None])
    alone, grpos = stages(gdpo(batch_norm="none", eps=1e-6), batch), stages(grpo(), batch)
    torch.testing.assert_close(alone["advantage_T"], grpos["advantage_T"])
    base = grpos["advantage_B"]
    normal = stages(gdpo(eps=1e-6), batch)["advantage_B"]
    torch.testing.assert_close(normal, (base - base.mean()) / (base.std() + 1e-4))


def test_weights():
    given = functional.advantages(
        "gdpo", reward_components=COMPONENTS, groups=GROUPS,
        params={"weights": (2.0, 0.5), "batch_norm": "none", "eps": 0.0},
    ).tolist()  # fmt: skip
    # 2 * .866 + .5 * .5 and so on
    assert given == pytest.approx([1.982, -1.482, -1.482, 0.982], abs=5e-4)
    of_run = torch.tensor([2.0, 0.5]).double().expand(4, 2)
    assert call(weights=of_run, batch_norm="none", eps=0.0) == pytest.approx(given)
    with pytest.raises(UserError, match="3 weights for 2 reward functions"):
        functional.advantages(
            "gdpo", reward_components=COMPONENTS, groups=GROUPS, params={"weights": (1.0,) * 3}
        )


def test_tokens_are_whitened_as_in_verl():
    mask = torch.arange(4)[None] < torch.tensor([2, 4, 4, 2])[:, None]
    found = call(mask=mask, batch_norm="tokens", whiten_eps=1e-8, eps=1e-6)
    sums = torch.tensor(call(batch_norm="none", eps=1e-6)).double()
    tokens = sums[:, None].expand(4, 4)[mask]
    expected = (tokens - tokens.mean()) / (tokens.var() + 1e-8).sqrt()
    torch.testing.assert_close(found[mask], expected)


def test_matches_slow_loop_with_rewards_that_were_not_given():
    batch = ragged_batch(5, groups=(4, 3, 1, 5))
    rng = torch.Generator().manual_seed(0)
    reward_BM = torch.randn(batch.size("B"), 3, generator=rng, dtype=torch.float64)
    reward_BM[torch.rand(reward_BM.shape, generator=rng) < 0.2] = NAN
    weights = (1.0, 0.5, 2.0)
    chain = gdpo(weights=weights, batch_norm="none", singleton="zero")
    ours = stages(chain, batch.set(reward_BM=reward_BM))["advantage_B"]
    expected = torch.zeros_like(ours)
    for group in range(batch.size("P")):
        members = torch.tensor(members_of(batch, group))
        for m, weight in enumerate(weights):
            there = members[~reward_BM[members, m].isnan()]
            if len(there) > 1:
                values = reward_BM[there, m]
                z = (values - values.mean()) / (values.std() + 1e-4)
                expected[there] += weight * z
    torch.testing.assert_close(ours, expected)


def test_edges():
    # a group of one gets its rewards, or nothing; equal rewards add exactly nothing
    assert call(COMPONENTS[:1], GROUPS[:1], batch_norm="none", eps=0.0) == [2.0]
    assert call(COMPONENTS[:1], GROUPS[:1], batch_norm="none", singleton="zero") == [0.0]
    assert call(torch.full((4, 2), 0.3).double()) == [0.0] * 4
    # a rollout that no function scored takes part in nothing
    partly = COMPONENTS.clone()
    partly[1] = NAN
    assert call(partly)[1] == 0.0
    assert [call(partly)[i] for i in (0, 2, 3)] == pytest.approx(
        call(COMPONENTS[[0, 2, 3]], GROUPS[:3])
    )
    with pytest.raises(UserError, match="needs reward_components"):
        functional.advantages("gdpo", rewards=COMPONENTS[:, 0], groups=GROUPS)


def test_composes_and_notes_the_weights():
    algorithm = gdpo()
    assert [use.label for use in algorithm.reward] == [
        "score_with_verifiers",
        "note_reward_weights",
    ]
    batch = flat_batch((1,) * 4, reward_B=[1.0, 0.0, 0.0, 1.0], reward_BM=COMPONENTS)
    whole = stages(algorithm, batch)["advantage_B"]
    assert float(whole.std()) == pytest.approx(1, abs=1e-3)


def test_the_share_of_rewards_that_tell_answers_apart_is_logged():
    # apart: the first function in both groups; the second gave one value, or one alone
    given = [[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, NAN]]
    batch = flat_batch((1,) * 4, (0, 0, 1, 1), reward_BM=given)
    assert run(NormaliseEachReward(), batch).metrics == {"rewards/frac_spread": 0.5}


def test_the_only_reward_of_several_rollouts_is_compared_with_nothing():
    given = [[50.0, 1.0], [NAN, 0.0], [7.0, NAN]]
    batch = flat_batch((1,) * 3, (0, 0, 1), reward_BM=given)
    batch = batch.set(scored_B=torch.tensor([True, True, True]))
    found = run(NormaliseEachReward(eps=0.0), batch).value
    assert found.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), 7.0])
