"""The vLLM engine with a real vLLM: weights arrive, its log-probabilities equal the trainer's."""

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from builders import flat_batch
from commands import Strop
from fakes.engine import Driven, sample

from strop.engines.base import Request
from strop.engines.rules import BanTokens, MinP, TopK, TopP
from strop.parts.rollout.sample_at_entropy_temperature import WarmByEntropy
from strop.support.errors import UserError
from strop.training.learner import adapters
from strop.training.learner.adapters import Lora
from strop.training.learner.served_reference import ServedReference

WANT = frozenset({"logp_model"})
ATOL = 1e-5  # nats, in float32
PYTHON = os.environ.get("STROP_VLLM_PYTHON", "")


def move(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=generator))


@torch.no_grad()
def scores(model, before, ids, temperature=1.0):
    """The model's log-probabilities of tokens behind others."""
    logits = model(torch.tensor([[*before, *ids]])).logits[0, len(before) - 1 : -1]
    logp = (logits.double() / (temperature or 1.0)).log_softmax(-1)
    return logp.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def requests(number=6, **fields):
    fields = {"max_tokens": 20, "want": WANT, **fields}
    return [Request((3 + n % 20, 5, 7), seed=n, **fields) for n in range(number)]


def check_events(finished, models):
    """Every event's log-probabilities are those of the model of its version."""
    for each in finished:
        tokens = list(each.request.ids)
        for event in each.events:
            if event.ids:
                temperature = each.request.temperature
                expected = scores(models[event.version], tokens, event.ids, temperature)
                assert event.logp_model == pytest.approx(expected, abs=ATOL)
            tokens += event.ids
        assert each.events[-1].ended in ("stop", "length")


def test_log_probabilities_are_the_trainers_before_and_after_updates(engine, loaded):
    held = {engine.version: copy.deepcopy(loaded.model)}
    first = sample(engine, requests())
    check_events(first, held)
    for step in (1, 2):
        move(loaded.model, step)
        engine.load_weights(None, engine.version + 1)
        held[engine.version] = loaded.model
        found = sample(engine, requests() + requests(temperature=0.7))
        assert {event.version for each in found for event in each.events} == {engine.version}
        check_events(found, held)
    old = [scores(held[0], each.request.ids, each.events[0].ids) for each in found[:6]]
    gap = max(abs(a - b) for one, each in zip(old, found, strict=False)
              for a, b in zip(one, each.events[0].logp_model, strict=True))  # fmt: skip
    assert gap > 0.05  # the updates were none that would not show


def test_adapters_arrive_as_weights(engine, loaded):
    model = copy.deepcopy(loaded.model)
    adapter = adapters.add(model, Lora(2), seed=1)
    move(model, 3)
    engine.model, before = model, engine.model
    try:
        engine.load_weights(None, engine.version + 1)
        check_events(sample(engine, requests(2)), {engine.version: adapter})
    finally:
        engine.model = before
        engine.load_weights(None, engine.version + 1)


def test_requests_under_way_go_on_with_the_new_weights(engine, loaded):
    held = {engine.version: copy.deepcopy(loaded.model)}
    asked = requests(1, max_tokens=2) + requests(150, max_tokens=110, temperature=1.3)  # a second
    driven = Driven(engine)
    for request in asked:
        driven.submit(request)
    driven.step()  # the first one's end; the others are under way
    move(loaded.model, 4)
    engine.load_weights(None, engine.version + 1)
    held[engine.version] = loaded.model
    driven.finish()
    finished = [*driven.answers.values()]
    drawn_by = [{event.version for event in each.events if event.ids} for each in finished]
    assert drawn_by[0] == {min(held)}
    assert set(held) in drawn_by  # begun with the old weights, ended with the new ones
    check_events(finished, held)


def test_what_goes_on_and_cuts(engine, loaded):
    held = {engine.version: loaded.model}
    (first,) = sample(engine, [Request((3, 5), 5, 0.0, want=WANT)])
    assert (len(first.ids), first.ended) == (5, "length")
    asked = [first.first(2).more(9, given=(6,)), first.more(7)]
    branch, rest = sample(engine, asked)
    assert branch.request.ids == (3, 5, *first.ids[:2], 6)
    assert (len(branch.ids), len((first + rest).ids)) == (9, 12)
    check_events([branch, first + rest], held)
    (cut,) = sample(engine, requests(1, rules=(TopK(1),), want=frozenset()))
    assert max(map(abs, cut.events[0].logp)) < ATOL  # of what is drawn from: one token


