"""Tool calls in the formats of models: parsed, or named by their error, without raising."""

import json
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.data.tool_calls import FORMS, Call, form_of, read_action, spoken, tagged_calls

GOOD = {
    "hermes": 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    "qwen3_coder": "I add.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm45": "I add.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "llama3": '<|python_tag|>{"name": "add", "parameters": {"a": 1}}',
    "json": '```json\n{"name": "add", "arguments": {"a": 1}}\n```',
    "text": 'I add.\ncall add {"a": 1}\n',
}


TAGGED = ("hermes", "qwen3_coder", "glm45")


def schema_of(name, **properties):
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"properties": properties}},
    }


ADD = schema_of("add", a={"type": "integer"})


def problems(text, form):
    return [(call.name, call.problem) for call in read_action(text, form).calls]


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_each_form(form):
    action = read_action(GOOD[form], form, [ADD])
    assert action == GOOD[form]
    assert [(c.name, c.arguments, c.problem) for c in action.calls] == [("add", {"a": 1}, "")]
    assert action.content == ("I add." if form in (*TAGGED, "text") else "")
    assert action.readable_calls == [Call("add", {"a": 1})]
    assert pickle.loads(pickle.dumps(action)).calls == action.calls
    answer = read_action("<think>call add {}</think> It is 3.\n", form)
    assert (answer.calls, answer.content) == ((), "It is 3.")


def test_several_calls():
    two = '<tool_call>{"name": "f"}</tool_call> and <tool_call>{"name": "g"}</tool_call>.'
    assert problems(two, "hermes") == [("f", ""), ("g", "")]
    assert read_action(two, "hermes").content == "and ."
    semicolon = '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'
    assert problems(semicolon, "llama3") == [("f", ""), ("g", "")]
    assert problems('[{"name": "f"}, {"name": "g", "arguments": "{}"}]', "json") == [
        ("f", ""), ("g", ""),
    ]  # fmt: skip
    for end in ("\n", "\r\n"):
        assert problems(f"call f{end}call g {{}}{end}", "text") == [("f", ""), ("g", "")]


@pytest.mark.parametrize(
    ("form", "text", "problem"),
    [
        ("hermes", '<tool_call>{"name": "f",}</tool_call>', "invalid_json"),
        ("hermes", '<tool_call>{"name": "f"}', "unclosed_block"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "missing_name"),
        ("hermes", '<tool_call>["f"]</tool_call>', "missing_name"),
        ("qwen3_coder", '<tool_call>{"name": "f"}</tool_call>', "malformed_structure"),
        ("qwen3_coder", "<tool_call><function=f>x</function></tool_call>", "malformed_structure"),
        ("qwen3_coder", "<tool_call><function=></function></tool_call>", "missing_name"),
        ("qwen3_coder", "<tool_call><function=f>", "unclosed_block"),
        ("glm45", "<tool_call>f<arg_key>a</arg_key>1</tool_call>", "malformed_structure"),
        ("glm45", "<tool_call>\n</tool_call>", "missing_name"),
        ("llama3", '<|python_tag|>print("x")', "invalid_json"),
        ("llama3", '{"name": "f", "parameters": {"a": ', "unclosed_block"),
        ("llama3", '{"parameters": {}}', "missing_name"),
        ("json", '{"name": "f" "arguments": {}}', "invalid_json"),
        ("json", '{"name": "f', "unclosed_block"),
        ("json", "{}", "missing_name"),
        ("text", 'call f {"a": x}', "invalid_json"),
        ("text", 'call f {"a": ', "unclosed_block"),
        ("text", 'call {"a": 1}', "missing_name"),
    ],
)
def test_what_is_wrong_is_named(form, text, problem):
    (call,) = read_action(text, form).calls
    assert call.problem == problem
    assert call.detail


def test_a_call_after_a_broken_one_is_read():
    text = '<tool_call>{"name": "f"}<tool_call>{"name": "g"}</tool_call>'
    assert problems(text, "hermes") == [("", "unclosed_block"), ("g", "")]
    assert problems('call f {"a": x}\ncall g {}', "text") == [("f", "invalid_json"), ("g", "")]


def test_thoughts_say_nothing():
    assert spoken("<think>a</think>b<think>c") == "b"
    assert spoken("the template opened it</think>b") == "b"
    assert spoken("b") == "b"


@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("hermes", '{"name": "write", "arguments": {"text": "<think>a</think></tool_call>"}}'),
        ("qwen3_coder", "<function=write>\n<parameter=text>\n<think>a</think>\n</parameter>\n"
         "</function>"),
        ("glm45", "write\n<arg_key>text</arg_key>\n<arg_value><think>a</think></arg_value>"),
    ],
)  # fmt: skip
def test_what_is_written_in_an_argument_is_no_thought(form, call):
    text = f"<think>so <tool_call>{{}}</tool_call></think>Now <tool_call>{call}</tool_call>!"
    action = read_action(text, form)
    (read,) = action.calls
    assert read.name == "write"
    assert read.arguments["text"].removesuffix("</tool_call>") == "<think>a</think>"
    assert action.content == "Now !"


def test_the_form_of_a_chat_template():
    assert form_of("... <tool_call>\n{{ '{\"name\": ' }} ...") == "hermes"
    assert form_of("<tool_call>\n<function=example>") == "qwen3_coder"
    assert form_of("<tool_call>{name}\n<arg_key>") == "glm45"
    assert form_of("{{ '<|python_tag|>' }}") == "llama3"
    assert form_of("[TOOL_CALLS]") == ""
    assert form_of("{{ tools | tojson }}") == ""


