"""The vLLM engine against a local engine behind a server that accepts weights as vLLM does."""

import copy
import dataclasses
import importlib.util
import json
import math
import queue
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from fakes.completions_server import Letters, complete, serve, worker
from fakes.engine import Driven, joined, sample
from fakes.models import VOCAB, tiny

from strop.engines import completions, weights_folder
from strop.engines.base import ADAPTERS, Request
from strop.engines.local.engine import LocalEngine
from strop.engines.open import read
from strop.engines.rules import BanTokens
from strop.engines.vllm import server_engine as vllm
from strop.engines.vllm.settings import adapter_options
from strop.support.errors import UserError
from strop.support.http import Retries
from strop.training.learner import adapters
from strop.training.learner.adapters import Lora
from strop.training.settings import config

WANT = frozenset({"logp_model"})
GREEDY = [Request((3, 4, first), 6, 0.0, want=WANT) for first in range(4)]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(completions, "RETRIES", Retries(3, 0.01))
    monkeypatch.setattr(vllm, "ANSWER_SECONDS", 0.2)


@pytest.fixture
def model():
    return tiny("qwen3", dtype=torch.float32)


def local(model):
    return LocalEngine(model, Letters(VOCAB), num_slots=8, context_length=64)


@pytest.fixture
def served():
    """A server with weights of its own, other ones."""
    with serve(local(tiny("qwen3", dtype=torch.float32, seed=9)), VOCAB, told="drawn") as found:
        found.worker = worker
        yield found


@contextmanager
def opened(served, model, tmp_path, **settings):
    (tmp_path / "shared").mkdir(exist_ok=True)
    given = {"kind": "vllm", "url": served.url, "folder": str(tmp_path / "shared"), **settings}
    engine = read(given).open(model, Letters(VOCAB), num_slots=8, context_length=64)
    try:
        yield engine
    finally:
        engine.close()


def move(model, by=0.05):
    with torch.no_grad():
        for place, p in enumerate(model.parameters()):
            p.add_(by * torch.randn(p.shape, generator=torch.Generator().manual_seed(place)))


def check_agreement(engine, model):
    """Greedy answers and their log-probabilities are those of the model, drawn by its version."""
    for ours, theirs in zip(sample(engine, GREEDY), sample(local(model), GREEDY), strict=True):
        assert joined(ours, "ids") == joined(theirs, "ids")
        assert joined(ours, "logp_model") == pytest.approx(joined(theirs, "logp_model"), abs=1e-5)
        assert {event.version for event in ours.events} == {engine.version}


def test_weights_arrive_at_the_start_and_at_every_update(served, model, tmp_path):
    with opened(served, model, tmp_path) as engine:
        assert engine.capabilities == {"rules", "logp_model", "weights"}
        order = ["/pause", "strop_load_weights", "/resume"]
        assert served.orders == ["/resume", "strop_weights", *order]
        check_agreement(engine, model)
        before = sample(engine, GREEDY)
        for version in (1, 7):
            move(model)
            engine.load_weights(None, version)
            assert (engine.version, served.engine.version) == (version, version)
            check_agreement(engine, model)
        assert served.orders == ["/resume", "strop_weights", *order * 3]
        assert before != sample(engine, GREEDY)
        folder = engine.folder.path
        assert [path.name for path in folder.iterdir()] == []
    assert not folder.exists()


def test_adapters_are_added_into_the_weights(served, model, tmp_path):
    adapter = adapters.add(model, Lora(2), seed=1)
    move(model, by=0.3)
    whole = adapters.merge(copy.deepcopy(adapter))
    found = weights_folder.merged(model)
    assert set(found) == set(whole.state_dict())
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-6)
    with opened(served, model, tmp_path) as engine:
        check_agreement(engine, whole)
        check_agreement(engine, model)


