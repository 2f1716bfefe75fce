import torch
from builders import flat_batch, gradient, run, slope

from strop.parts.loss.ratio.ratio_per_token import RatioPerToken


def test_worked_example():
    batch = flat_batch((3,), logp_T=[-1.0, -2.0, 0.0], logp_old_T=[-1.5, -1.0, -30.0])
    assert run(RatioPerToken(), batch).value.tolist() == [0.5, -1.0, 20.0]
    assert run(RatioPerToken(0.8), batch).value.tolist() == [0.5, -0.8, 0.8]


def test_gradient():
    old_T = torch.tensor([-1.5, -1.0, -30.0], dtype=torch.float64)
    at_T = torch.tensor([-1.0, -2.0, -0.1], dtype=torch.float64)
    weight_T = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)

    def function(logp_T):
        return (RatioPerToken()(logp_T, old_T).value * weight_T).sum()

    torch.testing.assert_close(gradient(function, at_T), slope(function, at_T))
    assert gradient(function, at_T).tolist() == [1.0, 3.0, 0.0]


def test_the_size_of_the_log_ratio_is_logged():
    batch = flat_batch((3,), logp_T=[-1.0, -2.0, -1.0], logp_old_T=[-1.5, -1.0, -31.0])
    told = run(RatioPerToken(), batch).metrics
    assert told["ratio/log_abs_mean"].tolist() == [0.5, 1.0, 20.0]