VALUES = {
    "text": {"type": "string"}, "word": {"enum": ["true", "b"]}, "number": {"type": "integer"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {"description": "a value"},
    "either": {"type": ["string", "integer"]},
    "flag": {"type": "boolean"}, "list": {"type": ["array", "null"]}, "odd": {"type": 5},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("text", "12", "12"), ("text", "\n a\n\n", "\n a\n\n"), ("text", "null", "null"),
        ("text", "</parameter> </arg_value> x", "</parameter> </arg_value> x"),
        ("word", "true", "true"), ("number", "12", 12), ("number", "twelve", "twelve"),
        ("number", "9" * 5000, "9" * 5000), ("maybe", "None", None), ("maybe", "no", "no"),
        ("any", '{"a": [1]}', '{"a": [1]}'), ("either", "12", 12), ("either", "1.5", "1.5"),
        ("text", '"a"', '"a"'), ("flag", "True", True),
        ("list", "[1, \"x\"]", [1, "x"]), ("list", "null", None), ("odd", "1", "1"),
        ("unknown", "1", "1"),
    ],
)  # fmt: skip
def test_a_schema_gives_a_text_its_type(name, written, value):
    tools = [{"type": "x"}, schema_of("g", number={"type": "string"}), schema_of("f", **VALUES)]
    for form, text in (
        ("qwen3_coder", f"<function=f>\n<parameter={name}>\n{written}\n</parameter>\n</function>"),
        ("glm45", f"f\n<arg_key>{name}</arg_key>\n<arg_value>{written}</arg_value>\n"),
    ):
        (call,) = read_action(f"<tool_call>{text}</tool_call>", form, tools).calls
        assert (call.name, call.arguments, call.problem) == ("f", {name: value}, "")
        alone = [tool["function"] for tool in tools[1:]]
        assert read_action(f"<tool_call>{text}</tool_call>", form, alone).calls == (call,)
        (untold,) = read_action(f"<tool_call>{text}</tool_call>", form).calls
        assert untold.arguments == {name: written}


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>",
     "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>",
     "call ", "f ", "{", "}", '"name": ', '"f"', "[", "]", ",", "\n",
     "```json\n", "<|python_tag|>", "9" * 5000, ";"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from(sorted(FORMS)))
def test_nothing_raises(text, form):
    for call in read_action(text, form, [ADD, schema_of("f", a={"type": "object"})]).calls:
        assert call.problem or call.name


def test_deep_json_is_a_problem():
    for form, start in (("hermes", "<tool_call>"), ("json", ""), ("text", "call f ")):
        text = start + '{"a":' * 100_000 + ("</tool_call>" if form == "hermes" else "")
        (call,) = read_action(text, form).calls
        assert call.problem in ("invalid_json", "unclosed_block")


def test_a_number_of_thousands_of_digits_is_a_problem():
    object = '{"name": "f", "arguments": {"a": ' + "1" * 5000 + "}}"
    for form, text in (("llama3", object), ("json", f"[{object}]"),
                       ("hermes", f"<tool_call>{object}</tool_call>"),
                       ("text", f"call f {object}")):  # fmt: skip
        (call,) = read_action(text, form).calls
        assert call.problem == "invalid_json"


def test_half_a_surrogate_pair_is_written_as_an_escape():
    """A tool may answer with what it was given, and no tokenizer takes such a text."""
    half, inner = '"a\\ud83d"', '"{\\"k\\": \\"a\\\\ud83d\\"}"'
    for inside in (f'{{"k": {half}}}', inner):
        object = f'{{"name": {half}, "arguments": {inside}}}'
        for form, text in (("llama3", object), ("json", f"[{object}]"),
                           ("hermes", f"<tool_call>{object}</tool_call>")):  # fmt: skip
            (call,) = read_action(text, form).calls
            assert (call.name, call.arguments) == ("a\\ud83d", {"k": "a\\ud83d"})
    (call,) = read_action(f'call f {{{half}: {half}, "b": "\\ud83d\\ude00"}}', "text").calls
    assert call.arguments == {"a\\ud83d": "a\\ud83d", "b": "\U0001f600"}


@pytest.mark.parametrize("inside", ["</tool_call>", "<tool_call>", "<tool_call>{}</tool_call> x"])
def test_tags_inside_a_json_text_belong_to_it(inside):
    block = json.dumps({"name": "write", "arguments": {"text": inside}})
    text = f"Now <tool_call>\n{block}\n</tool_call> and <tool_call>{block}</tool_call>."
    action = read_action(text, "hermes")
    assert [(c.name, c.arguments) for c in action.calls] == [("write", {"text": inside})] * 2
    assert action.content == "Now  and ."
    assert tagged_calls(text) == action.readable_calls


def test_an_unreadable_block_ends_at_its_own_tag():
    text = '<tool_call>{"name": "f"</tool_call><tool_call>{"name": "g"}</tool_call>'
    assert problems(text, "hermes") == [("", "invalid_json"), ("g", "")]
    text = '<tool_call>{"name": "f"} <tool_call>{"name": "g"}</tool_call> end'
    assert problems(text, "hermes") == [("", "unclosed_block"), ("g", "")]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_call>{" * 60_000),
        ("glm45", f"<tool_call>f<arg_key>{'</arg_key><arg_value>' * 12_000}</tool_call>"),
    ],
)
def test_a_policy_that_repeats_a_tag_does_not_hold_up_its_run(form, text):
    begun = time.process_time()
    assert {call.name for call in read_action(text, form).calls} == {""}
    assert time.process_time() - begun < 4.0
