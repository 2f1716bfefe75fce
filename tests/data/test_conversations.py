"""Rows of conversations behind chat templates of published models, as in TRL."""

import json
from importlib.resources import files

import pytest
from scripted_model import scripted_tokenizer

from strop.data.encode import encode_prompt
from strop.data.prompts import Prompt
from strop.support.errors import UserError

TEMPLATES = files("trl") / "chat_templates"


def tokenizer_of(name):
    template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    made = scripted_tokenizer(("｜", "▁"), template)
    made.bos_token = "<pad>"
    return made


def said(*messages):
    return [{"role": role, "content": text} for role, text in messages]


def shown(name, messages):
    tokenizer = tokenizer_of(name)
    return tokenizer.decode(encode_prompt(Prompt(0, messages, {}, "a.jsonl row 1"), tokenizer))


def with_call(arguments, content=None):
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    return [
        *said(("user", "1+2?")),
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": "3"},
    ]


@pytest.mark.parametrize(
    ("name", "messages", "part"),
    [
        ("qwen2_5", said(("human", "hi")), r"message 1 \(role 'human'\)"),
        ("qwen3", said(("user", "a"), ("critic", "b"), ("user", "c")), "message 2 "),
        ("smolvlm", said(("user", "hi")), r"message 1 \(role 'user'\)"),
        ("phi3", with_call({}, ""), "the tool calls of message 2 "),
        ("gemma4", said(("user", "a"), ("assistant", "b"), ("tool", "c")), "message 3 "),
    ],
)
def test_a_message_that_the_template_leaves_out_is_refused(name, messages, part):
    with pytest.raises(UserError, match=f"leaves out {part}.*of a.jsonl row 1"):
        shown(name, messages)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_5_think", "llama3_1", "gptoss", "deepseekv3"])
def test_arguments_of_calls_as_text_are_those_as_an_object(name):
    """OpenAI writes them as text."""
    found = shown(name, with_call(json.dumps({"a": 1, "b": "x"})))
    assert '\\"a' not in found
    if name != "deepseekv3":  # it takes text alone
        assert found == shown(name, with_call({"a": 1, "b": "x"}))


def test_a_template_that_fails_in_any_way_is_a_users_error():
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = "{{ 1 // 0 }}"
    with pytest.raises(UserError, match=r"refuses the messages of a.jsonl row 1: .*by zero"):
        encode_prompt(Prompt(0, said(("user", "hi")), {}, "a.jsonl row 1"), tokenizer)
