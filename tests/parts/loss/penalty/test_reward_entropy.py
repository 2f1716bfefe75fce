import torch
from builders import flat_batch, run

from strop.parts.loss.average.average_by_constant_length import AverageByConstantLength
from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.parts.loss.average.average_per_sequence import AveragePerSequence
from strop.parts.loss.penalty.reward_entropy import RewardEntropy


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


def test_tokens_pay_outside_the_corridor():
    # past 2: from 1 to 3; 0.4 is 0.6 below, 3.5 is 0.5 above; 0.1 / 2 of that is paid
    batch = flat_batch((3,), entropy_T=[0.4, 2.0, 3.5])
    part = RewardEntropy((0.5, 1.5), past=2.0, alpha=0.1, smooth=0.5)
    found = run(part, batch)
    expected = torch.tensor([0.4 - 0.03, 2.0, 3.5 - 0.025]).double()
    torch.testing.assert_close(found.value, expected)
    assert found.metrics["epo/outside_mean"].tolist() == [1, 0, 1]
    for past, outside in ((-1.0, 0), (0.0, 1)):  # none yet; a corridor without width
        metrics = run(RewardEntropy((0.5, 1.5), past=past), batch).metrics
        assert metrics["epo/outside_mean"].tolist() == [outside] * 3


def test_gradient_is_the_entropys_own():
    entropy_T = torch.tensor([1.0, 3.0], dtype=torch.float64).requires_grad_()
    (RewardEntropy()(entropy_T).value * torch.tensor([2.0, 5.0])).sum().backward()
    assert entropy_T.grad.tolist() == [2.0, 5.0]
