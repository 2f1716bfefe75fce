"""Recorded passes: what they read and write, row by row. A CPU reruns what a GPU would replay.

The kernel is tested in Triton's interpreter, where Triton is installed.
"""

import importlib.util
import os
import subprocess
import sys
import types
import warnings

import numpy as np
import peft
import pytest
import torch
from test_fused import KINDS, model_of

from strop.engines.base import Request
from strop.engines.local import engine, fused, gpu_pass
from strop.engines.local.cuda_graphs import Graphs, Recorded, rounded
from strop.engines.local.engine import LocalEngine
from strop.support import devices


class Again(Graphs):
    """A recorded pass is one that is run again, into the same logits."""

    def _record(self, size, used):
        token, place = self.token[:size], self.place[:size]
        logits = self._pass(token, place, used)
        self.made = getattr(self, "made", 0) + 1

        def replay():
            logits.copy_(self._pass(token, place, used))

        return Recorded(replay, logits, self.reads())


def attend(query, key, value, keys, values, lines, places, scale, window=None):
    """What the kernel does, one row after another."""
    number, heads, size = query.shape
    together = heads // key.shape[1]
    found = query.new_full((number, heads, size), torch.nan)
    for row, place in enumerate(places.tolist()):
        if place < 0:
            continue
        line = int(lines[row])
        keys[line, :, place], values[line, :, place] = key[row], value[row]
        first = max(0, place + 1 - window) if window else 0
        k, v = (each[line, :, first : place + 1].float() for each in (keys, values))
        q = query[row].view(-1, together, size).float()
        weight = (scale * q @ k.transpose(1, 2)).softmax(-1)
        found[row] = (weight @ v).flatten(0, 1).to(query.dtype)
    return found.flatten(1)


@pytest.fixture
def on_gpu(monkeypatch):
    """An engine that works as on a GPU, but for the recording itself."""
    kernel = types.SimpleNamespace(attend=attend)
    monkeypatch.setitem(sys.modules, "strop.engines.local.newest_attention", kernel)
    monkeypatch.setattr(engine, "copied", lambda record: lambda: record.numpy().copy())

    def made(model, own_pass=True, **options):
        found = LocalEngine(model, **options)
        own = found.model
        own.fused, own.why_no_graphs = None, ""
        own.gpu_pass = gpu_pass.GpuPass(model) if own_pass else None
        own.graphs = Again(own._newest, own._lent, len(found.slots.rows), own.device)
        own.cache.doubles = True
        own.cache.takes_lines = own_pass
        return found

    return made


def answers(engine, requests):
    """Tokens and log-probabilities of requests, by number; some wait for a slot."""
    for number, request in enumerate(requests):
        engine.start(number, request)
    found = {number: ([], []) for number in range(len(requests))}
    left = len(requests)
    while left:
        for event in engine.poll():
            found[event.request][0].extend(event.ids)
            found[event.request][1].extend(event.logp)
            left -= bool(event.ended)
    return found


def requests(number=13):
    rng = np.random.default_rng(0)
    return [
        Request(
            ids=tuple(rng.integers(2, 300, 1 + int(rng.integers(9))).tolist()), seed=seed,
            max_tokens=int(rng.integers(1, 40)), stop_ids=tuple(range(12)),
        )
        for seed in range(number)
    ]  # fmt: skip


