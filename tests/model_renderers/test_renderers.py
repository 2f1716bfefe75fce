"""The real package parses calls and writes turns, for a tokenizer with Qwen3's special tokens."""

import json
from pathlib import Path

import pytest
from scripted_model import save_scripted

from strop.data.chat import Chat
from strop.environments.tool_box import calculator
from strop.environments.tools import tool_of
from strop.support.errors import UserError

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>",
           "<tool_response>", "</tool_response>", "<think>", "</think>")  # fmt: skip
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\\n' ~ (tools | tojson) ~ '<|im_end|>\\n' }}{% endif -%}"
    "{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
INSIDE = '\n{"name": "calculator", "arguments": {"expression": "2*3"}}\n'


@pytest.fixture
def tokenizer(tmp_path: Path):
    from transformers import AutoTokenizer

    folder = save_scripted(tmp_path / "model", dict.fromkeys(SPECIAL, 1 / len(SPECIAL)), TEMPLATE)
    return AutoTokenizer.from_pretrained(folder)


def reader_of(tokenizer):
    chat = Chat(renderer="qwen3").for_tools((tool_of(calculator).schema,), tokenizer)
    assert chat.reader is not None
    return chat.reader


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (f"<tool_call>{INSIDE}</tool_call>", ""),
        ("<tool_call>{</tool_call>", "invalid_json"),
        (f"<tool_call>{INSIDE}", "unclosed_block"),
        ('<tool_call>{"arguments": {}}</tool_call>', "missing_name"),
    ],
)
def test_calls_are_read(tokenizer, block, problem):
    text = f"<think>\nhm\n</think>\n\nI call.\n{block}<|im_end|>"
    action = reader_of(tokenizer).read(ids_of(tokenizer, text), text)
    (call,) = action.calls
    assert (call.problem, action.content) == (problem, "I call.")
    if not problem:
        assert (call.name, call.arguments) == ("calculator", {"expression": "2*3"})


def test_a_turn_goes_on_from_the_tokens_that_were_written(tokenizer):
    prompt = ids_of(tokenizer, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    answer = {"role": "tool", "name": "calculator", "content": "6"}
    shown = (
        "\n<|im_start|>user\n<tool_response>\n6\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    for end, missing in (("<|im_end|>", ""), ("", "<|im_end|>")):
        action = ids_of(tokenizer, f"<tool_call>{INSIDE}</tool_call>{end}")
        given = reader_of(tokenizer).between(prompt, action, [answer])
        assert tokenizer.decode(given) == missing + shown


def test_what_does_not_suit_is_refused(tokenizer):
    tools = (tool_of(calculator).schema,)
    with pytest.raises(UserError, match=r"knows no 'qwen9'; it has .*qwen3"):
        Chat(renderer="qwen9").for_tools(tools, tokenizer)
    with pytest.raises(UserError, match="knows no family of the model"):
        Chat(renderer="auto").for_tools(tools, tokenizer)
    with pytest.raises(UserError, match="does not suit the model"):
        Chat(renderer="gpt-oss").for_tools(tools, tokenizer)
    with pytest.raises(UserError, match=r"leave data\.call_form out"):
        Chat(renderer="qwen3", call_form="json").for_tools(tools, tokenizer)
    with pytest.raises(UserError, match="the task has none"):
        Chat(renderer="qwen3").for_tools((), tokenizer)


def test_a_run_reads_calls_with_it(tmp_path, strop):
    broken, closed = INSIDE[:-2], {"</tool_call>": 1.0}
    then = {"<tool_call>": {INSIDE: 0.7, broken: 0.3}, INSIDE: closed, broken: closed}
    answers = {"<tool_call>": 0.8, "Answer: 6": 0.2}
    model = save_scripted(tmp_path / "model", answers, TEMPLATE, SPECIAL, then)
    result = strop(
        "train", "grpo", "--model", model, "data.task=tool_questions", "data.renderer=qwen3",
        "data.task_config={'kinds': ['arithmetic'], 'max_turns': 3}", "training.steps=1",
        "evaluation.every=0", "sampling.num_prompts=2", "data.train_size=4",
        "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert line["tools/ok"] > line["tools/invalid_json"] > 0
