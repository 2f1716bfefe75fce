import torch
from builders import flat_batch, run

from strop.parts.loss.average.average_over_tokens import AverageOverTokens
from strop.parts.loss.penalty.balance_experts import BalanceExperts
from strop.support.experts import balance


def test_worked_example():
    # two experts, k = 1, three of four tokens went to the first: load 3/4, 1/4. A token whose
    # router gives it 0.8 pays 2 (0.6 + 0.05) = 1.3, one at 0.5 pays 1; their mean is 1.15
    load_LE = torch.tensor([[0.75, 0.25]])
    logits = torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log()
    balance_T = balance((logits,), load_LE)
    batch = flat_batch((2,), router_balance_T=balance_T.tolist())
    result = run(BalanceExperts(), batch)
    torch.testing.assert_close(result.value, torch.tensor([-1.3, -1.0]).double())
    torch.testing.assert_close(result.metrics["router/balance"], -result.value)
    share_T = run(AverageOverTokens(), batch).value
    torch.testing.assert_close(float((share_T * result.value).sum()), -1.15)


def test_gradient_leaves_the_expert_that_has_much():
    logits = torch.tensor([[0.8, 0.2]]).log().requires_grad_()
    value_T = BalanceExperts()(balance((logits,), torch.tensor([[0.75, 0.25]]))).value
    value_T.sum().backward()
    # d(-2 (0.75 p + 0.25 (1 - p))) / dlogit = -1 * p (1 - p), of the first expert
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.16, 0.16]]))
