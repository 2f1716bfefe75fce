"""Linear layers by oneDNN: the numbers and gradients of torch's own, and where they are used."""

import pytest
import torch
from fakes.models import tiny
from torch import nn

from strop.training import linear, models
from strop.training.linear import OneDnnLinear, use_faster_products

HERE = hasattr(torch.ops.mkldnn, "_linear_pointwise")


@pytest.fixture
def faster(monkeypatch):
    """A processor on which oneDNN is faster, whatever this one is; the sizes it has multiplied."""
    assert HERE, "torch is built with oneDNN for x86"
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    sizes = []
    product = linear.product

    def spied(input, weight, bias=None):
        sizes.append((*input.shape, len(weight)))
        return product(input, weight, bias)

    monkeypatch.setattr(linear, "product", spied)
    return sizes


def pair(bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    own = nn.Linear(96, 160, bias=bias, dtype=dtype)
    other = nn.Sequential(nn.Linear(96, 160, bias=bias, dtype=dtype))
    other[0].load_state_dict(own.state_dict())
    use_faster_products(other)
    return own, other[0]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(200,), (4, 47), (1, 1000)])
def test_values_and_gradients_are_those_of_torch(faster, bias, shape):
    own, other = pair(bias)
    assert type(other) is OneDnnLinear
    with torch.no_grad():
        input = torch.randn(*shape, 96)
        torch.testing.assert_close(other(input), own(input), atol=1e-5, rtol=1e-5)
    assert len(faster) == 1
    assert faster[0][0] % 16 == 0
    found = []
    for layer in (own, other):
        x = input.clone().requires_grad_()
        layer(x).sin().sum().backward()
        found.append([x.grad, *(p.grad for p in layer.parameters())])
    assert len(faster) == 4
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-5)


def test_gradients_have_gradients(faster):
    own, other = pair()
    found = []
    for layer in (own, other):
        x = torch.linspace(-1, 1, 200 * 96).view(200, 96).requires_grad_()
        (first,) = torch.autograd.grad(layer(x).pow(2).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), [x, layer.weight]))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
    assert len(faster) > 5


def test_frozen_weights_get_no_gradient(faster):
    _, layer = pair()
    layer.requires_grad_(False)
    x = torch.randn(200, 96, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None
    assert len(faster) == 2


def test_what_it_would_not_do_faster_is_left_to_torch(faster):
    own, other = pair()
    few = torch.randn(8, 96)
    assert torch.equal(other(few), own(few))
    double_own, double = pair(dtype=torch.float64)
    many = torch.randn(500, 96, dtype=torch.float64)
    assert torch.equal(double(many), double_own(many))
    many = many.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(other(many), own(many))
    rows = torch.func.vmap(lambda x: other(x))(many.view(2, 250, 96))
    torch.testing.assert_close(rows.view(500, -1), own(many), atol=1e-5, rtol=1e-5)
    assert not faster


def test_a_model_keeps_its_names_and_its_numbers(faster, monkeypatch):
    plain = tiny("qwen3", dtype=torch.float32)
    changed = tiny("qwen3", dtype=torch.float32)
    use_faster_products(changed)
    assert changed.state_dict().keys() == plain.state_dict().keys()
    ids = torch.arange(20 * 40).view(20, 40) % 24
    monkeypatch.setattr(linear, "LEAST", 1)
    torch.testing.assert_close(changed(ids).logits, plain(ids).logits, atol=1e-4, rtol=1e-4)
    assert len(faster) == 15  # seven in each of two layers, and the head


def test_a_run_may_do_without(faster):
    assert type(models.load("tiny", onednn=True).model.lm_head) is OneDnnLinear
    assert type(models.load("tiny").model.lm_head) is nn.Linear


def test_only_some_processors_are_faster(monkeypatch, tmp_path):
    found = {}
    for name in ("AuthenticAMD", "GenuineIntel"):
        path = tmp_path / name
        path.write_text(f"processor : 0\nvendor_id : {name}\n")
        monkeypatch.setattr(linear, "CPUINFO", path)
        for capability in ("AVX512", "AVX2"):
            monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
            linear.onednn_is_faster.cache_clear()
            found[name, capability] = linear.onednn_is_faster()
    linear.onednn_is_faster.cache_clear()
    assert [key for key, faster in found.items() if faster] == [("AuthenticAMD", "AVX512")]
