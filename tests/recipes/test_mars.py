"""Turns of games, each player compared with itself: the paper's form and the code's form."""

import pytest
import torch
from builders import stages
from ragged import ragged_batch

from strop import functional as F
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.recipes._base import average
from strop.recipes.mars import mars
from strop.support.errors import UserError

# Three games of two turns, one token a turn: won, won, lost.
REWARDS = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
ENDS = torch.ones(3, 2, dtype=torch.bool)
ONE = torch.zeros(3, dtype=torch.long)
PLAIN = {"variant": "code", "whiten_rewards": False, "whiten_advantages": False}


def advantages(rewards=REWARDS, players=None, **params):
    given = {} if players is None else {"players": torch.as_tensor(players)}
    return F.advantages("mars", turn_rewards=torch.as_tensor(rewards), params=params, **given)


def close(found, wanted):
    assert found.tolist() == [pytest.approx(row, abs=1e-4) for row in wanted]


def test_worked_example_of_the_code():
    # Centred (-.1667, .8333) twice and (-.1667, -1.1667); returns .6667, .8333, -1.3333, -1.1667:
    # four distinct values, mean -.25.
    wanted = [[0.9167, 1.0833], [0.9167, 1.0833], [-1.0833, -0.9167]]
    close(advantages(**PLAIN), wanted)
    given = {"mask": ENDS, "players": ONE, "token_rewards": REWARDS, "params": PLAIN}
    close(F.advantages("mars", turn_end=ENDS, **given), wanted)
    close(F.advantages("mars", turn_ids=torch.tensor([[0, 1]] * 3), **given), wanted)


def test_the_paper_takes_the_mean_over_turns():
    # Returns 1, 1, 1, 1, -1, -1: mean 1/3.
    wanted = [[0.6667, 0.6667], [0.6667, 0.6667], [-1.3333, -1.3333]]
    close(advantages(), wanted)
    close(advantages(gamma=0.5), [[0.25, 0.75], [0.25, 0.75], [-0.75, -1.25]])
    # Rewards less their mean first: returns .6667, .8333, ..., of mean .0833.
    wanted = [[0.5833, 0.75], [0.5833, 0.75], [-1.4167, -1.25]]
    close(advantages(reward_norm="mean"), wanted)


def test_a_player_is_compared_with_itself_alone():
    rewards = torch.tensor([[1.0], [3.0], [-1.0], [-5.0]], dtype=torch.float64)
    found = advantages(rewards, players=[0, 0, 1, 1])
    assert found.tolist() == [[-1.0], [1.0], [2.0], [-2.0]]
    assert advantages(rewards, players=[0, 0, 1, 1], **PLAIN).tolist() == found.tolist()
    scaled = advantages(rewards, players=[0, 0, 1, 1], advantage_norm="mean_std")
    close(scaled, [[-0.7071], [0.7071], [0.7071], [-0.7071]])
    assert advantages(rewards, players=[4, 4, 2, 2]).equal(found)  # any numbers, any order
    one = advantages(rewards, players=[0, 0, 0, 0])
    assert one.tolist() == [[1.5], [3.5], [-0.5], [-4.5]]


def test_one_turn_and_one_player_is_reinforce_with_a_batch_mean():
    rewards = torch.tensor([[0.0], [1.0], [1.0], [4.0]], dtype=torch.float64)
    assert advantages(rewards).tolist() == [[-1.5], [-0.5], [-0.5], [2.5]]
    # One role over the step is that, too.
    other = F.advantages(
        "advevo_public_baseline", rewards=rewards[:, 0], players=torch.zeros(4).long()
    )
    assert other.tolist() == advantages(rewards)[:, 0].tolist()


def test_one_player_of_one_turn_is_mean_centred_grpo_in_one_group():
    rewards = torch.tensor([0.2, 0.9, 0.4], dtype=torch.float64)
    ours = advantages(rewards[:, None])[:, 0]
    theirs = F.advantages(
        "grpo", rewards=rewards, groups=torch.zeros(3).long(), params={"normalize_std": False}
    )
    torch.testing.assert_close(ours, theirs)


def by_hand(rewards, mask, turn_ids, players):
    """The released code's steps, with loops over padded rows in double precision."""
    num, width = mask.shape
    reward = torch.zeros(num, width, dtype=torch.float64)
    for b in range(num):
        for k in range(rewards.shape[1]):
            rows = ((turn_ids[b] == k) & mask[b]).nonzero()[:, 0]
            reward[b, rows[-1]] = rewards[b, k]
    ends = torch.zeros_like(mask)
    for b in range(num):
        for k in range(rewards.shape[1]):
            ends[b, ((turn_ids[b] == k) & mask[b]).nonzero()[-1, 0]] = True
    for player in set(players.tolist()):
        own = (players == player)[:, None] & ends
        reward[own] -= reward[own].mean()
    counts = reward[mask]
    reward = (reward - counts.mean()) * (counts.var() + 1e-8).rsqrt() * mask
    total = torch.zeros_like(reward)
    for b in range(num):
        later = 0.0
        for t in reversed(range(width)):
            later = total[b, t] = float(reward[b, t]) + later
    for player in set(players.tolist()):
        own = (players == player)[:, None] & mask
        distinct = sorted({round(v, 6) for v in total[own].tolist()})
        total[own] -= sum(distinct) / len(distinct)
    counts = total[mask]
    return (total - counts.mean()) * (counts.var() + 1e-8).rsqrt() * mask


