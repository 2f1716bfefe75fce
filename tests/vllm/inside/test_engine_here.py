"""vLLM in this process samples the same as the local engine: tokens, numbers, ends."""

import importlib.metadata
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fakes.engine import Driven, joined, sample
from packaging.requirements import Requirement

from strop.engines.base import CAPABILITIES, EXPERTS, STATISTICS, Request
from strop.engines.local.engine import LocalEngine
from strop.engines.open import read
from strop.engines.rules import BanTokens, MinP, TopK, TopP
from strop.parts.rollout.sample_at_entropy_temperature import WarmByEntropy
from strop.support.errors import UserError
from strop.training.learner import models

ATOL = 1e-4  # nats
ROOT = Path(__file__).parents[3]
ARGS = "--enforce-eager --kv-cache-memory-bytes 256M"


@dataclass(frozen=True)
class Flatten:
    """A user's own rule."""

    share: float

    def __call__(self, logits):
        return logits * self.share


RULES = [
    (), (TopK(3),), (TopP(0.7), MinP(0.1)), (MinP(0.2), TopK(4)), (BanTokens((3, 5, 7)),),
    (WarmByEntropy(0.3, -1.0, 1.0, 2.0),), (Flatten(0.5), TopP(0.9)),
]  # fmt: skip


@pytest.fixture(scope="module")
def loaded():
    return models.load("tiny")


@pytest.fixture(scope="module")
def engine(loaded):
    settings = read({"kind": "vllm_here", "args": ARGS})
    found = settings.open(
        loaded.model, loaded.tokenizer, num_slots=8, context_length=loaded.context
    )
    yield found
    found.close()
    assert not found.folder.path.exists()


@pytest.fixture
def local(loaded):
    return LocalEngine(loaded.model, loaded.tokenizer, num_slots=8, context_length=loaded.context)


def check_alike(found, expected):
    """Equal tokens and ends; log-probabilities and statistics to the last digits."""
    for ours, theirs in zip(found, expected, strict=True):
        assert joined(ours, "ids") == joined(theirs, "ids")
        assert joined(ours, "kept") == joined(theirs, "kept")
        assert ours.events[-1].ended == theirs.events[-1].ended
        for name in ("logp", "logp_model", "entropy"):
            assert joined(ours, name) == pytest.approx(joined(theirs, name), abs=ATOL)
        for mine, other in zip(joined(ours, "top"), joined(theirs, "top"), strict=True):
            assert sorted(mine.values()) == pytest.approx(sorted(other.values()), abs=ATOL)


def requests(number=4, **fields):
    fields = {"max_tokens": 16, "want": STATISTICS - {EXPERTS}, "num_top": 3, **fields}
    return [Request((3 + n % 20, 5, 7), seed=n, **fields) for n in range(number)]


def test_what_strop_needs_is_met_by_the_versions_that_vllm_came_with():
    """So that both can be installed in one environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in project["dependencies"]:
        needed = Requirement(text)
        assert needed.specifier.contains(importlib.metadata.version(needed.name), True), text


def test_options_that_vllm_has_not_are_refused(loaded):
    settings = read({"kind": "vllm_here", "args": "--no-such-option 3"})
    with pytest.raises(UserError, match=re.escape("vLLM does not take '--no-such-option 3'")):
        settings.open(loaded.model, loaded.tokenizer, num_slots=1, context_length=9)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_every_rule_draws_what_the_local_engine_draws(engine, local, temperature):
    assert engine.capabilities == CAPABILITIES
    asked = [each for rules in RULES for each in requests(rules=rules, temperature=temperature)]
    check_alike(sample(engine, asked), sample(local, asked))


def test_ends_are_those_of_the_local_engine(engine, local, loaded):
    text = loaded.tokenizer.decode(joined(sample(local, requests(1, max_tokens=6))[0], "ids"))
    asked = [
        *requests(stop_ids=tuple(loaded.stop_ids), max_tokens=40),
        *requests(stop_strings=(text[2:4],)),
    ]
    expected = sample(local, asked)
    assert {each.events[-1].ended for each in expected} >= {"stop"}
    check_alike(sample(engine, asked), expected)


def test_what_cannot_be_drawn_fails_alone(engine, local, loaded):
    number = loaded.model.get_input_embeddings().num_embeddings
    asked = requests(2) + requests(1, rules=(BanTokens(tuple(range(number))),))
    asked += requests(1, rules=(BanTokens((number,)),))
    found, expected = sample(engine, asked), sample(local, asked)
    check_alike(found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.events[-1].why == theirs.events[-1].why
    assert [each.failed for each in found] == [False, False, True, True]
    with pytest.raises(UserError, match="token id outside"):
        engine.start(0, Request((number,), 1))


def drawn(engine):
    """An answer, what goes on from it, a branch of it, and one that is cancelled."""
    driven, fields = Driven(engine), {"want": STATISTICS - {EXPERTS}, "num_top": 2}
    id = driven.submit(Request((3, 5), 5, 0.8, seed=4, keep=True, **fields))
    driven.finish()
    first = driven.answers[id]
    driven.submit(first.first(2).more(9, given=(6,), seed=9), (id, 4))
    driven.submit(first.more(7), (id, 7))
    driven.finish()
    other = driven.submit(Request((3, 5), 40, 0.8, seed=5, **fields))
    for _ in range(3):
        driven.step()
    driven.cancel(other)
    driven.cancel(id)
    return [*driven.answers.values()]


def test_what_goes_on_and_what_is_cancelled(engine, local):
    found, expected = drawn(engine), drawn(local)
    assert len(joined(found[3], "ids")) == 3
    check_alike(found, expected)
    assert not engine.running


def move(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=generator))


def under_an_update(engine, model, version):
    """Answers of which some are under way while the weights change."""
    driven = Driven(engine)
    for each in requests(12, max_tokens=30):
        driven.submit(each)
    for _ in range(4):
        driven.step()
    move(model, version)
    engine.load_weights(None, version)
    driven.finish()
    return [*driven.answers.values()]


def test_new_weights_are_drawn_with_from_the_next_token_on(engine, local, loaded):
    start = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    engine.load_weights(None, 1)
    found = under_an_update(engine, loaded.model, 2)
    loaded.model.load_state_dict(start)
    local.load_weights(None, 1)
    expected = under_an_update(local, loaded.model, 2)
    check_alike(found, expected)
    versions = [[(e.version, len(e.ids)) for e in each.events if e.ids] for each in found]
    assert versions == [
        [(e.version, len(e.ids)) for e in each.events if e.ids] for each in expected
    ]
    assert [(1, 4), (2, 26)] in versions
    check_alike(sample(engine, requests()), sample(local, requests()))


def test_an_update_that_is_broken_off_leaves_nothing_to_sample_with(engine, loaded, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("half of the weights are loaded")

    with monkeypatch.context() as patch:
        patch.setattr(engine.vllm, "collective_rpc", fail)
        with pytest.raises(RuntimeError, match="half of"):
            engine.load_weights(None, 7)
    with pytest.raises(UserError, match="an update was interrupted"):
        sample(engine, requests(1))
    assert engine.version != 7
    engine.load_weights(None, 8)
    assert all(math.isfinite(value) for value in joined(sample(engine, requests(1))[0], "logp"))


def test_there_is_one_at_a_time(engine, loaded):
    with pytest.raises(UserError, match="this process already has a vLLM"):
        read({"kind": "vllm_here"}).open(
            loaded.model, loaded.tokenizer, num_slots=1, context_length=9
        )
