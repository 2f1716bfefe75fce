import torch

from strop.parts.loss.bound._pairs import pairs_of


def test_pairs_of_prompts_that_lie_apart_match_a_slow_loop():
    """Eight answers to three prompts, in no order, one of them neither, one without tokens."""
    preferred, groups = [1, -1, 1, 0, -1, -1, 1, -1], [2, 0, 0, 0, 2, 2, 2, 1]
    tokens = [1, 2, 1, 1, 1, 0, 2, 1]
    rollout_T = torch.repeat_interleave(torch.arange(8), torch.tensor(tokens))
    learns_T = torch.ones(len(rollout_T), dtype=torch.bool)
    pairs = pairs_of(torch.tensor(preferred), torch.tensor(groups), 3, rollout_T, learns_T)
    expected = [
        (i, j)
        for i in range(8)
        for j in range(8)
        if groups[i] == groups[j] and preferred[i] > 0 > preferred[j] and tokens[i] and tokens[j]
    ]
    assert expected == [(0, 4), (2, 1), (6, 4)]
    found = zip(pairs.chosen_N.tolist(), pairs.rejected_N.tolist(), strict=True)
    assert list(found) == expected
    assert pairs.count_B.tolist() == tokens
