"""The local engine's reports against a plain forward pass of the model on the whole sequence."""

import pytest
import torch
from fakes.engine import joined, sample
from fakes.models import FAMILIES, VOCAB, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3ForCausalLM

from strop.engines.base import Answer, Request
from strop.engines.local.engine import LocalEngine
from strop.engines.rules import TopK

WANT = frozenset({"logp_model", "entropy"})


def forward(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double()


def requests(number: int, **fields) -> list[Request]:
    generator = torch.Generator().manual_seed(number)
    found = []
    for i in range(number):
        length = 1 + i % 5 * 3
        ids = tuple(torch.randint(0, VOCAB, (length,), generator=generator).tolist())
        settings = {"seed": i, "want": WANT, "max_tokens": 6 + i % 3 * 4, **fields}
        found.append(Request(ids, **settings))
    return found


def check_against_forward(model, finished: Answer, atol: float) -> None:
    request, new = finished.request, joined(finished, "ids")
    tokens = [*request.ids, *new]
    logits = forward(model, tokens)[len(request.ids) - 1 : -1] / (request.temperature or 1.0)
    logq = logits.log_softmax(-1)
    chosen = logq.gather(-1, torch.tensor(new)[:, None])[:, 0]
    entropy = -(logq.exp() * logq).sum(-1)
    torch.testing.assert_close(
        torch.tensor(joined(finished, "logp_model"), dtype=torch.float64), chosen, atol=atol, rtol=0
    )
    torch.testing.assert_close(
        torch.tensor(joined(finished, "entropy"), dtype=torch.float64), entropy, atol=atol, rtol=0
    )
    if not request.rules and request.temperature:
        assert joined(finished, "logp") == pytest.approx(chosen.tolist(), abs=atol)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logp_agrees_with_the_trainer(family, attention):
    model = tiny(family, attention, torch.float32)
    engine = LocalEngine(model, num_slots=4)  # fewer slots than rows: rows are replaced
    for temperature in (1.0, 0.6):
        for finished in sample(engine, requests(9, temperature=temperature)):
            assert len(joined(finished, "ids")) == finished.request.max_tokens
            check_against_forward(model, finished, 1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_argmax(family):
    model = tiny(family)
    for finished in sample(LocalEngine(model, num_slots=3), requests(5, temperature=0.0)):
        new = joined(finished, "ids")
        logits = forward(model, [*finished.request.ids, *new])[len(finished.request.ids) - 1 : -1]
        assert logits.argmax(-1).tolist() == new
        assert set(joined(finished, "logp")) == {0.0}
        check_against_forward(model, finished, 1e-9)


def test_rules_and_top_agree_with_the_forward_pass():
    model = tiny("gemma3")
    wanted = requests(6, rules=(TopK(3),), temperature=0.8, num_top=4)
    for finished in sample(LocalEngine(model, num_slots=6), wanted):
        new, length = joined(finished, "ids"), len(finished.request.ids)
        logits = forward(model, [*finished.request.ids, *new])[length - 1 : -1]
        top = logits.log_softmax(-1).topk(4, -1)
        for i, reported in enumerate(joined(finished, "top")):
            assert list(reported) == top.indices[i].tolist()
            assert list(reported.values()) == pytest.approx(top.values[i].tolist(), abs=1e-9)
        three = (logits / 0.8).topk(3, -1)
        position = (three.indices == torch.tensor(new)[:, None]).double().argmax(-1)
        expected = three.values.log_softmax(-1).gather(-1, position[:, None])[:, 0]
        assert joined(finished, "logp") == pytest.approx(expected.tolist(), abs=1e-9)
        check_against_forward(model, finished, 1e-9)


MODELS = {family: tiny(family) for family in ("qwen3", "gemma3", "gpt2")}


@settings(max_examples=8)
@given(st.sampled_from(sorted(MODELS)), st.integers(1, 12), st.integers(0, 99), st.randoms())
def test_slots_order_and_sharing_change_nothing(family, num_slots, salt, random):
    prompts = [(3, 4, 5), (3, 4, 5, 6), (9,), tuple(range(11))]
    wanted = [
        Request(prompts[i % 4], 3 + i % 5, seed=salt * 100 + i, stop_ids=(1, 2)) for i in range(10)
    ]
    alone = LocalEngine(MODELS[family], num_slots=1)
    expected = {r: sample(alone, [r])[0].events[-1] for r in wanted}
    random.shuffle(wanted)
    engine = LocalEngine(MODELS[family], num_slots=num_slots, max_prefill_tokens=7)
    for finished in sample(engine, wanted):
        event, other = finished.events[-1], expected[finished.request]
        assert (event.ids, event.ended) == (other.ids, other.ended)
        assert event.logp == pytest.approx(other.logp, abs=1e-9)


def test_bfloat16_model():
    model = tiny("qwen3", dtype=torch.bfloat16)
    for finished in sample(LocalEngine(model, num_slots=2), requests(4)):
        assert len(joined(finished, "ids")) == finished.request.max_tokens
        check_against_forward(model, finished, 0.15)


class Keeping(Qwen3ForCausalLM):
    """Keeps what it computes, as models of one's own may, for the passes with gradient."""

    def forward(self, **given):
        found = super().forward(**given)
        self.kept = found.logits.detach()
        return found


def test_what_a_model_keeps_of_sampling_may_have_part_in_a_gradient():
    model = tiny("qwen3")
    plain = sample(LocalEngine(model, num_slots=2), requests(2))
    model.__class__ = Keeping
    found = sample(LocalEngine(model, num_slots=2), requests(2))
    assert [joined(each, "ids") for each in found] == [joined(each, "ids") for each in plain]
    factor = torch.ones_like(model.kept, requires_grad=True)
    (factor * model.kept).sum().backward()
    assert torch.equal(factor.grad, model.kept)


def test_dropout_is_off_while_sampling_and_on_again_afterwards():
    model = tiny("gpt2").train()  # GPT-2 drops out 10% by default
    found = sample(LocalEngine(model, num_slots=4), requests(4))
    assert model.training
    model.eval()
    for finished in found:
        check_against_forward(model, finished, 1e-9)