RULES = [
    (BanTokens((3, 5, 7, 9)),), (TopP(0.7), MinP(0.1)), (WarmByEntropy(0.3, -1.0, 1.0, 2.0),),
    (BanTokens((4,)), TopK(3)),
]  # fmt: skip


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_rules_are_applied_in_their_order(engine, loaded, temperature):
    """As by the local engine: log-probabilities are of what they leave."""
    assert engine.knows_rules
    fields = {"temperature": temperature, "want": frozenset()}
    asked = [each for rules in RULES for each in requests(3, rules=rules, **fields)]
    found = sample(engine, asked + requests(2, **fields))
    for each in found:
        tokens = [id for event in each.events for id in event.ids]
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[*each.request.ids, *tokens]])).logits[0]
        logits = logits[len(each.request.ids) - 1 : -1] / (temperature or 1.0)
        for rule in each.request.rules:
            logits = rule(logits)
        if not temperature:
            assert tokens == logits.argmax(-1).tolist()
            continue
        logp = logits.double().log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        told = [value for event in each.events for value in event.logp]
        assert told == pytest.approx(logp.tolist(), abs=ATOL)
        assert min(told) > -30


def test_rules_that_it_does_not_know_are_refused_by_name(engine):
    def halve(logits):
        return logits / 2

    with pytest.raises(UserError, match=r"a vLLM server cannot apply <function .*halve"):
        engine.start(0, requests(1, rules=(halve,), want=frozenset())[0])
    with pytest.raises(UserError, match=r"BanTokens.ids has 9999; the vocabulary has"):
        engine.start(0, requests(1, rules=(BanTokens((9999,)),), want=frozenset())[0])


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_server_that_is_killed_ends_the_run_which_goes_on_from_its_checkpoint(tmp_path):
    folder = tmp_path / "run"
    words = ["grpo", "--model", "tiny", "--out", str(folder), "training.steps=400",
             "training.save_every=1", "evaluation.every=0", "sampling.num_prompts=4",
             "engine.kind=vllm", f"engine.python={PYTHON}",
             "engine.args=--enforce-eager --kv-cache-memory-bytes 256M"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "strop", "train", *words], stderr=subprocess.PIPE, text=True
    )
    lines = folder / "metrics.jsonl"
    end = time.monotonic() + 600
    while not lines.exists() or lines.read_text().count("\n") < 2:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.2)
    (guard,) = [pid for pid in children(process.pid)
                if b"serve_while_wanted" in Path(f"/proc/{pid}/cmdline").read_bytes()]  # fmt: skip
    os.kill(children(guard)[0], signal.SIGKILL)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 2
    assert "vLLM has ended (exit status" in said
    assert f"Resume with: strop train --resume {folder}" in said
    steps = [json.loads(line)["step"] for line in lines.read_text().splitlines()]
    saved = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    assert saved[-1] == f"step-{steps[-1]:06d}"  # nothing is lost but the step that was on its way
    more = steps[-1] + 2
    done = subprocess.run(
        [sys.executable, "-m", "strop", "train", "--resume", str(folder), f"training.steps={more}"],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["step"] for line in found] == list(range(1, more + 1))
    assert max(line["sampling/sampling_logp_difference/mean"] for line in found) < ATOL


def test_a_run_trains_over_it(engine, tmp_path, monkeypatch, capsys):
    """Its log-probabilities differ by rounding alone at every step: every update has arrived."""
    words = ["engine.kind=vllm", f"engine.url={engine.client.url}", "training.steps=3"]
    words += ["evaluation.every=0", "sampling.num_prompts=4", "training.lr=1e-3"]
    strop = Strop(monkeypatch, capsys)
    result = strop("train", "grpo", "--model", "tiny", *words, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    gaps = [line["sampling/sampling_logp_difference/mean"] for line in lines if line["step"]]
    assert len(gaps) == 3
    assert max(gaps) < ATOL
    assert all(line["grad_norm"] > 0 for line in lines if line["step"])


def test_a_server_of_vllm_is_a_teacher(engine, loaded):
    """What it says of given tokens is what its model says, and its tokens are the policy's."""
    reference = ServedReference(engine.client.url, loaded.tokenizer)
    batch = flat_batch((6, 4), id_T=[3, 5, 7, 4, 9, 6, 8, 3, 5, 4])
    batch = batch.set(mask_T=torch.tensor([False] * 3 + [True] * 3 + [False] + [True] * 3))
    engine.load_weights(loaded.model.state_dict(), 0)
    found = reference.columns(batch, ("logp_T",), 1.0)["logp_T"].tolist()
    expected = [0.0] * 3 + scores(loaded.model, (3, 5, 7), (4, 9, 6))
    expected += [0.0, *scores(loaded.model, (8,), (3, 5, 4))]
    assert found == pytest.approx(expected, abs=ATOL)