def test_all_steps_of_the_code():
    mask = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 1]]).bool()
    turns = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]])
    rewards = torch.tensor([[0.3, -1.0], [0.0, 1.0], [0.5, 2.0]], dtype=torch.float64)
    players = torch.tensor([0, 0, 1])
    given = {"mask": mask, "turn_ids": turns, "turn_rewards": rewards, "players": players}
    found = F.advantages("mars", params={"variant": "code"}, **given)
    torch.testing.assert_close(found, by_hand(rewards, mask, turns, players), atol=1e-6, rtol=1e-6)


def test_equal_rewards_teach_nothing():
    same = torch.ones(3, 2, dtype=torch.float64)
    assert not advantages(0 * same).any()
    assert not advantages(0 * same, variant="code").any()
    assert not advantages(same[:, :1]).any()
    assert not advantages(same[:1, :1]).any()


def test_the_limit_caps_both_sides():
    found = advantages(advantage_clip=1.0)
    close(found, [[0.6667, 0.6667], [0.6667, 0.6667], [-1.0, -1.0]])


def test_unscored_games_take_part_in_nothing():
    batch = ragged_batch(3, group_sizes=(3, 3, 3))
    scored_B = torch.arange(9) != 4
    for algorithm in (mars(), mars(variant="code")):
        found = stages(algorithm, batch.set(scored_B=scored_B))["advantage_T"]
        moved_K = torch.where(batch["rollout_K"] == 4, 50.0, batch["reward_K"])
        again = stages(algorithm, batch.set(scored_B=scored_B, reward_K=moved_K))["advantage_T"]
        assert found.equal(again)
        assert not found[batch["rollout_T"] == 4].any()
        assert found.isfinite().all()


def test_its_loss_has_the_codes_dual_clip():
    """1 + 2 * 0.2, and a penalty of 0.2 towards the reference."""
    policy, kl = mars().terms
    assert policy.objective.part == ClipBothSides(0.2, 0.2, 1.4)
    assert (kl.name, kl.coef) == ("kl", 0.2)
    assert len(mars(beta=0.0).terms) == 1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"variant": "own"}, "variant must be one of paper, code: 'own'"),
        ({"reward_norm": "running"}, "reward_norm must be one of mean, mean_std, none"),
        ({"advantage_norm": "std"}, "advantage_norm must be one of mean, mean_std, none: 'std'"),
        ({"whiten_rewards": True}, "whiten_rewards needs variant=.code., whose"),
        ({"whiten_advantages": "often"}, "whiten_advantages is true, false, variant, paper or"),
    ],
)
def test_unknown_forms_are_refused(params, message):
    with pytest.raises(UserError, match=message):
        mars(**params)


def test_ends_that_split_a_turn_are_refused():
    given = {"mask": ENDS, "token_rewards": REWARDS, "turn_ids": torch.zeros(3, 2).long()}
    with pytest.raises(UserError, match="turn_end ends a turn of turn_ids before its last token"):
        F.advantages("mars", turn_end=ENDS, **given)
    with pytest.raises(UserError, match="turn_end must be"):
        F.advantages("mars", turn_end=ENDS[:, :1], **given)
    with pytest.raises(UserError, match=r"turn_end must be \[B, T\]; it is \[6\]"):
        F.advantages("mars", turn_end=ENDS.flatten(), **{**given, "turn_ids": None})
    outside = torch.tensor([[0, 1], [0, 1], [0, -1]])  # an end where no turn is
    with pytest.raises(UserError, match="turn_end ends a turn of turn_ids before its last token"):
        F.advantages("mars", turn_end=ENDS, **{**given, "turn_ids": outside})


def test_ends_beside_turns_change_nothing():
    """Turns of two tokens and of one, tokens of nobody before, between and behind them."""
    turn_ids = torch.tensor([[0, 0, -1, 1], [0, 1, 1, -1], [-1, 0, 0, 1]])
    ends = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 1]]).bool()
    rewards = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, -1]]).double()
    given = {"mask": turn_ids >= 0, "token_rewards": rewards, "turn_ids": turn_ids}
    plain = F.advantages("mars", **given, params=PLAIN)
    assert plain.any()
    assert torch.equal(F.advantages("mars", turn_end=ends, **given, params=PLAIN), plain)
    for row in (1, 2):  # within a turn of two
        cut = ends.clone()
        cut[row, 1] = True
        with pytest.raises(UserError, match="before its last token"):
            F.advantages("mars", turn_end=cut, **given, params=PLAIN)


def test_its_average_is_the_released_codes():
    """What is called a sum there is a mean."""
    assert mars().terms[0].average == average("seq-mean-token-mean")
