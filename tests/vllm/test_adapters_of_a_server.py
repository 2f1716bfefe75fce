"""A real vLLM server receives adapters as adapters: each version under a name, with its numbers."""

import copy

import pytest
import torch
from fakes.engine import Driven, sample
from servers import served
from test_real_vllm import check_events, requests

from strop.engines import weights_folder
from strop.training.learner import adapters, models
from strop.training.learner.adapters import Lora


def move(model, seed):
    """Other adapters, by much: what they add has to show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))


@pytest.fixture(scope="module")
def adapted():
    return models.load("tiny", lora=Lora(2))


@pytest.fixture(scope="module")
def engine(adapted):
    yield from served(adapted)


def test_each_version_is_an_adapter_with_its_own_numbers(engine, adapted, monkeypatch):
    """And nothing but adapters is written; requests under way go on under the new one."""
    assert engine.takes_adapters
    monkeypatch.setattr(weights_folder, "write", None)
    held = {engine.version: copy.deepcopy(adapted.model)}
    check_events(sample(engine, requests()), held)
    asked = requests(1, max_tokens=2) + requests(12, max_tokens=110, temperature=1.3)
    driven = Driven(engine)
    for request in asked:
        driven.submit(request)
    driven.step()
    for step in (1, 2):
        move(adapted.model, step)
        engine.load_weights(None, engine.version + 1)
        held[engine.version] = copy.deepcopy(adapted.model)
        run = engine.folder.path.name.rpartition("-")[2]
        assert engine.names == {"default": f"default-{run}-{step + 1}"}
        assert [path.name for path in engine.folder.path.glob("default*")] == [
            *engine.names.values()
        ]
    while driven.open:
        driven.step()
    finished = [*driven.answers.values()]
    assert {event.version for each in finished for event in each.events} >= {0, 2}
    check_events(finished, held)
    check_events(sample(engine, requests() + requests(temperature=0.7)), held)
    merged = adapters.merge(copy.deepcopy(adapted.adapter))
    check_events(sample(engine, requests(2)), {engine.version: merged})
    listed = engine.client.call("/v1/models")["data"]
    assert [each["id"] for each in listed if each.get("parent")] == [*engine.names.values()]
