"""The local engine samples each request with the adapter that it names, beside those of others."""

import pytest
import torch
from fakes.engine import sample
from fakes.models import tiny

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.support import adapted
from strop.support.adapted import BASE
from strop.support.errors import UserError
from strop.training.learner import adapters
from strop.training.learner.adapters import Lora

NAMES = ("first", "second")
WHO = (*NAMES, BASE)


def model_of(names=NAMES):
    """A model with adapters that differ, and are far from doing nothing."""
    model = tiny("qwen3")
    adapters.add(model, Lora(2), 0, names)
    rng = torch.Generator().manual_seed(1)
    for name in names:
        for weight in adapted.weights_of(model, name):
            with torch.no_grad():
                weight.copy_(torch.randn(weight.shape, generator=rng) / 2)
    return model


MODEL = model_of()


def requests(**fields):
    """Of every adapter some with one prompt, others with their own, all drawn with own seeds."""
    return [
        Request(ids, 12, seed=10 * place + number, weights=who, want=frozenset({"logp_model"}),
                **fields)
        for place, who in enumerate(WHO)
        for number, ids in enumerate([(3, 4, 5), (3, 4, 5), (6, 7 + place)])
    ]  # fmt: skip


def told(answer):
    return answer.ids, [value for event in answer.events for value in event.logp_model]


@pytest.mark.parametrize("options", [{}, {"speculate": 3}, {"num_slots": 2}])
def test_beside_others_a_request_draws_what_it_draws_alone(options):
    asked = requests()
    together = sample(LocalEngine(MODEL, **options), asked)
    differ = set()
    for request, answer in zip(asked, together, strict=True):
        (alone,) = sample(LocalEngine(MODEL), [request])
        ids, logp = told(answer)
        assert ids == told(alone)[0]
        assert logp == pytest.approx(told(alone)[1], abs=1e-5)
        with torch.no_grad(), adapted.routes_of(MODEL).under(request.weights):
            sequence = torch.tensor([answer.sequence])
            plain = MODEL(input_ids=sequence).logits[0].double().log_softmax(-1)
        first = len(request.ids) - 1
        wanted = [float(plain[first + n, id]) for n, id in enumerate(ids)]
        assert logp == pytest.approx(wanted, abs=1e-4)
        differ.add((request.ids, request.seed % 10, ids))
    assert len({ids for *_, ids in differ}) > 6  # the adapters do draw other answers


def test_what_goes_on_from_a_held_cache_has_the_cache_of_its_own_adapter(find_caches):
    found = find_caches(True)
    book = asynchronous(LocalEngine(MODEL))
    first = [Request((3, 4, 5), 6, seed=1, weights=who, keep=True) for who in NAMES]

    async def go():
        answers = await book.generate_all(first)
        # each adapter goes on behind its own answer, and behind the other one's
        asked = [a.more(6, weights=who, want=frozenset({"logp_model"}))
                 for a in answers for who in NAMES]  # fmt: skip
        return asked, await book.generate_all(asked)

    from strop.engines.asynchronous import run
    from strop.engines.base import Account

    asked, answers = run(book, go(), Account())
    for request, answer in zip(asked, answers, strict=True):
        (alone,) = sample(LocalEngine(MODEL), [request])
        assert answer.ids == alone.ids
        assert told(answer)[1] == pytest.approx(told(alone)[1], abs=1e-5)
    held = [source for source in found if source is not None]
    assert len(held) == len(asked)
    own, others = (9, 9), (3, 3)  # tokens of the cache: all of one's own answer, else the prompt
    sizes = [size for _, size in held]
    assert sizes == [own[0], others[0], others[1], own[1]]


def test_an_adapter_that_is_not_there_is_refused_and_so_are_several_where_there_is_one():
    with pytest.raises(UserError, match="no adapter 'third'; it has first, second"):
        LocalEngine(MODEL).start(0, Request((3,), 2, weights="third"))
    with pytest.raises(UserError, match="needs an engine with 'adapters'"):
        sample(LocalEngine(tiny("qwen3")), [Request((3,), 2, weights="first")])


def test_one_adapter_alone_has_the_numbers_of_one_that_peft_runs():
    ours, peft = model_of(("first",)), tiny("qwen3")
    adapters.add(peft, Lora(2), 0)
    for weight, own in zip(
        adapted.weights_of(peft, "default"), adapted.weights_of(ours, "first"), strict=True
    ):
        with torch.no_grad():
            weight.copy_(own)
    ids = torch.arange(3, 12)[None]
    assert torch.equal(ours(ids).logits, peft(ids).logits)
    with adapted.routes_of(ours).under(BASE):
        assert torch.equal(ours(ids).logits, tiny("qwen3")(ids).logits)
