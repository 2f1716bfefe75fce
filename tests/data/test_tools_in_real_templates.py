"""Chat templates of published models, as in TRL: how they show tools, calls and answers."""

from importlib.resources import files

import pytest
from scripted_model import scripted_tokenizer

from strop.data.chat import Chat
from strop.environments.tool_box import calculator
from strop.environments.tools import tool_of
from strop.parts.rollout._observation_tokens import observation_ids
from strop.support.errors import UserError

TEMPLATES = files("trl") / "chat_templates"
TOOLS = (tool_of(calculator).schema,)
# The form of calls; whether the template shows the tools; the role in which they answer.
READ = {
    "qwen2_5": ("hermes", True, "<tool_response>\n6\n</tool_response>"),
    "qwen3": ("hermes", True, "<tool_response>\n6\n</tool_response>"),
    "qwen3_instruct_2507": ("hermes", True, "<tool_response>\n6\n</tool_response>"),
    "llama3_1": ("llama3", True, "<|start_header_id|>ipython<|end_header_id|>\n\n"),
    "llama3_2": ("llama3", True, "<|start_header_id|>ipython<|end_header_id|>\n\n"),
    "gemma3": ("text", False, "<start_of_turn>user\nresult: 6"),
    "phi3": ("text", False, "<|user|>\nresult: 6"),
    "qwen2_5_vl": ("text", False, "<|im_start|>tool\n6"),
}
REFUSED = ("qwen3_5_think", "qwen3_8", "gemma4", "glm4moe", "gptoss", "lfm2", "nemotron_3_nano")


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


@pytest.mark.parametrize("name", REFUSED)
def test_other_forms_are_refused(name):
    with pytest.raises(UserError, match="asks for calls in a form that strop does not read"):
        Chat().for_tools(TOOLS, tokenizer_of(name))


@pytest.mark.parametrize("name", ["gemma4", "gptoss"])
def test_a_template_that_would_hide_what_tools_answer_is_refused(name):
    with pytest.raises(UserError, match="does not show what a tool answers"):
        Chat(call_form="json").for_tools(TOOLS, tokenizer_of(name))
