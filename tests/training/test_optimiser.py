"""AdamW on half-precision weights: small steps are not lost, and a saved state resumes exactly."""

import io

import pytest
import torch
from torch import nn

from strop.training.learner.policy import MasterAdamW
from strop.training.parallel import shards

OPTIONS = {"betas": (0.9, 0.95), "weight_decay": 0.0}


def pushed(optimiser, weight, num_steps, lr=1e-6, gradient=1.0):
    for _ in range(num_steps):
        (weight.float() * gradient).sum().backward()
        for group in optimiser.param_groups:
            group["lr"] = lr
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)


def test_steps_far_below_the_precision_of_bfloat16_add_up():
    weight = nn.Parameter(torch.full((4,), 0.01, dtype=torch.bfloat16))
    plain = nn.Parameter(weight.detach().clone())
    start = weight.detach().float()
    # Near 0.01 bfloat16 numbers are 2^-14 = 6.1e-5 apart; 200 steps of 1e-6 make 2e-4.
    pushed(MasterAdamW([weight], lr=0.0, **OPTIONS), weight, 200)
    pushed(torch.optim.AdamW([plain], lr=0.0, **OPTIONS), plain, 200)
    torch.testing.assert_close(weight.detach().float(), start - 2e-4, atol=3.1e-5, rtol=0)
    assert torch.equal(plain.detach().float(), start)


def test_the_master_moves_as_a_float32_weight_does():
    rng = torch.Generator().manual_seed(0)
    start = torch.randn(6, generator=rng).bfloat16()
    weight, exact = nn.Parameter(start.clone()), nn.Parameter(start.float())
    ours = MasterAdamW([weight], lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)
    theirs = torch.optim.AdamW([exact], lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)
    # halves are exact in bfloat16, so both have the same gradient
    for optimiser, parameter in ((ours, weight), (theirs, exact)):
        pushed(optimiser, parameter, 30, lr=1e-5, gradient=0.5)
    assert torch.equal(ours.param_groups[0]["params"][0], exact)
    assert torch.equal(weight.detach(), exact.detach().bfloat16())


def test_gradients_of_several_passes_are_added_in_float32():
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimiser = MasterAdamW([weight], lr=0.0, **OPTIONS)
    for size in (256.0, *[1.0] * 8):  # in bfloat16 256 + 1 = 256
        (weight * size).sum().backward()
    (master,) = optimiser.param_groups[0]["params"]
    assert float(master.grad) == 264
    assert weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_weights_are_their_own_masters(dtype):
    weight = nn.Parameter(torch.ones(2, dtype=dtype))
    optimiser = MasterAdamW([weight], lr=0.0, **OPTIONS)
    assert optimiser.param_groups[0]["params"][0] is weight


def test_a_saved_state_goes_on_exactly():
    def fresh():
        weight = nn.Parameter(torch.full((3,), 0.3, dtype=torch.bfloat16))
        return weight, MasterAdamW([weight], lr=0.0, **OPTIONS)

    weight, optimiser = fresh()
    pushed(optimiser, weight, 7)
    file = io.BytesIO()
    torch.save(optimiser.state_dict(), file)
    file.seek(0)
    other, again = fresh()
    again.load_state_dict(torch.load(file, weights_only=True))
    for each, parameter in ((optimiser, weight), (again, other)):
        pushed(each, parameter, 5)
    assert torch.equal(optimiser.pairs[0][1], again.pairs[0][1])
    assert torch.equal(weight, other)


def test_weights_are_finite_even_where_their_sum_is_not():
    weights = [torch.ones(3), torch.tensor([3e38, 3e38]), torch.tensor([-3e38, -3e38])]
    assert shards.all_finite(weights)
    assert shards.all_finite([])
    for wrong in (torch.nan, torch.inf, -torch.inf):
        assert not shards.all_finite([*weights, torch.tensor([1.0, wrong])])
    assert not shards.all_finite([torch.tensor([torch.inf, -torch.inf])])
