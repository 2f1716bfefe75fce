"""Norms in one operator: the same bits, and not used where a gradient is needed."""

import copy

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


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(linear, "_on_gpu", lambda weight: True)


def changed(model):
    return [module for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_on_a_gpu_logits_and_gradients_are_those_of_the_layers_within_rounding(
    as_on_a_gpu, family, dtype
):
    found = []
    for use in (False, True):
        model = tiny(family, dtype=dtype)
        if use:
            linear.use_norms(model)
            assert len(changed(model)) == {"qwen3": 9, "llama": 5, "mistral": 5}.get(family, 0)
        logits = model(IDS).logits
        logits.square().sum().backward()
        found.append([logits.detach(), *(each.grad for each in model.parameters())])
    for plain, fused in zip(*found, strict=True):
        assert (plain - fused).norm() <= 8 * torch.finfo(dtype).eps * plain.norm()


def test_a_copy_has_norms_of_its_own(as_on_a_gpu):
    model = tiny("qwen3", dtype=torch.float32)
    linear.use_norms(model)
    other = copy.deepcopy(model)
    plain = model(IDS).logits
    with torch.no_grad():
        other.model.norm.weight.mul_(2)
    assert torch.equal(model(IDS).logits, plain)
    assert not torch.equal(other(IDS).logits, plain)


def test_on_a_gpu_too_a_norm_that_differs_is_left_alone(as_on_a_gpu):
    model = tiny("llama", dtype=torch.bfloat16)
    kind = type(model.model.norm)

    class OtherRMSNorm(kind):
        def forward(self, hidden):
            return super().forward(hidden) * 1.1

    model.model.norm.__class__ = OtherRMSNorm
    linear.use_norms(model)
    assert len(changed(model)) == 4


def test_on_a_cpu_layers_keep_their_own():
    model = tiny("qwen3", dtype=torch.float32)
    linear.use_norms(model)
    assert not changed(model)
