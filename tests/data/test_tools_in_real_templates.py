"""Chat templates of published models, as in TRL: how they show tools, calls and answers."""

from importlib.resources import files

import pytest
from scripted_model import scripted_tokenizer

from strop.data.chat import Chat
from strop.data.observation_tokens import observation_ids
from strop.data.tool_calls import read_action
from strop.environments.tool_box import calculator
from strop.environments.tools import tool_of
from strop.support.errors import UserError

TEMPLATES = files("trl") / "chat_templates"
TOOLS = (tool_of(calculator).schema,)
# The form of calls; whether the template shows the tools; the role in which they answer.
READ = {
    "qwen2_5": ("hermes", True, "<tool_response>\n6\n</tool_response>"),
    "qwen3": ("hermes", True, "<tool_response>\n6\n</tool_response>"),
    "qwen3_instruct_2507": ("hermes", True, "<tool_response>\n6\n</tool_response>"),
    "qwen3_5_think": ("qwen3_coder", True, "<tool_response>\n6\n</tool_response>"),
    "qwen3_8": ("qwen3_coder", True, "<tool_response>\n6\n</tool_response>"),
    "nemotron_3_nano": ("qwen3_coder", True, "<tool_response>\n6\n</tool_response>"),
    "glm4moe": ("glm45", True, "<|observation|>\n<tool_response>\n6\n</tool_response>"),
    "llama3_1": ("llama3", True, "<|start_header_id|>ipython<|end_header_id|>\n\n"),
    "llama3_2": ("llama3", True, "<|start_header_id|>ipython<|end_header_id|>\n\n"),
    "gemma3": ("text", False, "<start_of_turn>user\nresult: 6"),
    "phi3": ("text", False, "<|user|>\nresult: 6"),
    "qwen2_5_vl": ("text", False, "<|im_start|>tool\n6"),
}
REFUSED = ("gemma4", "gptoss", "lfm2")


def tokenizer_of(name):
    made = scripted_tokenizer(("x",), (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
    made.bos_token = "<pad>"
    return made


@pytest.mark.parametrize("name", READ)
def test_forms_and_answers(name):
    tokenizer = tokenizer_of(name)
    form, shown, answer = READ[name]
    chat = Chat().for_tools(TOOLS, tokenizer)
    assert (chat.call_form, "tools" in chat.template, not chat.tools_text) == (form, shown, shown)
    message = {"role": "tool", "name": "calculator", "content": "6"}
    given = [message] if chat.as_tool else []
    ids = observation_ids(tokenizer, "result: 6\n", True, -1, chat.template, given)
    assert answer in tokenizer.decode(ids)
    question = [{"role": "user", "content": "hi"}]
    opening = tokenizer.apply_chat_template(question, tokenize=False, **chat.template)
    assert ("calculator" in opening) == shown


ARGUMENTS = {
    "text": 'a\n<b> "c"',
    "number": 3,
    "flag": True,
    "list": [1, "x"],
    "object": {"k": None},
}


@pytest.mark.parametrize("name", [name for name, (form, shown, _) in READ.items() if shown])
def test_a_call_that_a_template_writes_is_read_as_it_was(name):
    tokenizer, form = tokenizer_of(name), READ[name][0]
    types = ("string", "integer", "boolean", "array", "object")
    properties = {key: {"type": kind} for key, kind in zip(ARGUMENTS, types, strict=True)}
    parameters = {"type": "object", "properties": properties}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    call = {"type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}
    messages = [{"role": "user", "content": "hi"},
                {"role": "assistant", "content": "", "tool_calls": [call]}]  # fmt: skip
    shown = tokenizer.apply_chat_template(messages, tokenize=False, tools=[tool])
    before = tokenizer.apply_chat_template(messages[:1], tokenize=False, tools=[tool])
    written = shown[len(before) :].rpartition("<|end_header_id|>")[2].split("<|eot_id|>")[0]
    (found,) = read_action(written, form, [tool]).calls
    assert (found.name, found.arguments, found.problem) == ("f", ARGUMENTS, "")


@pytest.mark.parametrize("name", REFUSED)
def test_other_forms_are_refused(name):
    with pytest.raises(UserError, match="asks for calls in a form that strop does not read"):
        Chat().for_tools(TOOLS, tokenizer_of(name))


@pytest.mark.parametrize("name", ["gemma4", "gptoss"])
def test_a_template_that_would_hide_what_tools_answer_is_refused(name):
    with pytest.raises(UserError, match="does not show what a tool answers"):
        Chat(call_form="json").for_tools(TOOLS, tokenizer_of(name))
