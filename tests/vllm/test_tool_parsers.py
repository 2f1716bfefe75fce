"""Calls of tools are read as by vLLM's own parsers, which give an argument's text the same type."""

import json
import subprocess
from pathlib import Path

import pytest
from servers import PYTHON

from strop.data.tool_calls import read_action

TYPES = {
    "text": {"type": "string"}, "integer": {"type": "integer"}, "number": {"type": "number"},
    "flag": {"type": "boolean"}, "list": {"type": "array"}, "object": {"type": "object"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "untyped": {"description": "x"},
    "either": {"type": ["string", "integer"]}, "choice": {"enum": ["a", 1]},
}  # fmt: skip
VALUES = {
    "text": ["a b", "12", "null", "x\ny", '{"a": 1}', " lead"], "integer": ["3", "-1", "x"],
    "number": ["1.5", "2", "1e3"], "flag": ["true", "False"], "list": ['[1, "x"]'],
    "object": ['{"k": null}'], "maybe": ["null", "s"], "untyped": ["5", "q"],
    "either": ["5", "q"], "choice": ["a", "1"], "unknown": ["1"],
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": TYPES}}}]  # fmt: skip
WRITTEN = {
    "qwen3_coder": "\n<function=f>\n<parameter={}>\n{}\n</parameter>\n</function>\n",
    "glm45": "f\n<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
}


@pytest.mark.parametrize("form", WRITTEN)
def test_ours_and_theirs(form):
    texts = [
        f"I call.\n<tool_call>{WRITTEN[form].format(name, value)}</tool_call>"
        for name, values in VALUES.items() for value in values
    ]  # fmt: skip
    given = json.dumps({"form": form, "tools": TOOLS, "texts": texts})
    program = Path(__file__).with_name("inside") / "parse_calls.py"
    done = subprocess.run(
        [PYTHON, str(program)], input=given, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = [
        [[call.name, call.arguments] for call in read_action(text, form, TOOLS).calls]
        for text in texts
    ]
    assert ours == theirs
