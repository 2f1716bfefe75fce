"""Linear layers by oneDNN: torch's numbers within rounding; and when torch is used instead."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.support import linear as _linear
from strop.training.learner import models

ROWS, WIDE, OUT = 96, 128, 192  # more multiplications than LEAST


def tensors(*shapes, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng, requires_grad=True) for shape in shapes]


@pytest.fixture
def calls(monkeypatch):
    """How many products oneDNN makes."""
    made, product = [], _linear.product
    monkeypatch.setattr(_linear, "product", lambda *a: made.append(a[0].shape) or product(*a))
    return made


def close(found, wanted, tolerance=1e-5):
    scale = max(float(wanted.abs().max()), 1e-30)
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(ROWS,), (4, ROWS // 4)], ids=str)
def test_numbers_and_first_and_second_derivatives_are_torchs(bias, shape, calls):
    x, weight, b = tensors((*shape, WIDE), (OUT, WIDE), (OUT,))
    inputs = (x, weight, b) if bias else (x, weight)
    found = []
    for function in (_linear.linear, nn.functional.linear):
        y = function(*inputs)
        first = torch.autograd.grad((y**3).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
        found.append([y, *first, *second])
    for ours, theirs in zip(*found, strict=True):
        close(ours.detach(), theirs.detach())
    assert len(calls) >= 3  # forward, and the two gradients at least


def test_a_frozen_weight_costs_no_product(calls):
    x, weight = tensors((ROWS, WIDE), (OUT, WIDE))
    _linear.linear(x, weight.detach()).sum().backward()
    assert len(calls) == 2
    assert weight.grad is None


@pytest.mark.parametrize(
    "x", [torch.randn(2, WIDE), torch.randn(ROWS, WIDE).double()], ids=["small", "float64"]
)
def test_what_is_small_or_of_another_type_is_torchs_to_the_bit(x, calls):
    weight = torch.randn(OUT, WIDE, dtype=x.dtype)
    assert torch.equal(_linear.linear(x, weight), nn.functional.linear(x, weight))
    assert not calls


def test_what_maps_over_a_function_sees_torchs(calls):
    x, weight = torch.randn(3, ROWS, WIDE), torch.randn(OUT, WIDE)
    with _linear.as_torch_does():
        found = torch.vmap(lambda each: _linear.linear(each, weight))(x)
    close(found, nn.functional.linear(x, weight))
    assert not calls
    _linear.linear(x, weight)
    assert calls  # outside it is as before


@pytest.mark.parametrize("keep", [True, False])
def test_a_product_added_in_blocks(keep, calls, monkeypatch):
    monkeypatch.setattr(_linear, "BLOCK_BYTES", 4 * OUT * 40)
    x, weight, out = (t.detach() for t in tensors((ROWS, WIDE), (OUT, WIDE), (ROWS, OUT)))
    whole = torch.full((ROWS, 2 * OUT), torch.nan)
    place = whole[:, OUT:]  # rows do not follow one another
    if keep:
        place.copy_(out)
    _linear.add_product(place, x, weight, keep=keep)
    close(place, x @ weight.T + (out if keep else 0))
    assert whole[:, :OUT].isnan().all()
    assert [shape[0] for shape in calls] == [40, 40, 16]


def test_a_model_is_loaded_with_them_unless_told_otherwise(calls):
    ours, plain = (models.load("tiny", onednn=value).model for value in (True, False))
    ids = torch.arange(3, 19).repeat(40, 2)
    with torch.no_grad():
        close(ours(input_ids=ids).logits, plain(input_ids=ids).logits)
        assert calls
        calls.clear()
        plain(input_ids=ids)
        assert not calls
    assert {type(m) for m in plain.modules() if isinstance(m, nn.Linear)} == {nn.Linear}
    assert all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), plain.parameters(), strict=True)
    )


def test_copies_and_gradients_of_a_model_are_those_of_the_plain_one():
    plain = models.load("tiny", onednn=False).model
    ours = copy.deepcopy(models.load("tiny").model)
    ids = torch.arange(3, 19).repeat(64, 2)
    for model in (plain, ours):
        model(input_ids=ids).logits.logsumexp(-1).sum().backward()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        close(b.grad, a.grad, 1e-4)


def test_packed_weights_count_inside_alone_and_only_without_gradient(calls):
    model = models.load("tiny").model
    ids = torch.arange(3, 19).repeat(64, 2)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        _linear.pack(model)
        for weight in model.parameters():
            weight.mul_(0.5)  # not for packed weights
        outside = model(input_ids=ids).logits
        with _linear.with_packed():
            inside = model(input_ids=ids).logits
    with _linear.with_packed():
        learning = model(input_ids=ids).logits
    close(learning.detach(), outside)
    assert float((inside - outside).abs().max()) > 0.1  # layers of before, embeddings of now
    _linear.unpack(model)
    with torch.no_grad(), _linear.with_packed():
        close(model(input_ids=ids).logits, outside)
        for weight in model.parameters():
            weight.mul_(2)
        _linear.pack(model)
        with _linear.with_packed():
            close(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("hooked", [False, True])
def test_an_engine_draws_with_the_weights_that_it_was_told_of(calls, hooked):
    """By weights side by side, and by the model's modules, which hooks keep."""
    loaded = models.load("tiny")
    if hooked:
        loaded.model.model.norm.register_forward_hook(lambda *_: None)
    engine = LocalEngine(loaded.model, loaded.tokenizer, num_slots=96)
    requests = [Request((3 + n % 7, 5, 7), 6, seed=n, want=frozenset({"logp_model"}))
                for n in range(96)]  # fmt: skip

    def worst():
        """Of the log-probabilities that the engine gave, against a plain pass."""
        off = 0.0
        for found in asynchronous(engine).sample(requests):
            ids = [*found.request.ids, *(i for e in found.events for i in e.ids)]
            said = torch.tensor([x for e in found.events for x in e.logp_model])
            with torch.no_grad(), _linear.as_torch_does():
                logp = loaded.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            own = logp[torch.arange(2, len(ids) - 1), torch.tensor(ids[3:])]
            off = max(off, float((own - said).abs().max()))
        return off

    assert worst() < 1e-4
    assert any(shape[0] == 96 for shape in calls)
    assert all(m.packed is None for m in loaded.model.modules() if isinstance(m, _linear.Linear))
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.mul_(1.1)
    engine.load_weights(None, 1)
    assert worst() < 1e-4


def test_rows_that_differ_leave_no_memory_behind():
    """Products of 600 shapes, in a process of their own: what the last 400 add is one result's."""
    code = (
        "import torch\n"
        "from strop.support import linear\n"
        "def resident(): return 4096 * int(open('/proc/self/statm').read().split()[1]) / 2**20\n"
        "weight = torch.randn(256, 96)\n"
        "for rows in range(1000, 1600):\n"
        "    linear.linear(torch.randn(rows, 96), weight)\n"
        "    before = resident() if rows == 1200 else before if rows > 1200 else 0\n"
        "print(resident() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 120  # over 400 where oneDNN keeps a thousand shapes