def test_each_version_of_an_adapter_goes_there_under_its_name(served, model, tmp_path):
    """The base once, before; then the adapter alone. A request names the version that draws it."""
    served.adapters = {}
    served.worker = lambda *given, **more: (
        worker(*given, **more) | ({"rank": 8} if given[1] == "strop_weights" else {})
    )
    adapters.add(model, Lora(2), seed=1)
    with opened(served, model, tmp_path) as engine:
        base = weights_folder.merged(model, base=True)
        for name, weight in served.engine.model.model.state_dict().items():
            assert torch.equal(weight, base[name])
        for number, version in enumerate((0, 0, 3), 1):  # a collector gives it version 0 again
            if number > 1:
                move(model, by=0.3)
                engine.load_weights(None, version)
            ((label, found),) = served.adapters.items()
            assert label == engine.names["default"]
            assert label.endswith(f"-{number}")
            first = "base_model.model.model.layers.0.self_attn.q_proj"
            own = model.model.layers[0].self_attn.q_proj
            assert torch.equal(found[f"{first}.lora_A.weight"], own.lora_A["default"].weight)
            assert len(found) == 2 * sum(hasattr(m, "lora_A") for m in model.modules())
            sample(engine, GREEDY)
            assert {body["model"] for body in served.asked[-4:]} == {label}
        assert served.orders.count("strop_load_weights") == 1
        assert [path.name for path in engine.folder.path.iterdir()] == [label]
    assert served.adapters == {}


def test_several_adapters_go_there_beside_a_base_that_adds_nothing(served, model, tmp_path):
    served.adapters = {}
    served.worker = lambda *given, **more: (
        worker(*given, **more) | ({"rank": 8} if given[1] == "strop_weights" else {})
    )
    adapters.add(model, Lora(2), seed=1, names=("left", "right"))
    with opened(served, model, tmp_path) as engine:
        assert ADAPTERS in engine.capabilities
        assert [*engine.names] == ["base", "left", "right"]
        assert {*served.adapters} == {*engine.names.values()}
        configs = {
            name: json.loads((engine.folder.path / label / "adapter_config.json").read_text())
            for name, label in engine.names.items()
        }
        assert [configs[name]["lora_alpha"] > 0 for name in engine.names] == [False, True, True]
        for weights in ("", "base", "right"):
            sample(engine, [dataclasses.replace(GREEDY[0], weights=weights)])
            assert served.asked[-1]["model"] == engine.names[weights or "left"]
        with pytest.raises(UserError, match="has no adapter 'middle'"):
            engine.start(9, dataclasses.replace(GREEDY[0], weights="middle"))


