"""Tools of a real MCP server: a process per episode, time limits, and failures."""

import os
import shlex
import sys
import time
from pathlib import Path

import pytest
from commands import lives

from strop.data.tool_calls import ParsedCall
from strop.environments import Exit
from strop.environments.base import EnvironmentSource
from strop.environments.built_in.tool_questions import ToolQuestions
from strop.environments.episodes import Episodes
from strop.environments.mcp_tools import McpTools
from strop.environments.tools import answer_call
from strop.support.errors import UserError

SERVER = Path(__file__).with_name("mcp_server.py")
COMMAND = f"{shlex.quote(sys.executable)} {shlex.quote(str(SERVER))}"
ENV = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}


@pytest.fixture
def server():
    made = McpTools(COMMAND, ENV)
    yield made
    made.end()


def call(server, name, seconds=20.0, **arguments):
    answer = answer_call(ParsedCall(name, arguments), server.tools, seconds, 1000)
    return answer.status, answer.text


def test_a_tool_may_have_an_argument_of_the_name_of_the_limit(server):
    answer = answer_call(ParsedCall("wait", {"seconds": 3}), server.tools, 20.0, 1000)
    assert (answer.status, answer.text) == ("ok", "wait 3 s")


def test_calls_limits_crashes_and_the_end_of_all_that_it_started(server):
    add = server.tools[0]
    assert (add.name, add.schema["function"]["description"]) == ("add", "Adds two numbers.")
    assert set(add.parameters["properties"]) == {"a", "b"}
    assert call(server, "add", a=1, b=2) == ("ok", "3")
    assert call(server, "add", a=1, b="x")[0] == "wrong_arguments"
    assert call(server, "remember", text="x") == ("ok", "x")
    assert call(server, "remember", text="y") == ("ok", "x,y")
    assert call(server, "garbage") == ("ok", "after garbage")
    child = int(call(server, "child")[1])
    assert lives(child)
    started = time.monotonic()
    late = "error: timeout: the call took over 0.3 s"
    assert call(server, "hang", seconds=0.3) == ("timeout", late)
    assert call(server, "no_answer_but_garbage", seconds=0.3)[0] == "timeout"
    assert time.monotonic() - started < 10
    server.end()
    assert not lives(child)
    assert call(server, "remember", text="z") == ("ok", "z")  # another episode, another process
    told = "error: the server has ended (code 3): it is over"
    assert call(server, "crash") == ("failed", told)
    assert call(server, "add", a=1, b=2) == ("failed", told)
    server.end()
    assert call(server, "add", a=1, b=2) == ("ok", "3")


def test_a_server_that_does_not_begin_is_no_fault_of_the_policy(tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "What is 1+2?", "answer": "3"}\n')
    options = {"questions": str(file), "mcp": COMMAND, "mcp_env": ENV}
    episodes = Episodes(EnvironmentSource("tool_questions", options), [0])
    episodes.reset()
    made = episodes.environments[0]
    assert isinstance(made, ToolQuestions)
    assert made.server is not None
    made.server.command = (sys.executable, "-c", "import sys; sys.exit(5)")
    (shown,) = episodes.step([0], ['call add {"a": 1, "b": 2}'])
    assert shown.exit is Exit.ENVIRONMENT_CRASH
    assert "the server has ended (code 5)" in shown.why


def test_servers_that_do_not_begin():
    with pytest.raises(UserError, match=r"the MCP server no-such-command"):
        McpTools("no-such-command")
    with pytest.raises(UserError, match=r"has ended \(code 5\): no luck"):
        McpTools(f"{sys.executable} -c 'import sys; sys.stderr.write(\"no luck\"); sys.exit(5)'")
    with pytest.raises(UserError, match="command of a server"):
        McpTools(" ")


def test_an_environment_with_a_server(tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "What is 1+2?", "answer": "3"}\n')
    made = ToolQuestions(questions=str(file), mcp=COMMAND, mcp_env=ENV)
    made.reset(0)
    assert made.step('call add {"a": 1, "b": 2}').text == "result: 3\n"
    assert made.step('call remember {"text": "a"}').text == "result: a\n"
    assert made.step("3").reward == 1.0
    made.reset(0)
    assert made.step('call remember {"text": "b"}').text == "result: b\n"
    made.close()
