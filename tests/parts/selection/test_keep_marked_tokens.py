import torch
from builders import ragged_batch, run

from strop.parts.selection.keep_marked_tokens import KeepMarkedTokens


def test_marked_policy_tokens_learn_and_count():
    batch = ragged_batch(1)
    learning_T = torch.arange(batch.size("T")) % 3 == 0
    found = run(KeepMarkedTokens(), batch.set(learning_T=learning_T)).value
    assert found.gradient_T.equal(learning_T & batch["mask_T"])
    assert found.denominator_T.equal(found.gradient_T)
    assert found.gradient_T.any()
    none = run(KeepMarkedTokens(), batch.set(learning_T=learning_T & False)).value
    assert not none.gradient_T.any()
