import pytest
import torch
from builders import flat_batch, ragged_batch, run
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from strop.batch import segments
from strop.parts.reward.rank_truncated_by_entropy import RankTruncatedByEntropy
from strop.parts.reward.reward_short_right_answers import RewardShortRightAnswers


def answers(peaks, means, num=4, **columns):
    """Answers of `num` tokens: one of the peak's entropy, the others so that the mean is right."""
    entropy = []
    for peak, mean in zip(peaks, means, strict=True):
        entropy += [peak, *[(num * mean - peak) / (num - 1)] * (num - 1)]
    size = len(peaks)
    given = {
        "reward_B": [0.0] * size, "outcome_B": [0.0] * size, "truncated_B": [True] * size,
        "entropy_behavior_T": entropy, **columns,
    }  # fmt: skip
    return flat_batch((num,) * size, **given)


CARD = ([2.0, 1.5, 1.8, 1.0], [0.6, 0.8, 0.9, 0.7])


def test_worked_example():
    """S = 3, 0, 0, 0: the first gets the most; three equals share the ranks 1, 2 and 3."""
    given = run(RankTruncatedByEntropy(best=0.5), answers(*CARD)).value
    assert given.tolist() == pytest.approx([0.5, *[0.5 * (1 - 2 / 3)] * 3])


def test_more_is_beaten_more_is_earned():
    given = run(RankTruncatedByEntropy(best=1.0), answers([1.0, 3.0, 2.0], [0.9, 0.7, 0.8])).value
    assert given.tolist() == pytest.approx([0.0, 1.0, 0.5])


def test_the_peak_is_of_a_share_of_the_tokens():
    """One token of four, or two: which of them, decides between these answers."""
    entropies = [3.0, 0.1, 0.1, 0.1, 2.0, 2.0, 0.0, 0.0]
    columns = {"reward_B": [0.0, 0.0], "outcome_B": [0.0, 0.0], "truncated_B": [True, True]}
    batch = flat_batch((4, 4), entropy_behavior_T=entropies, **columns)
    assert run(RankTruncatedByEntropy(0.25, 1.0), batch).value.tolist() == [1.0, 0.0]
    assert run(RankTruncatedByEntropy(0.5, 1.0), batch).value.tolist() == [0.5, 0.5]


def test_who_is_ranked():
    part = RankTruncatedByEntropy(best=0.5)
    right = answers(*CARD, outcome_B=[0.0, 0.0, 0.0, 1.0])
    assert not run(part, right).value.any()
    ended = answers(*CARD, truncated_B=[False, True, False, False])
    assert run(part, ended).value.tolist() == [0.0, 0.5, 0.0, 0.0]  # alone among the cut-off
    unscored = answers(*CARD, scored_B=[False, True, True, True], reward_B=[9.0, 0.0, 0.0, 0.0])
    given = run(part, unscored).value
    assert given[0] == 9
    assert given[1:].tolist() == pytest.approx([0.25] * 3)
    empty = right.keep(torch.zeros(4, dtype=torch.bool))
    assert run(part, empty).value.shape == (0,)


@settings(max_examples=20)
@over(seed=st.integers(0, 10**6))
def test_matches_a_slow_loop_over_a_ragged_batch(seed):
    part = RankTruncatedByEntropy(0.3, 2.0)
    batch = ragged_batch(seed, groups=(5, 4, 6), unscored=(2,))
    batch = batch.set(
        outcome_B=(batch["group_B"] == 1).double(), truncated_B=torch.arange(15) % 5 < 4
    )
    given = run(part, batch).value
    for i in range(15):
        members = [
            j for j in range(15)
            if batch["group_B"][j] == batch["group_B"][i] != 1 and j != 2 and j % 5 < 4
        ]  # fmt: skip
        if i not in members:
            expected = float(batch["reward_B"][i])
            assert float(given[i]) == expected or (given[i] != given[i] and expected != expected)
            continue
        shape = {}
        for j in members:
            rows = (batch["rollout_T"] == j) & batch["mask_T"]
            values = batch["entropy_behavior_T"][rows].sort(descending=True).values
            shape[j] = (values[: max(1, int(0.3 * len(values)))].mean(), values.mean())
        wins = {j: sum(shape[j][0] > p and shape[j][1] < m for p, m in shape.values())
                for j in members}  # fmt: skip
        order = sorted(members, key=lambda j: -wins[j])
        ranks = [k for k, j in enumerate(order) if wins[j] == wins[i]]
        rank = sum(ranks) / len(ranks)
        assert float(given[i]) == pytest.approx(2.0 * (1 - rank / max(len(members) - 1, 1)))
    assert segments.count(batch["group_B"], 3).tolist() == [5, 4, 6]


def test_short_right_answers_earn_more():
    batch = flat_batch((5, 10, 30, 5), reward_B=[1.0, 1.0, 1.0, 0.0], outcome_B=[1.0] * 3 + [0.0])
    found = run(RewardShortRightAnswers(20), batch).value.tolist()
    assert found == pytest.approx([1.75, 1.5, 1.0, 0.0])
