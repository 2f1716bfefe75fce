"""Rows of conversations behind chat templates of published models, as in TRL."""

import json
from importlib.resources import files

import pyarrow.parquet
import pytest
from datasets import Dataset
from scripted_model import scripted_tokenizer

from strop.api.inputs import files_of
from strop.data.chat import Chat
from strop.data.encode import encode_prompt
from strop.data.given_answers import encode_answer
from strop.data.prompts import Prompt
from strop.environments.data_files import load_data
from strop.environments.tool_box import calculator
from strop.environments.tools import tool_of
from strop.support.errors import UserError
from strop.training.services.bounds import Bounds

TEMPLATES = files("trl") / "chat_templates"


QUESTION = [("system", "Be brief."), ("user", "1+2?")]


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


def test_a_message_of_calls_alone_needs_no_content(tmp_path):
    user, call, _ = with_call({"a": 1})
    bare = {name: call[name] for name in ("role", "tool_calls")}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": [user, bare, user, bare]}))
    (row,) = load_data(path).train
    assert row.prompt == [user, call, user]
    assert "<tool_call>" in tokenizer_of("qwen2_5").decode(
        encode_answer(row, "completion", tokenizer_of("qwen2_5"))
    )


def test_parts_of_text_are_one_text(tmp_path):
    def rows(*contents):
        said = [{"role": role, "content": content}
                for role, content in zip(("user", "assistant"), contents, strict=True)]  # fmt: skip
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps({"messages": said}))
        return load_data(path).train

    def part(text):
        return {"type": "text", "text": text}

    parts, plain = rows([part("a"), part("b")], [part("c")]), rows("ab", "c")
    assert parts[0].prompt == plain[0].prompt
    encoded = [
        encode_answer(one[0], "completion", tokenizer_of("qwen2_5")) for one in (parts, plain)
    ]
    assert encoded[0] == encoded[1]
    with pytest.raises(UserError, match="parts of the type text"):
        rows([part("a"), {"type": "image"}], [part("c")])


@pytest.mark.parametrize(
    "given", [None, lambda table: table, lambda table: Dataset.from_list(table.to_pylist())]
)
def test_a_table_adds_nothing_to_calls_and_tools(tmp_path, given):
    """Arrow gives every object the keys of all."""
    conversations = [with_call({"a": 1}), with_call({"b": 2})]
    schemas = [{"function": {"name": "add", "parameters": {key: {"type": "integer"}}}}
               for key in ("a", "b")]  # fmt: skip
    rows = [{"prompt": said, "answer": {"x": None, "y": said[0]["content"]}, "tools": [schema]}
            for said, schema in zip(conversations, schemas, strict=True)]  # fmt: skip
    path, table = tmp_path / "rows.parquet", pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, path)
    (file,) = files_of(given(table), tmp_path / "made.jsonl") if given else (path,)
    found = load_data(file).train
    assert [row.prompt[1]["tool_calls"] for row in found] == [
        said[1]["tool_calls"] for said in conversations
    ]
    assert [row.columns["tools"] for row in found] == [[schema] for schema in schemas]
    assert found[0].columns["answer"] == {"x": None, "y": "1+2?"}


@pytest.mark.parametrize("form", [list, json.dumps])
def test_the_tools_of_a_row_are_shown(form):
    tools = [tool_of(calculator).schema]
    tokenizer, row = tokenizer_of("qwen2_5"), {"tools": form(tools), "completion": "3"}
    prompt = Chat().put(Prompt(0, said(*QUESTION), row), tokenizer)
    wanted = tokenizer.apply_chat_template(
        said(*QUESTION), tools=tools, tokenize=False, add_generation_prompt=True
    )
    assert "calculator" in wanted
    assert tokenizer.decode(encode_prompt(prompt, tokenizer)) == wanted
    assert tokenizer.decode(encode_answer(prompt, "completion", tokenizer)).startswith("3<|im_end")
    assert Bounds(tokenizer).prompt(prompt) is None
    alone = tuple(each["function"] for each in tools)
    named = Prompt(0, said(*QUESTION), {"tools": form(alone)})
    assert Chat().put(named, tokenizer).tools == alone
    for other in (["calculator"], [{"name": "calculator"}]):
        named = Prompt(0, said(*QUESTION), {"tools": form(other)})
        assert Chat().put(named, tokenizer).tools == ()
    for chat, name in ((Chat(template={"tools": tools}), "qwen2_5"), (Chat(), "gemma3")):
        assert chat.put(prompt, tokenizer_of(name)).tools == ()


