import torch
from builders import flat_batch, run

from strop.parts.selection.keep_preferred import KeepPreferred


def test_the_better_answers_learn_or_both_of_a_pair():
    # chosen, rejected, neither; the second token is not the policy's
    batch = flat_batch((2, 1, 1)).set(preferred_B=torch.tensor([1, -1, 0]))
    batch = batch.set(mask_T=torch.tensor([True, False, True, True]))
    for part, kept in (
        (KeepPreferred(), [True, False, False, False]),
        (KeepPreferred(rejected=True), [True, False, True, False]),
    ):
        selected = run(part, batch).value
        assert selected.gradient_T.tolist() == kept
        assert selected.denominator_T.tolist() == kept
        assert selected.reason == "rejected_answer"


def test_no_such_answer():
    batch = flat_batch((2, 1)).set(preferred_B=torch.tensor([-1, 0]))
    assert not run(KeepPreferred(), batch).value.gradient_T.any()
