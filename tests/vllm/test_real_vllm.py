"""The vLLM engine over a real vLLM: weights arrive, and its log-probabilities are the trainer's."""

import copy
import json

import pytest
import torch
from commands import Strop

from strop.rollout.drive import sample
from strop.rollout.engines.base import Request
from strop.rollout.engines.rules import TopK
from strop.training import adapters
from strop.training.adapters import Lora

WANT = frozenset({"logp_model"})
ATOL = 1e-5  # nats, in float32


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
    asked = requests(1, max_tokens=2) + requests(12, max_tokens=110, temperature=1.3)
    rows = [engine.submit(request) for request in asked]
    events = engine.step()  # the first one's end; the others are under way
    move(loaded.model, 4)
    engine.load_weights(None, engine.version + 1)
    held[engine.version] = loaded.model
    while engine.busy():
        events += engine.step()
    finished = [engine.abort(row) for row in rows]
    for row in rows:
        engine.release(row)
    drawn_by = [{event.version for event in each.events if event.ids} for each in finished]
    assert drawn_by[0] == {min(held)}
    assert set(held) in drawn_by  # begun with the old weights, ended with the new ones
    check_events(finished, held)


def test_forks_pauses_and_cuts(engine, loaded):
    held = {engine.version: loaded.model}
    id = engine.submit(Request((3, 5), 12, 0.0, want=WANT, pause_every=5))
    events = []
    while engine.busy():
        events += engine.step()
    assert (sum(len(event.ids) for event in events), events[-1].ended) == (5, "paused")
    fork = engine.fork(id, at=4, forced=(6,), pause_every=0)
    while engine.busy():
        engine.step()
    forked = engine.abort(fork)
    assert forked.request.ids == (3, 5, *[t for event in events for t in event.ids][:2], 6)
    check_events([forked], held)
    for each in (id, fork):
        engine.release(each)
    (cut,) = sample(engine, requests(1, rules=(TopK(1),), want=frozenset()))
    assert max(map(abs, cut.events[0].logp)) < ATOL  # of what is drawn from: one token


def test_a_run_trains_over_it(engine, tmp_path, monkeypatch, capsys):
    """Its log-probabilities differ by rounding alone at every step: every update has arrived."""
    words = ["engine.kind=vllm", f"engine.url={engine.client.url}", "training.steps=3"]
    words += ["evaluation.every=0", "sampling.num_prompts=4", "training.lr=1e-3"]
    strop = Strop(monkeypatch, capsys)
    said = strop("train", "grpo", "--model", "tiny", *words, "--out", tmp_path / "run")
    assert said.code == 0, said.err
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    gaps = [line["sampling/sampling_logp_difference/mean"] for line in lines if line["step"]]
    assert len(gaps) == 3
    assert max(gaps) < ATOL
    assert all(line["grad_norm"] > 0 for line in lines if line["step"])
