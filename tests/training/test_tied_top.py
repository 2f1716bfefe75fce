import torch
from builders import flat_batch, ragged_batch

from strop.training.learner.step_metrics import _answer_key, _tied_top


def test_ties_are_of_distinct_answers_at_the_top():
    batch = flat_batch(
        (2,) * 7, (0, 0, 0, 1, 1, 2, 2), reward_B=[1.0, 1, 0, 1, 1, 1, 0],
        # group 0: two answers share the top; 1: the same answer twice; 2: one answer is best
        id_T=[5, 6, 6, 5, 5, 6, 5, 6, 5, 6, 5, 6, 6, 5],
    )  # fmt: skip
    assert _tied_top(batch).tolist() == [True, False, False]
    unscored = batch.set(scored_B=torch.tensor([True, False, True, True, True, True, True]))
    assert not _tied_top(unscored).any()


def test_answers_have_one_key_exactly_where_their_tokens_agree():
    batch = ragged_batch(5, groups=(20, 20), lengths=(1, 3), num_turns=(1, 1))
    batch = batch.set(id_T=batch["id_T"] % 3)
    texts = [tuple(batch["id_T"][(batch["rollout_T"] == i) & batch["mask_T"]].tolist())
             for i in range(40)]  # fmt: skip
    keys = _answer_key(batch).tolist()
    assert len(set(texts)) < 40
    for one in range(40):
        for other in range(40):
            assert (keys[one] == keys[other]) == (texts[one] == texts[other])
