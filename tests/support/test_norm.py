"""Norms in one operator: the same bits, and nothing of it where there is a gradient."""

import pytest
import torch
from fakes.models import FAMILIES, tiny

from strop.support import linear

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_the_same_bit_for_bit(family):
    model = tiny(family, dtype=torch.float32)
    with torch.no_grad():
        plain = model(IDS).logits
        linear.fuse_norms(model)
        fused = [module for module in model.modules() if linear._is_fused(module)]
        assert len(fused) == {"qwen3": 9, "llama": 5, "mistral": 5}.get(family, 0)
        assert torch.equal(model(IDS).logits, plain)
    linear.undo_norms(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_gradients_are_those_of_the_plain_layers():
    grads = []
    for fuse in (False, True):
        model = tiny("qwen3", dtype=torch.float32)
        if fuse:
            linear.fuse_norms(model)
        model(IDS).logits.square().sum().backward()
        grads.append([each.grad for each in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_a_norm_that_differs_is_left_alone():
    model = tiny("llama", dtype=torch.float32)
    kind = type(model.model.norm)

    class OtherRMSNorm(kind):
        def forward(self, hidden):
            return super().forward(hidden) * (1 + 1e-6)

    model.model.norm.__class__ = OtherRMSNorm
    for other in (model, tiny("llama", dtype=torch.bfloat16)):
        linear.fuse_norms(other)
        assert not linear._is_fused(other.model.norm)
    assert linear._is_fused(model.model.layers[0].input_layernorm)
