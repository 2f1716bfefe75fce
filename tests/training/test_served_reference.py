"""A teacher behind a server: the same log-probabilities as from its folder, and what goes wrong."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from builders import flat_batch
from fakes.completions_server import serve
from short_runs import teacher_of

from strop.engines.completions_client import Client
from strop.engines.local.engine import LocalEngine
from strop.support.errors import RunStopped, UserError
from strop.support.http import Retries
from strop.training.learner import models, served_reference
from strop.training.learner.served_reference import ServedReference
from strop.training.learner.step_models import StepModels
from strop.training.parallel.ranks import Ranks

BODY = "prompt_logprobs"


@pytest.fixture(scope="module")
def teacher(lab):
    return models.load(str(teacher_of(lab)))


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(served_reference, "RETRIES", Retries(3, 0.01))


def served(teacher, instead=None, **settings):
    """A server of the teacher that tells what vLLM does of a prompt; instead: as `serve` has it."""

    def said(body):
        if instead is not None and (other := instead(body)):
            return other
        if BODY not in body:
            return None
        ids = body["prompt"]
        with torch.no_grad():
            logp = teacher.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        told = [None] + [
            {str(id): {"logprob": float(logp[place, id]), "rank": 1}}
            for place, id in enumerate(ids[1:])
        ]
        return 200, json.dumps({"choices": [{"token_ids": [0], BODY: told}]})

    size = len(teacher.tokenizer)
    engine = LocalEngine(teacher.model, teacher.tokenizer, num_slots=2, context_length=64)
    return serve(engine, size, instead=said, **settings)


def test_its_columns_are_those_of_the_folder(lab, teacher, runner, tmp_path):
    """A run with the server takes the steps that one with the folder takes."""
    lines = []
    with served(teacher) as server:
        for reference in (str(teacher_of(lab)), server.url):
            raw = lab.raw("on_policy_distillation(num_rollouts=2)", training={"save_every": 0})
            raw["model"] |= {"reference": reference, "dtype": "float64"}
            raw["training"]["steps"] = 2
            run = runner.start(raw, tmp_path / f"{len(lines)}")
            lines.append([seen["reference/credit_mean"] for seen in runner.go(run).seen])
        assert lines[0] == pytest.approx(lines[1], abs=1e-6)
        asked = [body for body in server.bodies if BODY in body]
        assert {(body["max_tokens"], body["temperature"]) for body in asked} == {(1, 1.0)}


def test_tokens_of_the_policy_alone(teacher):
    batch = flat_batch((4, 3), id_T=[3, 4, 5, 6, 7, 8, 3], mask_T=[False, False, True, True] * 1
                       + [False, True, True])  # fmt: skip
    with served(teacher) as server:
        reference = ServedReference(server.url + "/v1/", teacher.tokenizer)
        found = reference.columns(batch, ("logp_T",), 1.0)["logp_T"]
        with torch.no_grad():
            logp = teacher.model(torch.tensor([[7, 8, 3]])).logits[0].log_softmax(-1)
        assert found[5:].tolist() == pytest.approx([float(logp[0, 8]), float(logp[1, 3])], abs=1e-5)
        assert not found[~batch["mask_T"]].any()
        for names, temperature in ((("entropy_T",), 1.0), (("logp_T",), 0.5)):
            with pytest.raises(UserError, match="name a folder"):
                reference.columns(batch, names, temperature)


def test_only_the_first_process_asks_the_server():
    class Second(Ranks):
        def from_first(self, make, limited=True):
            return {"logp_T": torch.tensor([0.0, -0.5, -0.25])}

    def asked(*_):
        raise AssertionError("the second process has asked")

    policy = SimpleNamespace(ranks=Second())
    models = StepModels(policy, 1.0, served=SimpleNamespace(columns=asked))
    batch = flat_batch((3,), id_T=[3, 4, 5], mask_T=[False, True, True])
    assert models.columns("ref", batch, ("logp_T",))["logp_T"].tolist() == [0.0, -0.5, -0.25]


def test_what_fails_is_told(teacher):
    """For the moment: again. For good: which rollout, and why."""
    batch = flat_batch((3, 70), (0, 1), id_T=[3] * 73)
    times = []

    def busy(body):
        times.append(1)
        return (503, "busy") if BODY in body and len(times) % 2 else None

    with served(teacher, busy) as server:
        reference = ServedReference(server.url, teacher.tokenizer)
        assert reference.columns(batch.keep(torch.tensor([True, False])), ("logp_T",), 1.0)
        with pytest.raises(
            RunStopped, match=r"does not score rollout 1, of 70 tokens: its context has"
        ):
            reference.columns(batch, ("logp_T",), 1.0)


def test_an_error_does_not_wait_for_the_answers_to_other_rollouts(teacher):
    batch = flat_batch((6, 5), (0, 1), id_T=[3] * 11)
    asked, over = threading.Event(), threading.Event()

    def hangs(body):
        if BODY in body and len(body["prompt"]) == 5:
            asked.set()
            over.wait(20)
        if BODY in body and len(body["prompt"]) == 6:
            asked.wait(20)
            return 400, "no"
        return None

    with served(teacher, hangs) as server:
        reference, started = ServedReference(server.url, teacher.tokenizer), time.monotonic()
        with pytest.raises(RunStopped, match="does not score rollout 0"):
            reference.columns(batch, ("logp_T",), 1.0)
        assert time.monotonic() - started < 15
        over.set()


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ((200, '{"choices": [{"prompt_logprobs": null}]}'), "no prompt_logprobs of these tokens"),
        ((200, '{"choices": [{"prompt_logprobs": [null, {"0": {}}, {}]}]}'), "no prompt_logprobs"),
        ((400, "unknown field prompt_logprobs"), "HTTP 400: unknown field"),
    ],
)
def test_a_server_that_tells_nothing_of_prompts_is_refused(teacher, message, told):
    with (
        served(teacher, lambda body: message if BODY in body else None) as server,
        pytest.raises(UserError, match=told),
    ):
        ServedReference(server.url, teacher.tokenizer)


def test_a_server_with_other_tokens_is_refused(teacher, monkeypatch):
    plain = Client.call

    def call(self, path, *rest):
        return {"tokens": [0]} if path == "/tokenize" else plain(self, path, *rest)

    monkeypatch.setattr(Client, "call", call)
    with served(teacher) as server, pytest.raises(UserError, match="has other tokens than the pol"):
        ServedReference(server.url, teacher.tokenizer)


def test_methods_that_need_more_are_refused_and_so_is_no_server(lab, runner, tmp_path):
    cut = {"rollout.top_p": 0.9, "rollout.sampling_mask": "renormalise"}
    for recipe, options, told in (
        ("gkd", {}, "logq_ref_TV, of every token of the vocabulary"),
        ("vopd", {}, "kl_ref_old_T, of every token"),
        ("grpo", {}, "no part of the method reads a reference policy"),
        ("on_policy_distillation", {"rollout.temperature": 0.5}, "at temperature 1 over the whole"),
        ("on_policy_distillation", cut, "over the whole vocabulary: name a folder, or leave roll"),
        ("on_policy_distillation", {}, "does it run, is"),
    ):
        raw = lab.raw(recipe)
        raw["model"]["reference"] = "http://127.0.0.1:9"
        raw["algorithm"] |= options
        with pytest.raises(UserError, match=told):
            runner.start(raw, tmp_path / "run")


def test_its_key_is_in_the_environment_variable_that_the_setting_names(teacher, monkeypatch):
    with served(teacher) as server:
        with pytest.raises(UserError, match=r"KEY_OF_TEST is not set: .* model.reference_api"):
            ServedReference(server.url, teacher.tokenizer, "KEY_OF_TEST")
        monkeypatch.setenv("KEY_OF_TEST", "k-1")
        ServedReference(server.url, teacher.tokenizer, "KEY_OF_TEST")
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer k-1"}