@pytest.mark.parametrize("own_pass", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_passes_that_are_not_recorded(kind, own_pass, on_gpu):
    model = model_of(kind)
    plain = answers(LocalEngine(model, num_slots=5), requests())
    recorded = on_gpu(model, own_pass, num_slots=5)
    found = answers(recorded, requests())
    assert recorded.model.graphs.made >= 1
    for number, (ids, logp) in plain.items():
        assert found[number][0] == ids
        np.testing.assert_allclose(found[number][1], logp, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("targets", ["all-linear", ["v_proj", "up_proj", "o_proj"]])
def test_adapters_are_read_beside_the_weights(targets, on_gpu):
    model = model_of("qwen2")
    lora = peft.LoraConfig(r=4, lora_alpha=12, target_modules=targets, task_type="CAUSAL_LM")
    peft.get_peft_model(model, lora)
    assert "LlamaForCausalLM" not in fused.why_not(model, adapters=True)
    recorded = on_gpu(model, num_slots=5)
    for version in range(2):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name:
                    weight.copy_(0.3 * torch.randn_like(weight))
        recorded.load_weights(None, version)
        plain = answers(LocalEngine(model, num_slots=5), requests())
        found = answers(recorded, requests())
        for number, (ids, logp) in plain.items():
            assert found[number][0] == ids
            np.testing.assert_allclose(found[number][1], logp, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_that_are_more_than_two_products_are_left_to_their_modules():
    for more, why in (
        ({"use_dora": True}, "more than A and B"), ({"lora_bias": True}, "more than A and B"),
        ({"lora_dropout": 0.1}, "dropout"),
    ):  # fmt: skip
        model = model_of("llama", attention_bias=False, mlp_bias=False)
        assert fused.why_not(model, adapters=True) == ""
        lora = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", **more)
        if more.get("lora_bias"):
            model = model_of("llama")
        peft.get_peft_model(model, lora)
        assert why in fused.why_not(model, adapters=True), more


def test_passes_follow_the_weights_and_the_cache(on_gpu):
    """Weights that change in place are read, memory that moves is not read where it was."""
    model = model_of("qwen3")
    recorded = on_gpu(model, num_slots=5)
    answers(recorded, requests())
    made = recorded.model.graphs.made
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    recorded.load_weights(None, 1)
    found = answers(recorded, requests())
    assert recorded.model.graphs.made == made  # all stays where it was
    assert found == answers(on_gpu(model, num_slots=5), requests())
    recorded.forget()
    recorded.slots.cache.shrink(0)
    again = answers(recorded, requests())
    assert recorded.model.graphs.made > made
    assert again == found


def test_a_cache_that_was_given_back_has_its_lines_in_order(on_gpu):
    """Fewer rows than before, whose slots had other rows' lines."""
    recorded = on_gpu(model_of("llama"), num_slots=8)
    asked = requests()
    wanted = answers(on_gpu(model_of("llama"), num_slots=8), asked[:2])
    answers(recorded, asked)
    assert recorded.slots.cache.line.tolist() != list(range(8))
    recorded.forget()
    recorded.slots.cache.shrink(0)
    assert answers(recorded, asked[:2]) == wanted
    assert recorded.slots.cache.lines < 8


def test_an_adapter_that_is_merged_later_is_left_to_the_modules(on_gpu):
    model = model_of("llama", attention_bias=False, mlp_bias=False)
    recorded = on_gpu(model, num_slots=3)
    answers(recorded, requests())
    with warnings.catch_warnings(action="ignore"):
        lora = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(model, lora)
        adapted.merge_adapter()
    recorded.load_weights(None, 1)
    plain = answers(LocalEngine(model, num_slots=3), requests())
    found = answers(recorded, requests())
    assert recorded.model.gpu_pass is None
    assert {n: ids for n, (ids, _) in found.items()} == {n: ids for n, (ids, _) in plain.items()}


def test_an_interrupted_step_is_drawn_again(on_gpu, monkeypatch):
    asked = requests(3)
    wanted = answers(on_gpu(model_of("llama"), num_slots=3), asked)
    recorded = on_gpu(model_of("llama"), num_slots=3)
    waits = iter([False, True])

    def copied(record):
        def wait():
            if next(waits, False):
                raise KeyboardInterrupt
            return record.numpy().copy()

        return wait

    monkeypatch.setattr(engine, "copied", copied)
    try:
        answers(recorded, asked)
    except KeyboardInterrupt:
        found = {number: ([], []) for number in range(3)}
        left = 3
        while left:
            for event in recorded.poll():
                found[event.request][0].extend(event.ids)
                left -= bool(event.ended)
    assert {n: ids for n, (ids, _) in found.items()} == {n: ids for n, (ids, _) in wanted.items()}


def test_passes_for_many_places_share_the_memory_of_their_logits(on_gpu):
    recorded = on_gpu(model_of("llama", max_position_embeddings=512), own_pass=False, num_slots=3)
    answers(recorded, [Request(ids=(5,) * 200, seed=0, max_tokens=90)])
    kept = recorded.model.graphs.recorded
    assert [used for _, used in kept] == [256, 320]
    assert len({each.logits.data_ptr() for each in kept.values()}) == 1


def test_a_pass_that_has_begun_is_used_for_the_rows_that_go_on(on_gpu, monkeypatch):
    """Of rows that end in different steps, no step makes its pass twice."""
    recorded = on_gpu(model_of("llama"), num_slots=8)
    passes = []
    run = recorded.model.decode

    def counted(tokens, positions, bands):
        passes.append(len(tokens))
        return run(tokens, positions, bands)

    monkeypatch.setattr(recorded.model, "decode", counted)
    ends = [3, 9, 9, 12, 20]
    asked = [Request(ids=(5, 6), seed=seed, max_tokens=most) for seed, most in enumerate(ends)]
    found = answers(recorded, asked)
    assert [len(ids) for ids, _ in found.values()] == ends
    assert len(passes) == max(ends) + 1  # the last one is in vain


def test_heads_that_no_kernel_takes_are_left_to_the_modules():
    assert [size for size in range(300) if not gpu_pass.why_not_heads(size)] == [
        16, 32, 64, 128, 256
    ]  # fmt: skip


def test_kernels_need_a_gpu_triton_and_a_compiler(monkeypatch):
    why = devices.why_no_kernels.__wrapped__  # without what it remembers
    assert why(torch.device("mps")) == "it is on mps"
    found = {"triton": object()}
    monkeypatch.setattr(devices.importlib.util, "find_spec", found.get)
    monkeypatch.setattr(devices.shutil, "which", {"cc-14": "/usr/bin/cc-14"}.get)
    monkeypatch.setenv("CC", "cc-14")
    assert why(torch.device("cuda")) == ""
    monkeypatch.setenv("CC", "")
    assert why(torch.device("cuda")) == "there is no C compiler"
    found.clear()
    assert why(torch.device("cuda")) == "Triton is not installed"


def test_places_are_rounded_up_by_an_eighth_at_most():
    for used in range(1, 5000):
        found = rounded(used, 4096)
        assert found >= min(used, 4096)
        assert found <= max(used + max(64, used // 8), 64)
    assert len({rounded(used, 1 << 20) for used in range(1, 4097)}) < 36


TRIAL = """
import torch
from test_cuda_graphs import attend as plain
from strop.engines.local.newest_attention import attend
torch.manual_seed(0)
for dtype, near in ((torch.float32, 1e-5), (torch.float16, 2e-3)):
    for window in (0, 5, 70):
        turned, both = torch.randn(5, 8, 32, dtype=dtype), torch.randn(5, 4, 32, dtype=dtype)
        query, key, value = turned[:, :6], turned[:, 6:], both[:, 2:]
        stores = torch.randn(2, 7, 2, 200, 32, dtype=dtype)
        theirs, places = stores.clone(), torch.tensor([0, 63, -1, 64, 150])
        lines = torch.tensor([3, 6, 0, 1, 4])
        found = attend(query, key, value, *stores, lines, places, 0.2, window)
        wanted = plain(query, key, value, *theirs, lines, places, 0.2, window)
        assert torch.equal(stores, theirs)
        rows = places >= 0
        assert (found[rows] - wanted[rows]).abs().max() < near, (dtype, window)
print("agrees")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernel_agrees_with_its_definition():
    here = os.path.dirname(__file__)
    path = os.pathsep.join([here, *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", TRIAL], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout == "agrees\n", done.stderr
