"""`strop.serve` and `strop serve`: the served answers equal those of `strop sample`."""

import os
import re
import shlex
import signal
import sys

import httpx2
import openai
import pytest
from commands import launch
from fakes.policy import asking
from test_streams_and_retries import wait_for

import strop
from strop.support.errors import UserError

PROMPT = "3,5,7:22="


@pytest.fixture(scope="module")
def server():
    with strop.serve("tiny") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as client:
        yield client


def said(client, **fields):
    asked = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], **fields}
    return client.chat.completions.create(**asked).choices[0].message.content


def test_answers_are_those_of_strop_sample(client):
    (greedy,) = strop.sample("tiny", PROMPT, 1, temperature=0.001)
    assert said(client, temperature=0) == greedy.text
    for temperature in (1e-10, 1e-29, 1e-38, 1e-46, 5e-324):
        assert said(client, temperature=temperature) == greedy.text
    for seed in (1, 2):
        (drawn,) = strop.sample("tiny", PROMPT, 1, seed=seed)
        assert said(client, seed=seed * 1000003) == drawn.text


def test_our_own_engine_of_such_servers_samples_from_it(server, monkeypatch):
    monkeypatch.setenv("SERVED", server.key)
    engine = f"completions(url='{server.url}', api_key_env='SERVED', logprobs=false)"
    (found,) = strop.sample("tiny", PROMPT, 1, temperature=0.001, engine=engine)
    (ours,) = strop.sample("tiny", PROMPT, 1, temperature=0.001)
    assert found.text == ours.text


def test_what_it_says_of_itself(server, client):
    (model,) = client.models.list().data
    assert (server.model, model.id, model.max_model_len) == ("tiny", "tiny", 128)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.url)
    assert len(server.key) > 20


def test_the_name_that_agents_are_trained_with_is_answered(client):
    assert said(client, model="policy", temperature=0) == said(client, temperature=0)
    with pytest.raises(openai.NotFoundError, match="it is called tiny"):
        said(client, model="gpt")


def test_letters_that_the_model_does_not_know(client):
    with pytest.raises(openai.BadRequestError, match="would read as <unk>"):
        client.completions.create(model="tiny", prompt="é")


def test_a_loaded_model_a_name_and_a_key(lab):
    from strop.training.learner import models

    loaded = models.load("tiny")
    options = {"name": "mine", "key": "known", "max_tokens": 2, "seed": 3}
    texts = []
    for _ in range(2):
        with strop.serve(loaded.model, tokenizer=loaded.tokenizer, **options) as server:
            assert (server.key, server.model) == ("known", "mine")
            with asking(server) as client:
                body = {"prompt": PROMPT, "return_token_ids": True, "logprobs": 0}
                (choice,) = client.post("/v1/completions", json=body).json()["choices"]
                texts.append(choice["text"])
                assert len(choice["token_ids"]) == 2
    assert texts[0] == texts[1]  # the draws of calls without a seed begin with that of the server


def test_a_checkpoint_of_a_run(lab, runner, tmp_path):
    runner.whole(lab.raw(training={"steps": 2, "save_every": 1, "inspect": 0}), tmp_path / "run")
    texts = {}
    for step in (1, 2):
        with strop.serve(tmp_path / "run", step=step, trust_files=True) as server:
            assert server.model == "run"
            with asking(server) as client:
                body = {"prompt": "3+4:", "seed": 1000003, "max_tokens": 6, "logprobs": 0}
                (choice,) = client.post("/v1/completions", json=body).json()["choices"]
        (ours,) = strop.sample(tmp_path / "run", "3+4:", 1, step=step, seed=1, trust_files=True)
        assert choice["text"] == ours.text
        texts[step] = choice["logprobs"]["token_logprobs"]
    assert texts[1] != texts[2]


def test_mistakes_are_said_before_anything_is_loaded(strop, monkeypatch):
    import strop as package

    for options, words in (
        ({"port": 70_000}, "port is 70000"), ({"max_tokens": -1}, "max_tokens is -1"),
        ({"key": "a b"}, "printable ASCII"), ({"seed": -1}, "the seed is -1"),
        ({"key": 5}, "key is 5"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            package.serve("tiny", **options)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"pip install 'strop\[serve\]'"):
        package.serve("tiny")
    found = strop("serve", "tiny")
    assert (found.code, found.out) == (2, "")
    assert "pip install 'strop[serve]'" in found.err


def test_the_command_says_where_it_is_and_ends(tmp_path):
    output = tmp_path / "out"
    template = tmp_path / "chat.jinja"
    template.write_text("{% for each in messages %}{{ each.content }}{% endfor %}")
    words = ["serve", "tiny", "--port", "0", "--model-name", "mine"]
    process = launch([*words, "--chat-template", template], output)
    wait_for(lambda: output.exists() and "curl" in output.read_text())
    first, *exports, curl = output.read_text().splitlines()
    assert re.fullmatch(
        r"mine, context 128 tokens, at http://127\.0\.0\.1:\d+ \(Ctrl-C ends it\)", first
    )
    known = dict(each.removeprefix("export ").split("=", 1) for each in exports)
    for name, value in known.items():
        curl = curl.replace(f"${name}", shlex.split(value)[0])
    program, url, *options = shlex.split(curl)
    assert (program, options[::2]) == ("curl", ["-H", "-H", "-d"])
    headers = dict(each.split(": ") for each in (options[1], options[3]))
    found = httpx2.post(url, headers=headers, content=options[5])
    assert (found.status_code, found.json()["model"]) == (200, "mine")
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    assert output.read_text().splitlines()[4:] == [
        "interrupted: strop serve was stopped; the model is no longer served"
    ]
