import torch
from builders import flat_batch, run

from strop.loss.average.average_by_constant_length import AverageByConstantLength
from strop.loss.average.average_over_tokens import AverageOverTokens
from strop.loss.average.average_per_sequence import AveragePerSequence
from strop.loss.penalty.reward_entropy import RewardEntropy


def test_worked_example():
    # (1, 3) and (2): token mean 6 / 3, mean of means (2 + 2) / 2, mean of sums (4 + 2) / 2
    batch = flat_batch((2, 1), entropy_T=[1.0, 3.0, 2.0])
    result = run(RewardEntropy(), batch)
    for average, expected in (
        (AverageOverTokens(), 2.0),
        (AveragePerSequence(), 2.0),
        (AverageByConstantLength(1), 3.0),
    ):
        share_T = run(average, batch).value
        torch.testing.assert_close(float((share_T * result.value).sum()), expected)


def test_gradient_is_the_entropys_own():
    entropy_T = torch.tensor([1.0, 3.0], dtype=torch.float64).requires_grad_()
    (RewardEntropy()(entropy_T).value * torch.tensor([2.0, 5.0])).sum().backward()
    assert entropy_T.grad.tolist() == [2.0, 5.0]
