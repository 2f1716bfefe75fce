"""vLLM in this process samples each request with its adapter, and new weights are new adapters."""

import pytest
import torch
from fakes.engine import sample

from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.engines.open import read
from strop.support import adapted
from strop.support.adapted import BASE
from strop.support.errors import UserError
from strop.training.learner import adapters, models
from strop.training.learner.adapters import Lora

ATOL = 1e-4  # nats
ARGS = "--enforce-eager --kv-cache-memory-bytes 256M"
NAMES = ("first", "second")


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny", lora=Lora(4), names=NAMES)


@pytest.fixture(scope="module")
def engine(loaded):
    settings = read({"kind": "vllm_here", "args": ARGS})
    found = settings.open(loaded.model, loaded.tokenizer, num_slots=8, context_length=64)
    yield found
    found.close()
    assert not found.folder.path.exists()


def move(loaded, seed):
    rng = torch.Generator().manual_seed(seed)
    for name in loaded.names:
        for weight in adapted.weights_of(loaded.model, name):
            with torch.no_grad():
                weight.add_(torch.randn(weight.shape, generator=rng) / 8)


def agrees(engine, loaded, names):
    prompts = [tuple(loaded.tokenizer(each)["input_ids"]) for each in ("1,9=", "(1,9)=")]
    asked = [
        Request(ids, 5, seed=10 * place + number, weights=name, want=frozenset({"logp_model"}))
        for place, ids in enumerate(prompts)
        for number, name in enumerate(names)
    ]
    here = LocalEngine(loaded.model, loaded.tokenizer)
    for ours, theirs in zip(sample(engine, asked), sample(here, asked), strict=True):
        assert ours.ids == theirs.ids
        told = [[n for event in each.events for n in event.logp_model] for each in (ours, theirs)]
        assert told[0] == pytest.approx(told[1], abs=ATOL)
    return {answer.ids for answer in sample(engine, asked)}


def test_adapters_and_base_are_drawn_side_by_side_with_their_newest_weights(engine, loaded):
    assert "adapters" in engine.capabilities
    move(loaded, 1)
    engine.load_weights(None, 1)
    before = agrees(engine, loaded, (*NAMES, BASE))
    adapters.copy_frozen(loaded.adapter, "first", "first@1")
    move(loaded, 2)
    engine.load_weights(None, 2)
    after = agrees(engine, loaded, (*NAMES, BASE, "first@1"))
    assert before != after
    # one folder an adapter of now, and none of those of before
    kept = {path.name.partition("-")[0] for path in engine.folder.path.iterdir()}
    assert kept == {BASE, *NAMES, "first@1"}
    assert len(list(engine.folder.path.iterdir())) == 4
    adapters.remove(loaded.adapter, "first@1")
    engine.load_weights(None, 3)
    assert {path.name.partition("-")[0] for path in engine.folder.path.iterdir()} == {BASE, *NAMES}
    with pytest.raises(UserError, match="no adapter 'first@1'"):
        sample(engine, [Request((3,), 2, weights="first@1")])
