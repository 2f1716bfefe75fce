"""The chat template and the configuration of examples/ that show tools to Gemma."""

from itertools import pairwise
from pathlib import Path

import pytest
from scripted_model import scripted_tokenizer

from strop.data.chat import Chat
from strop.data.observation_tokens import observation_ids
from strop.data.tool_calls import read_action
from strop.environments.tool_box import calculator
from strop.environments.tools import tool_of
from strop.training.settings import config

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.fixture
def tokenizer():
    template = (EXAMPLES / "gemma_with_tools.jinja").read_text(encoding="utf-8")
    made = scripted_tokenizer(("x",), template)
    made.bos_token = "<pad>"
    return made


@pytest.fixture
def chat(tokenizer):
    return Chat(template={"examples": SHOWN}).for_tools((tool_of(calculator).schema,), tokenizer)


def test_tools_stand_before_the_examples_and_these_before_the_question(tokenizer, chat):
    assert (chat.call_form, chat.as_tool, chat.tools_text) == ("hermes", True, "")
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    text = tokenizer.apply_chat_template(
        said, add_generation_prompt=True, tokenize=False, **chat.template
    )
    first, *others = text.split("<start_of_turn>")[1:]
    assert first.startswith("user\ns\nTools:\ncalculator(expression): Calculates")
    assert "\n  expression (string): numbers" in first
    assert first.endswith("</tool_call>\n\na\n<end_of_turn>\n")
    assert others == ["model\nb\n<end_of_turn>\n", "user\nq\n<end_of_turn>\n", "model\n"]


def test_an_answer_is_a_turn_of_the_tool_after_the_end_of_the_line(tokenizer, chat):
    answer = [{"role": "tool", "name": "calculator", "content": "6"}]
    end_of_line = tokenizer.convert_tokens_to_ids("\n")
    ids = observation_ids(tokenizer, "result: 6\n", True, end_of_line, chat.template, answer)
    assert tokenizer.decode(ids) == (
        "<end_of_turn>\n<start_of_turn>tool\n6\n<end_of_turn>\n<start_of_turn>model\n"
    )


def test_a_message_with_calls_is_written_in_the_form_that_is_read(tokenizer, chat):
    call = {"name": "calculator", "arguments": {"expression": "2*3"}}
    said = [SHOWN[0], {"role": "assistant", "tool_calls": [{"function": call}]}]
    text = tokenizer.apply_chat_template(said, tokenize=False, **chat.template)
    written = text.split("<start_of_turn>model\n")[-1].removesuffix("\n<end_of_turn>\n")
    (found,) = read_action(written, chat.call_form).calls
    assert (found.name, found.arguments, found.problem) == (*call.values(), "")


def test_the_configuration_is_valid_and_its_examples_call_the_tool():
    run = config.load(EXAMPLES / "gemma_with_tools.toml")
    assert EXAMPLES.parent / run.model.chat_template == EXAMPLES / "gemma_with_tools.jinja"
    examples = run.data.chat_template_kwargs["examples"]
    calculated = 0
    for message, after in pairwise(examples):
        for call in read_action(message["content"], "hermes").calls:
            assert after == {"role": "tool", "content": calculator(**call.arguments)}
            calculated += 1
    assert calculated == 2