def test_a_template_that_fails_in_any_way_is_a_users_error():
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = "{{ 1 // 0 }}"
    with pytest.raises(UserError, match=r"refuses the messages of a.jsonl row 1: .*by zero"):
        encode_prompt(Prompt(0, said(("user", "hi")), {}, "a.jsonl row 1"), tokenizer)


# The text behind the beginning of an answer, up to its end.
WRITTEN = {
    "qwen2_5": "3<|im_end|>",
    "qwen3": "<think>\n\n</think>\n\n3<|im_end|>",
    "qwen3_5_think": "\n</think>\n\n3<|im_end|>",
    "qwen3_instruct_2507": "3<|im_end|>",
    "llama3_1": "3<|eot_id|>",
    "gptoss": "<|channel|>final<|message|>3<|return|>",
    "glm4moe": "\n<think></think>\n3",
    "cohere2": "3<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    "phi3": "3<|end|>",
    "gemma3": "3<end_of_turn>",
}
ENDS = ["<|im_end|>", "<|eot_id|>", "<|return|>", "<|end|>", "<end_of_turn>", "<eos>",
        "<|END_OF_TURN_TOKEN|>"]  # fmt: skip


def answered(name, answer, messages=None, template=None):
    tokenizer = tokenizer_of(name)
    tokenizer.add_special_tokens({"additional_special_tokens": ENDS[:-1]})
    if name == "cohere2":
        tokenizer.add_special_tokens({"additional_special_tokens": ENDS[-1:]})
    stops = tokenizer.convert_tokens_to_ids(ENDS)
    prompt = Prompt(0, messages or said(*QUESTION), {"completion": answer}, "a.jsonl row 1")
    return tokenizer.decode(encode_answer(prompt, "completion", tokenizer, template or {}, stops))


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("answer", ["3", said(("assistant", "3"))])
def test_an_answer_is_what_the_template_writes_behind_the_prompt(name, answer):
    assert answered(name, answer) == WRITTEN[name]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("qwen3", "<think>\n1, 2, 3\n</think>\n\n3<|im_end|>"),
        ("qwen3_5_think", "1, 2, 3\n</think>\n\n3<|im_end|>"),
        ("deepseek_r1_distill", "1, 2, 3\n</think>\n\n3"),
    ],
)
def test_a_thought_is_opened_once(name, shown):
    assert answered(name, "<think>\n1, 2, 3\n</think>\n\n3") == shown


def test_thoughts_and_calls_in_fields_of_their_own_are_trained():
    thought = {"role": "assistant", "content": "3", "reasoning_content": "1, 2, 3"}
    assert answered("qwen3", [thought]) == "<think>\n1, 2, 3\n</think>\n\n3<|im_end|>"
    (_, call, _) = with_call('{"a": 1}')
    assert answered("qwen2_5", [call]).startswith('<tool_call>\n{"name": "add", "arguments": {"a"')


@pytest.mark.parametrize(
    ("name", "message", "why"),
    [
        ("qwen2_5", {"content": "3", "reasoning_content": "1"}, "has reasoning_content, and the"),
        ("phi3", with_call({"a": 1}, "Wait.")[1], "has tool_calls, and the chat template does not"),
        ("qwen3", {**with_call({})[1], "content": [{"type": "image"}]}, "must be text"),
        ("deepseek_r1_distill", {"content": "3"}, "has no </think>"),
    ],
)
def test_an_answer_that_the_template_does_not_show_is_refused(name, message, why):
    with pytest.raises(UserError, match=f"the completion of a.jsonl row 1 {why}"):
        answered(name, [{"role": "assistant", **message}])


def test_an_answer_with_its_end_has_no_second_one():
    assert answered("qwen2_5", "3<|im_end|>\n") == "3<|im_end|>"
