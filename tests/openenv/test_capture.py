"""OpenEnv's capture server between an agent and the policy's server: both record the same."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from models import Lab, exact_norms, save_data, save_model
from openenv_process import serving
from scripted_model import TEMPLATE, scripted_tokenizer
from short_runs import first_step
from transformers import AutoTokenizer

from strop.batch.batch import Batch

# A conversation of three calls that continue each other, and a separate fourth one.
AGENT = """
import json, os, uuid
from pathlib import Path
from urllib.request import Request, urlopen

from openai import OpenAI


def sent(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"})) as answer:
        return json.load(answer)


def talk(client, row):
    messages, texts = [], []
    for question in (row["prompt"], "and now?", "why?"):
        messages.append({"role": "user", "content": question})
        said = client.chat.completions.create(model="policy", messages=messages)
        texts.append(said.choices[0].message.content)
        messages.append({"role": "assistant", "content": texts[-1]})
    aside = [{"role": "user", "content": "in a word"}]
    client.chat.completions.create(model="policy", messages=aside, temperature=0.0)
    return float(sum(map(ord, "".join(texts))) % 2)


def direct(row):
    return talk(OpenAI(), row)


def through(port, session, row):
    captures, folder = os.environ["TEST_CAPTURES"], Path(os.environ["TEST_FOLDER"])
    assert session["capture_level"] == "tokens"
    key = session["session_id"]
    reward = talk(OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key), row)
    trace = sent(f"{captures}/traces/{port}/{key}")
    rollout = {**trace, "reward": reward, "group": row["prompt"]}
    (folder / f"{uuid.uuid4().hex}.json").write_text(json.dumps(rollout))
    return reward


def captured(row):
    engine = {"llm_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    port = sent(os.environ["TEST_CAPTURES"] + "/captures", engine)
    return through(port, sent(f"http://127.0.0.1:{port}/sessions", {"purpose": "train"}), row)


def probed(row):
    engine = {"llm_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    port = sent(os.environ["TEST_CAPTURES"] + "/captures/shared")
    asked = {**engine, "model": "policy", "purpose": "train"}
    return through(port, sent(f"http://127.0.0.1:{port}/sessions", asked), row)
"""
# Probes of an engine that a session names: whether it reports tokens, whether it calls tools, and
# how log-probabilities change with the temperature, which a run does not report.
PROBES = ("Reply with the single word: ok", "Use the bash tool", "Reply with exactly: hello")


class Stepped(NamedTuple):
    batch: Batch
    gradient: list[torch.Tensor]
    metrics: dict[str, float]


class Kept(NamedTuple):
    """A rollout of a batch, context by context."""

    ids: list[list[int]]
    said: list[list[bool]]
    log_probs: torch.Tensor
    reward: float


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A random model with letters, a chat template and room for what is asked of it."""
    folder = tmp_path_factory.mktemp("capture")
    letters = scripted_tokenizer(("ok",), TEMPLATE)
    model = save_model(folder / "model", context=1024, ours=letters)
    return Lab(model, *save_data(folder))


@pytest.fixture(scope="module")
def captures():
    with serving("captures.py") as place:
        yield place


@pytest.fixture
def agent(tmp_path: Path, captures: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    exact_norms(monkeypatch)
    (tmp_path / "traces").mkdir()
    monkeypatch.setenv("TEST_CAPTURES", captures)
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path / "traces"))
    path = tmp_path / "my_agent.py"
    path.write_text(AGENT)
    return path


def stepped(lab: Lab, top_k: int = 0, **data: Any) -> Stepped:
    """The first step of grpo."""
    raw = {**lab.raw("grpo"), "data": data, "reward": {}}
    raw["model"] |= {"dtype": "float64"}
    raw["algorithm"] |= {"rollout.top_k": top_k}
    raw["training"] |= {"token_budget": 4096}
    found, gradient = first_step(raw)
    return Stepped(found.batch, gradient, found.metrics)


def kept(batch: Batch) -> list[Kept]:
    """The rollouts of a batch, in an order of their own."""
    found = []
    for row in range(batch.size("B")):
        own_T = batch["rollout_T"] == row
        contexts = batch["sequence_T"][own_T].unique().tolist()
        places = [own_T & (batch["sequence_T"] == each) for each in contexts]
        said_T = own_T & batch["mask_T"]
        found.append(
            Kept(
                [batch["id_T"][each].tolist() for each in places],
                [batch["mask_T"][each].tolist() for each in places],
                batch["logp_behavior_T"][said_T],
                float(batch["outcome_B"][row]),
            )
        )
    return sorted(found, key=lambda each: each.ids)


def assert_same(one: list[Kept], other: list[Kept]) -> None:
    assert len(one) == len(other) == 8
    for mine, theirs in zip(one, other, strict=True):
        assert mine.ids == theirs.ids
        assert mine.said == theirs.said
        assert mine.reward == theirs.reward
        torch.testing.assert_close(mine.log_probs, theirs.log_probs, rtol=0, atol=1e-6)


def same_gradient(one: Stepped, other: Stepped) -> None:
    assert max(float(each.abs().max()) for each in other.gradient) > 1e-5
    for mine, theirs in zip(one.gradient, other.gradient, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


def test_rows_are_the_same_directly_through_a_capture_and_of_its_traces(
    lab: Lab, agent: Path
) -> None:
    direct = stepped(lab, task=f"agent:{agent}:direct", files=[str(lab.data)])
    captured = stepped(lab, task=f"agent:{agent}:captured", files=[str(lab.data)])
    traced = stepped(lab, task=f"traces:{agent.with_name('traces')}")
    assert len({each.reward for each in kept(direct.batch)}) == 2
    assert_same(kept(captured.batch), kept(direct.batch))
    assert_same(kept(traced.batch), kept(captured.batch))
    same_gradient(captured, direct)
    same_gradient(traced, captured)
    for name in ("turns/clean", "turns/realign", "turns/fork", "turns/contexts", "reward"):
        assert captured.metrics[name] == direct.metrics[name] == traced.metrics[name]
    assert direct.metrics["turns/clean"] > 0.5
    assert direct.metrics["turns/contexts"] >= 2
    assert traced.metrics["turns/scored_here"] == 0


def test_what_a_capture_asks_beforehand_is_of_the_rollout_that_asked_for_it(
    lab: Lab, agent: Path
) -> None:
    probed = stepped(lab, task=f"agent:{agent}:probed", files=[str(lab.data)])
    traced = stepped(lab, task=f"traces:{agent.with_name('traces')}")
    decode = AutoTokenizer.from_pretrained(lab.model).decode
    asked, rest = [], []
    for each in kept(probed.batch):
        first = len(PROBES)
        asked.append([decode(ids) for ids in each.ids[:first]])
        size = sum(map(sum, each.said[:first]))
        rest.append(Kept(each.ids[first:], each.said[first:], each.log_probs[size:], each.reward))
    for texts in asked:
        for text, probe in zip(texts, PROBES, strict=True):
            assert f"[user]{probe}" in text
    assert_same(sorted(rest, key=lambda each: each.ids), kept(traced.batch))


def test_log_probabilities_are_of_the_draw_also_where_a_call_asks_for_another_one(
    lab: Lab, agent: Path
) -> None:
    captured = stepped(lab, 5, task=f"agent:{agent}:captured", files=[str(lab.data)])
    traced = stepped(lab, 5, task=f"traces:{agent.with_name('traces')}")
    assert_same(kept(traced.batch), kept(captured.batch))
