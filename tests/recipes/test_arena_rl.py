from types import SimpleNamespace

import pytest
import torch
from builders import flat_batch, ragged_batch, stages
from hypothesis import given
from hypothesis import strategies as st

from strop.parts.reward._tournament import SCHEMES, _bracket, _byes
from strop.parts.reward.rank_in_tournament import RankInTournament
from strop.recipes.arena_rl import arena_rl
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


class Pairs:
    """Texts "0", "1", ... and reward functions over them: an answer's score beside another."""

    reward_names = ("wins",)

    def __init__(self, score):
        self.score, self.calls = score, 0

    def decoded(self, batch):
        return [], [str(int(batch["id_T"][batch["rollout_T"] == i][0]))
                    for i in range(batch.size("B"))]  # fmt: skip

    def grade_beside(self, batch, opponents):
        _, own = self.decoded(batch)
        self.calls += len(own)
        found = [self.score(int(a), int(b)) for a, b in zip(own, opponents, strict=True)]
        return SimpleNamespace(
            outcome_B=torch.tensor([0.0 if f is None else float(f) for f in found]),
            scored_B=torch.tensor([f is not None for f in found]),
        )


def group(num, groups=None):
    return flat_batch((1,) * num, groups, id_T=torch.arange(num))


def strengths(values):
    return torch.tensor(values).double()[:, None].expand(len(values), len(values))


def tournament_rewards(pair_scores, scheme="elimination", source_form="paper"):
    """Rewards [N] of a group from `pair_scores` [N, N]: i's score in the match of i and j."""
    game = SCHEMES[scheme](pair_scores.shape[0], source_form == "code")
    pairs = next(game)
    while True:
        try:
            pairs = game.send([(float(pair_scores[i, j]), float(pair_scores[j, i]))
                               for i, j in pairs])  # fmt: skip
        except StopIteration as end:
            return torch.tensor(end.value, dtype=torch.float64)


def test_worked_example():
    rewards = tournament_rewards(strengths([4.0, 3.0, 2.0, 1.0]))
    assert rewards.tolist() == pytest.approx([1, 0.6667, 0.3333, 0], abs=5e-5)
    batch = stages(arena_rl(), flat_batch((1,) * 4, reward_B=rewards))
    wanted = [1.1619, 0.3873, -0.3873, -1.1619]
    assert batch["advantage_B"].tolist() == pytest.approx(wanted, abs=5e-5)
    sixteen = tournament_rewards(strengths([float(n) for n in range(16)]))
    batch = stages(arena_rl(), flat_batch((1,) * 16, reward_B=sixteen))
    assert float(batch["advantage_B"].max()) == pytest.approx(1.5753, abs=5e-5)
    assert float(batch["advantage_B"].min()) == pytest.approx(-1.5753, abs=5e-5)


def test_brackets_and_byes():
    assert [1 + seed for seed in _bracket(8)] == [1, 8, 4, 5, 2, 7, 3, 6]
    # six players: the best two seeds wait; the released code pairs 1 v 4, 5 v 2, 3 v 6
    slots = [seed if seed < 6 else None for seed in _bracket(6)]
    assert _byes(slots, False)[0::2] == ([0, None, 1, None], [(3, 4), (2, 5)])
    left = [slot for slot in slots if slot is not None]
    assert _byes(left, True)[2] == [(0, 3), (4, 1), (2, 5)]
    # who has the bye goes first in the next list
    assert _byes([7, 8, 9], True)[0::2] == ([9, None], [(7, 8)])


@given(seed=st.integers(0, 500), num=st.integers(2, 11), scheme=st.sampled_from(list(SCHEMES)),
       form=st.sampled_from(["paper", "code"]))  # fmt: skip
def test_a_consistent_judge_has_one_champion_and_ranks_are_a_fixed_set(seed, num, scheme, form):
    strength = torch.randperm(num, generator=torch.Generator().manual_seed(seed)).double()
    rewards = tournament_rewards(strengths(strength.tolist()), scheme, form)
    assert int(rewards.argmax()) == int(strength.argmax())
    expected = [n / (num - 1) for n in range(num)]
    assert sorted(rewards.tolist()) == pytest.approx(expected)
    if scheme == "round_robin":
        assert rewards.argsort().equal(strength.argsort())


def test_ties_and_equal_players():
    assert tournament_rewards(strengths([1.0] * 4), "round_robin").tolist() == [0.0] * 4
    # seeds 0 1 2 3, pairs 0 v 3 and 1 v 2; the first-listed wins a tie
    equal = tournament_rewards(strengths([1.0] * 4)).tolist()
    assert equal == pytest.approx([1.0, 2 / 3, 0.0, 1 / 3])
    # against rollout 0 all have 10: the code's minimum rank is 1 for each
    level = torch.tensor([[0.0, 10, 10], [10, 0, 10], [10, 10, 0]])
    assert tournament_rewards(level, "anchor", "code").tolist() == [0.0, 0.0, 0.0]
    assert tournament_rewards(level, "anchor").tolist() == [1.0, 0.5, 0.0]
    # 0 has 5 and 7, its mean is 6, 1 has 8 and 2 has 6: ranks 2, 1, 2
    two = torch.tensor([[0.0, 5, 7], [8, 0, 0], [6, 0, 0]])
    assert tournament_rewards(two, "anchor", "code").tolist() == [0.0, 1.0, 0.0]
    wins = torch.tensor([[0.0, 1, 1], [0, 0, 1], [0, 1, 0]])  # 1 and 2 tie behind 0
    assert tournament_rewards(wins, "round_robin").tolist() == [1.0, 0.0, 0.0]


def test_groups_play_side_by_side_with_2n_minus_2_matches():
    judge = Pairs(lambda own, other: own)
    part = RankInTournament()
    result = part(group(12, [0] * 8 + [1] * 4), judge, judge)
    component, outcome, reward, scored = result.value
    assert scored.all()
    assert reward.equal(outcome)
    assert component.shape == (12, 1)
    assert reward[:8].argmax() == 7
    assert reward[8:].argmax() == 3
    assert result.metrics["tournament/matches"] == (14 + 6) / 2
    assert judge.calls == 2 * (14 + 6)


def test_the_part_plays_by_its_form():
    judge = Pairs(lambda own, other: 1.0)  # equal ones share a rank in the code's form alone
    for form, rewards in (("paper", [1.0, 0.5, 0.0]), ("code", [0.0] * 3)):
        found = RankInTournament("anchor", form)(group(3), judge, judge).value[2]
        assert found.tolist() == rewards


def test_position_does_not_count_and_failures_are_ties():
    part = RankInTournament(scheme="anchor")
    judge = Pairs(lambda own, other: None if own == 2 else own)
    value = part(group(3), judge, judge).value
    assert value[3].tolist() == [True, True, False]
    assert value[2].tolist()[1] > value[2].tolist()[0]
    judge = Pairs(lambda own, other: None)
    nobody = part(group(3), judge, judge)
    assert not nobody.value[3].any()
    assert nobody.metrics["tournament/frac_unjudged"] == 1.0
    with pytest.raises(UserError, match="num_rollouts"):
        part(group(1), judge, judge)


def test_several_reward_functions_are_refused():
    judge = Pairs(lambda own, other: own)
    judge.reward_names = ("wins", "length")
    with pytest.raises(UserError, match=r"one reward function, .* has wins, length"):
        RankInTournament()(group(3), judge, judge)


def test_advantages_are_grpos():
    batch = ragged_batch(1)
    assert stages(arena_rl(), batch)["advantage_T"].equal(stages(grpo(), batch)["advantage_T"])