def test_a_server_that_loads_no_adapters_is_told_how_to(served, model, tmp_path):
    served.worker = lambda *given, **more: (
        worker(*given, **more) | ({"rank": 8} if given[1] == "strop_weights" else {})
    )
    adapters.add(model, Lora(2), seed=1)
    refused = pytest.raises(UserError, match="start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
    with refused, opened(served, model, tmp_path):
        raise AssertionError


def test_a_server_without_room_for_adapters_gets_whole_weights_and_says_so(served, model, tmp_path):
    adapters.add(model, Lora(2), seed=1)
    with opened(served, model, tmp_path) as engine:
        assert (
            "was not started with --enable-lora --max-loras 2 --max-lora-rank 8" in engine.notes[0]
        )


def test_a_server_that_strop_started_without_room_for_adapters_gets_them_too(
    served, model, tmp_path, monkeypatch
):
    """Such as with engine.args='--no-enable-lora'."""
    adapters.add(model, Lora(2), seed=1)
    move(model, by=0.3)
    own = SimpleNamespace(url=served.url, close=lambda **_: None, dead=lambda: False)
    monkeypatch.setattr(vllm.vllm_server, "check_python", lambda python: None)
    monkeypatch.setattr(vllm.VllmSettings, "_start", lambda *_: own)
    with opened(served, model, tmp_path, url="") as engine:
        check_agreement(engine, model)


def test_weights_may_be_given_by_name(served, model, tmp_path):
    other = tiny("qwen3", dtype=torch.float32, seed=4)
    with opened(served, model, tmp_path) as engine:
        engine.load_weights(other.state_dict(), 2)
        check_agreement(engine, other)
        with pytest.raises(UserError, match=r"do not fit the engine's model: 0 unknown .* missing"):
            engine.load_weights({}, 3)
        check_agreement(engine, other)  # nothing was changed
        assert engine.version == 2


class Late(queue.SimpleQueue):
    """Gets each answer a while after the server has given it."""

    def put(self, item):
        time.sleep(vllm.ANSWER_SECONDS / 2)
        super().put(item)


@pytest.mark.parametrize("answers", [queue.SimpleQueue, Late])
def test_a_request_under_way_goes_on_with_the_new_weights(
    served, model, tmp_path, monkeypatch, answers
):
    """Its call is broken off after three tokens; they stay, and are of the version that drew."""
    started, paused = threading.Event(), threading.Event()

    def instead(body):
        if body["max_tokens"] == 9 and not started.is_set():
            started.set()
            paused.wait(20)
            return 200, json.dumps(complete(served, {**body, "max_tokens": 3}))
        return None

    first = local(copy.deepcopy(model))
    with opened(served, model, tmp_path) as opening:
        served.instead, engine = instead, Driven(opening)
        opening.answers = answers()
        monkeypatch.setattr(served.going, "clear", paused.set)
        id = engine.submit(Request((3, 4), 9, 0.0, want=WANT))
        assert started.wait(20)
        move(model)
        engine.load_weights(None, 5)
        events = engine.finish()[id]
    assert [(e.request, e.version, len(e.ids), e.ended) for e in events] == [
        (id, 0, 3, ""), (id, 5, 6, "length")
    ]  # fmt: skip
    (old,) = sample(first, [Request((3, 4), 3, 0.0)])
    assert list(events[0].ids) == joined(old, "ids")
    (new,) = sample(local(model), [Request((3, 4, *events[0].ids), 6, 0.0, want=WANT)])
    assert list(events[1].ids) == joined(new, "ids")
    assert events[1].logp_model == pytest.approx(joined(new, "logp_model"), abs=1e-5)


def test_a_request_that_came_behind_the_pause_is_asked_again(served, model, tmp_path):
    """The server holds it back with no token: all of its tokens are of the new weights."""
    started, late = threading.Event(), threading.Event()

    def instead(body):
        if body["max_tokens"] == 9 and not started.is_set():
            started.set()
            late.wait(20)
            return 500, "broken off"
        return None

    with opened(served, model, tmp_path) as opening:
        served.instead, engine = instead, Driven(opening)
        engine.submit(Request((3, 4), 9, 0.0))
        assert started.wait(20)
        move(model)
        engine.load_weights(None, 1)
        (event,) = engine.step()
        late.set()
    assert (event.version, len(event.ids), event.ended) == (1, 9, "length")


def test_a_version_that_a_worker_does_not_answer_is_never_sampled_with(served, model, tmp_path):
    with opened(served, model, tmp_path) as engine:
        served.worker = lambda served, method, folder, version: {"version": version - 1}
        sample(engine, [Request((3, 4), 2)])
        number = len(served.bodies)
        with pytest.raises(UserError, match=r"not every worker has weights 4: .*\"version\": 3"):
            engine.load_weights(None, 4)
        assert engine.version == 0
        assert not served.going.is_set()  # it stays paused
        with pytest.raises(UserError, match="no weights to sample with: not every worker"):
            sample(engine, [Request((3, 4), 2)])
        assert len(served.bodies) == number


def test_a_server_that_was_left_paused_goes_on(served, model, tmp_path):
    """By a run that was killed while it handed weights over."""
    served.going.clear()
    started = time.monotonic()
    with opened(served, model, tmp_path) as engine:
        assert time.monotonic() - started < 10
        check_agreement(engine, model)


def test_a_server_that_sees_no_such_folder_goes_on_as_before(served, model, tmp_path):
    with opened(served, model, tmp_path) as engine:
        served.worker = lambda served, method, folder, version: worker(served, method, "/nowhere")
        with pytest.raises(UserError, match=r"sees no folder /nowhere: give engine.folder a place"):
            engine.load_weights(None, 4)
        assert served.going.is_set()


def test_a_server_that_takes_no_weights_is_left_alone(served, model, tmp_path):
    how = r"HTTP 404: .*to give it weights, set .* and start vLLM with .*strop_in_vllm.Weights"
    served.worker = None
    with pytest.raises(UserError, match=how), opened(served, model, tmp_path):
        pass
    served.worker = lambda *_, **given: None
    with pytest.raises(UserError, match=r"workers answer .*null.* to strop_weights"):
        opened(served, model, tmp_path).__enter__()
    assert served.going.is_set()
    assert list((tmp_path / "shared").iterdir()) == []


def test_rules_that_it_has_no_option_for_are_refused(served, model, tmp_path):
    with (
        opened(served, model, tmp_path) as engine,
        pytest.raises(UserError, match=r"cannot apply BanTokens.*one TopK.* strop_processors"),
    ):
        engine.start(0, Request((3,), 2, rules=(BanTokens((1,)),)))


def test_rules_of_its_own_are_checked_once(served, model, tmp_path, monkeypatch):
    """The vocabulary of a real model takes milliseconds, and a step has hundreds of requests."""
    vllm._check_rules.cache_clear()
    assert vllm._check_rules.cache_info().maxsize  # prompts may have rules of their own
    tried, call = [], BanTokens.__call__
    monkeypatch.setattr(BanTokens, "__call__", lambda *given: tried.append(1) or call(*given))
    with opened(served, model, tmp_path) as engine:
        engine.knows_rules = True
        for seed in range(3):
            request = Request((3, 4), 2, rules=(BanTokens((1,)),), seed=seed)
            assert json.loads(engine._options(request)["vllm_xargs"]["strop_rules"]) == [
                1.0, [["ban_tokens", {"ids": [1]}]]
            ]  # fmt: skip
        with pytest.raises(UserError, match="leave no token"):
            engine._options(Request((3,), 2, rules=(BanTokens(tuple(range(VOCAB))),)))
    assert len(tried) == 2


def test_log_probabilities_are_known_at_any_temperature(served, model, tmp_path):
    with opened(served, model, tmp_path) as engine:
        (found,) = sample(engine, [Request((3, 4), 5, 0.7, want=WANT)])
    assert joined(found, "logp") == joined(found, "logp_model")
    assert all(map(math.isfinite, joined(found, "logp")))


def test_options_with_an_open_quote_are_refused():
    with pytest.raises(UserError, match=r"engine\.args.*No closing quotation"):
        config.make({"engine": {"kind": "vllm", "args": "--foo 'bar"}})


def test_an_address_among_the_options_is_refused():
    with pytest.raises(UserError, match=r"engine\.args.*strop chooses vLLM's address.*--port=9"):
        config.make({"engine": {"kind": "vllm", "args": "--seed 3 --port=9"}})


def test_settings_of_a_start_are_refused_beside_a_server_that_runs(model):
    settings = read({"kind": "vllm", "url": "http://127.0.0.1:9", "args": "--seed 3"})
    with pytest.raises(UserError, match=r"engine\.args is for a server that strop starts"):
        settings.open(model, None, num_slots=1, context_length=9)


def test_a_folder_without_room_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(weights_folder.shutil, "disk_usage", lambda _: SimpleNamespace(free=9))
    settings = read({"kind": "vllm", "url": "http://127.0.0.1:9"})
    wanted = {"num_slots": 1, "context_length": 9}
    with pytest.raises(UserError, match=r"no room for the model's weights.*/dev/shm or /.*folder"):
        settings.open(model, None, **wanted)
    settings = settings.model_copy(update={"folder": str(tmp_path)})
    with pytest.raises(UserError, match=f"in {tmp_path}: give"):
        settings.open(model, None, **wanted)


def test_the_settings():
    found = read({"kind": "vllm", "max_model_len": 90, "args": "--swap-space '2'"})
    assert (found.url, found.needs_model) == ("", True)
    with pytest.raises(UserError, match=r"max_model_len is 90, .* come to 91 tokens"):
        found.check_longest(91)
    found.check_longest(90)
    options = found._options(tiny("qwen3", dtype=torch.bfloat16))
    assert options[:2] == ["--dtype", "bfloat16"]
    assert options[options.index("--max-model-len") + 1] == "90"
    assert options[-2:] == ["--swap-space", "2"]


def test_a_rank_above_those_of_vllm_is_refused():
    layer = torch.nn.Identity()
    layer.r = {"default": 513}
    with pytest.raises(UserError, match="lora_rank is 513, and vLLM takes adapters up to rank 512"):
        adapter_options(layer)


def test_vllm_in_this_process_needs_it_here_and_one_process(model, monkeypatch):
    def begin():
        return read({"kind": "vllm_here"}).open(model, None, num_slots=1, context_length=9)

    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"has no vLLM \(pip .*engine.kind=vllm with engine.py"):
            begin()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for count, why in ((2, "with several training processes"), (1, "already has a vLLM")):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda number=count: number)
        with pytest.raises(UserError, match=why):
            begin()
