"""The head's GPU kernels against the head in float32; Triton's interpreter runs the kernels."""

import importlib.util
import os

import pytest
import torch
from test_head import SETTINGS, close, make, push, sliced

from strop.head import chunk, fused
from strop.head.head import Head

NAMES = ("logp_T", "entropy_T")
ASKED = [("logp_T",), ("entropy_T",), NAMES]
interpreted = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)


def add_product(out_NO, x_NI, y_IO, factor, keep):
    """What a GPU does: sums in float32, rounded to what they are written to."""
    before_NO = out_NO.float() if keep else 0
    out_NO.copy_(before_NO + factor * (x_NI.float() @ y_IO.float()))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(
        chunk,
        "multiplies_bfloat16",
        lambda *tensors: all(t.dtype == torch.bfloat16 for t in tensors),
    )
    monkeypatch.setattr(fused, "add_product", add_product)


def both(settings, names, dtype=torch.bfloat16):
    """Of states and a weight of this type, and of float32 copies of them; as on a GPU, and not."""
    made, hidden_TD, id_T, adjoints = make(7, 37, 8, **settings)
    bias_V = None if made.bias is None else made.bias.detach().to(dtype).requires_grad_()
    weight_VD, states_TD = made.weight.detach().to(dtype), hidden_TD.detach().to(dtype)
    more = {"temperature": made.temperature, "softcap": made.softcap, "scale": made.scale}
    low = Head(weight_VD.requires_grad_(), bias_V, chunk_tokens=3, **more)
    high = Head(weight_VD.detach().float().requires_grad_(), bias_V, chunk_tokens=3, **more)
    given = sliced({name: adjoints[name].float() for name in names})
    found = push(low, states_TD, id_T, given, names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "measured_by_kernels", lambda *_: False)
        return found, push(high, states_TD.float(), id_T, given, names)


def agree(found, wanted, names, rounded):
    """rounded: to what share of the largest number gradients may differ."""
    for name in names:
        close(found.columns[name], wanted.columns[name], 1e-5)
    pairs = zip(found[2:], wanted[2:], strict=True)
    for left, right in ((a, b) for a, b in pairs if b is not None):
        assert (left.float() - right).abs().max() <= rounded * right.abs().max()


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_products_of_bfloat16_round_gradients_alone(as_on_a_gpu, settings):
    found, wanted = both(dict(settings), NAMES)
    assert found.grad_hidden_TD.dtype == torch.bfloat16
    assert found.grad_weight_VD.dtype == torch.float32
    agree(found, wanted, NAMES, rounded=1e-2)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", ASKED)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_kernels_measure_and_push_what_passes_over_the_logits_do(
    as_on_a_gpu, monkeypatch, settings, names, dtype
):
    monkeypatch.setattr(
        chunk, "measured_by_kernels", lambda names, *_: chunk.OF_KERNELS.issuperset(names)
    )
    monkeypatch.setattr(fused, "BLOCK", 16)  # of 37 logits: two whole ones and the rest
    found, wanted = both(dict(settings), names, dtype)
    agree(found, wanted, names, rounded=1e-2 if dtype == torch.bfloat16 else 1e-5)
