import torch
from builders import flat_batch, run

from strop.parts.selection.keep_large_advantages import KeepLargeAdvantages


def test_small_advantages_and_unscored_rollouts_go():
    batch = flat_batch((1,) * 6, advantage_B=[0.5, -0.3, 0.009, -0.002, 0.0, 0.2])

    def kept(**fields):
        return run(KeepLargeAdvantages(**fields), batch).value.gradient_T.nonzero()[:, 0].tolist()

    assert kept() == [0, 1, 5]
    assert kept(positive_only=True) == [0, 5]
    assert kept(smallest=0.6) == []
    unscored = batch.set(scored_B=torch.tensor([False] + [True] * 5))
    assert not run(KeepLargeAdvantages(), unscored).value.gradient_T[0]
    assert kept(smallest=0.0) == list(range(6))


def test_all_tokens_of_a_rollout_go_and_count_no_more():
    batch = flat_batch((2, 1, 3), advantage_B=[0.5, 0.0, -0.5])
    selected = run(KeepLargeAdvantages(), batch).value
    assert selected.gradient_T.tolist() == [True, True, False, True, True, True]
    assert selected.denominator_T.equal(selected.gradient_T)
