"""OpenEnv's protocol against a fake server that fails; tests/openenv has a real one."""

import asyncio
import http
import json
import os
import threading
from collections import Counter

import pytest
from websockets.asyncio.server import serve

from strop.environments.adapters.openenv import _check_fields
from strop.environments.base import source_of
from strop.environments.episodes import CallLimits, Episodes
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.support.http import loop_of

SCHEMA = {"action": {"properties": {"text": {"type": "string"}, "metadata": {"type": "object"}}}}


class Server:
    """Counts the actions of a session; `faults` are what happens to the next messages of a kind."""

    def __init__(self):
        self.faults, self.heard = {}, []
        self.schema = SCHEMA
        self.given = {}  # parts of every answer that are not the usual ones
        self.full = False  # says so to whoever comes, and closes
        self.is_closed = threading.Event()  # a session's last message has been read

    async def session(self, connection):
        turns = 0
        if self.full:
            told = {"code": "CAPACITY_REACHED", "message": "no room"}
            await connection.send(json.dumps({"type": "error", "data": told}))
            return
        async for message in connection:
            said = json.loads(message)
            self.heard.append(said)
            fault = self.faults.get(said["type"], [])
            fault = fault.pop(0) if fault else ""
            if fault == "drop":
                return
            if fault in ("no JSON", "[]"):
                await connection.send(fault)
                continue
            if fault == "hang":
                await connection.wait_closed()
                return
            if fault:
                told = {"code": fault, "message": "no"}
                await connection.send(json.dumps({"type": "error", "data": told}))
                continue
            if said["type"] == "close":
                self.is_closed.set()
                return
            turns = turns + 1 if said["type"] == "step" else 0
            seen = {"text": f"{said['data'].get('seed', '')}:{turns}", "metadata": {}}
            told = {"observation": seen, "reward": float(turns == 3), "done": turns == 3}
            told |= self.given
            await connection.send(json.dumps({"type": "observation", "data": told}))

    def plain(self, connection, request):
        if request.path == "/schema":
            return connection.respond(http.HTTPStatus.OK, json.dumps(self.schema))
        return None


@pytest.fixture
def server():
    made, loop, ready = Server(), asyncio.new_event_loop(), threading.Event()
    stopped = asyncio.Event()

    async def run():
        async with serve(made.session, "127.0.0.1", 0, process_request=made.plain) as running:
            made.url = f"ws://127.0.0.1:{running.sockets[0].getsockname()[1]}"
            ready.set()
            await stopped.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    ready.wait()
    yield made
    loop.call_soon_threadsafe(stopped.set)
    thread.join()
    loop.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("strop.environments.episodes.FIRST_WAIT_SECONDS", 0.001)


def started(server, seeds=(5,), retries=2, seconds=20.0, **options):
    source = source_of(f"openenv:{server.url}", options)
    return Episodes(source, seeds, limits=CallLimits(retries, seconds))


def test_the_words_of_an_episode(server):
    episodes = started(server)
    (shown,) = episodes.reset()
    assert shown.text == "5:0"
    found = [episodes.step([0], [word])[0] for word in "abc"]
    assert [(o.text, o.reward, o.done) for o in found] == [
        (":1", 0.0, False), (":2", 0.0, False), ("", 1.0, True),
    ]  # fmt: skip
    assert server.heard[:2] == [
        {"type": "reset", "data": {"seed": 5}}, {"type": "step", "data": {"text": "a"}},
    ]  # fmt: skip
    episodes.close()
    assert server.is_closed.wait(10)  # the handshake of closing may end before it is read
    assert server.heard[-1] == {"type": "close"}


def test_a_server_that_closes_at_once_is_heard(server):
    """What it says is read, though it has closed before anything could be asked of it."""
    episodes = started(server, retries=0)
    server.full = True
    environment = episodes.environments[0]
    connect = environment.connect

    async def late(*given, **options):
        session = await connect(*given, **options)
        await session.wait_closed()
        return session

    environment.connect = late
    (shown,) = episodes.reset()
    assert shown.exit is Exit.START_FAILED
    assert "CAPACITY_REACHED" in shown.why
    episodes.close()


def test_a_lost_session_is_begun_again_and_played_up_to_where_it_was(server):
    episodes = started(server, fields={"speed": 2})
    episodes.reset()
    episodes.step([0], ["a"])
    server.faults["step"] = ["drop"]
    (shown,) = episodes.step([0], ["b"])
    assert (shown.text, shown.exit) == (":2", None)
    kinds = Counter(each["type"] for each in server.heard)
    assert kinds == {"reset": 2, "step": 4}  # a, b; then a and b again
    assert server.heard[-1]["data"] == {"speed": 2, "text": "b"}
    episodes.close()


@pytest.mark.parametrize(
    ("fault", "exit"),
    [
        ("drop", Exit.UNREACHABLE),
        ("CAPACITY_REACHED", Exit.UNREACHABLE),
        ("EXECUTION_ERROR", Exit.ENVIRONMENT_CRASH),
        ("SESSION_ERROR", Exit.ENVIRONMENT_CRASH),
        ("UNKNOWN_TYPE", Exit.ENVIRONMENT_CRASH),
    ],
)
def test_an_error_ends_the_episode_by_its_code(server, fault, exit):
    episodes = started(server, (1, 2))
    episodes.reset()
    server.faults["step"] = [fault] * 3
    (failed,) = episodes.step([0], ["a"])
    assert (failed.exit, failed.exit.is_policys) == (exit, False)
    assert (fault if fault != "drop" else "LostSession") in failed.why
    server.faults["step"] = []
    assert episodes.step([1], ["a"])[0].exit is None
    episodes.close()


@pytest.mark.parametrize(("answer", "why"), [("no JSON", "JSONDecodeError"), ("[]", "'list'")])
def test_an_answer_that_cannot_be_read_is_no_fault_of_the_action(server, answer, why):
    episodes = started(server)
    episodes.reset()
    server.faults["step"] = [answer]
    (failed,) = episodes.step([0], ["a"])
    assert (failed.exit, failed.reward) == (Exit.ENVIRONMENT_CRASH, 0.0)
    assert why in failed.why
    assert episodes.environments[0].session is None
    episodes.close()


def test_an_action_that_is_not_taken_uses_up_its_turn(server):
    episodes = started(server, illegal_reward=-0.5)
    episodes.reset()
    server.faults["step"] = ["VALIDATION_ERROR"]
    (refused,) = episodes.step([0], ["a"])
    assert (refused.valid, refused.reward, refused.done) == (False, -0.5, False)
    assert episodes.step([0], ["b"])[0].text == ":1"
    episodes.close()


def test_capacity_at_the_start_is_waited_for_and_then_told(server):
    server.faults["reset"] = ["CAPACITY_REACHED"]
    (shown,) = (well := started(server, retries=1)).reset()
    assert shown.text == "5:0"
    server.faults["reset"] = ["CAPACITY_REACHED"] * 2
    (failed,) = (full := started(server, retries=1)).reset()
    assert failed.exit is Exit.START_FAILED
    assert "CAPACITY_REACHED" in failed.why
    assert "max_concurrent_envs" in failed.why
    well.close()
    full.close()


def test_a_step_that_hangs_is_the_policys_and_its_connection_goes(server):
    episodes = started(server, (1, 2), seconds=2.0)
    episodes.reset()
    server.faults["step"] = ["hang"]
    (late,) = episodes.step([0], ["a"])
    assert (late.exit, late.done) == (Exit.TIMEOUT, True)
    assert episodes.environments[0].session is None
    assert episodes.step([1], ["a"])[0].exit is None
    episodes.close()


def test_nobody_there(server):
    url = server.url[:-1] + "x"
    source = source_of(f"openenv:{url}", {"action": "text"})
    (failed,) = (episodes := Episodes(source, (1,))).reset()
    episodes.close()
    assert failed.exit is Exit.START_FAILED
    assert "openenv" in failed.why


@pytest.mark.parametrize(
    ("properties", "options", "message"),
    [
        ({"a": {"type": "string"}, "b": {"type": "string"}}, {}, "has the fields a, b: say in"),
        ({"n": {"type": "integer"}}, {}, "has the fields n: say in"),
        ({"text": {"type": "string"}}, {"text": "words"}, "has no field 'words'; it has text, m"),
    ],
)
def test_what_cannot_be_found_is_asked_for(server, properties, options, message):
    server.schema = {"action": {"properties": properties}}
    (failed,) = (episodes := started(server, **options)).reset()
    assert message in failed.why
    episodes.close()


@pytest.mark.parametrize("options", [{"action": "words"}, {"fields": {"words": 1}}])
def test_a_field_that_every_action_would_be_refused_for_is_named(server, options):
    (shown,) = (episodes := started(server, **options)).reset()  # the schema allows other fields
    assert shown.text == "5:0"
    episodes.close()
    closed = {**SCHEMA["action"], "additionalProperties": False}
    server.schema = {"action": closed}
    _check_fields.cache_clear()
    (failed,) = (episodes := started(server, **options)).reset()
    assert failed.exit is Exit.START_FAILED
    assert "has no field 'words'; it has text, metadata: correct action or fields" in failed.why
    assert failed.why.endswith("in data.task_config")  # which says all that there is to do
    episodes.close()


def test_an_episode_that_is_over_at_its_start_is_not_played(server):
    server.given = {"done": True}
    (failed,) = (episodes := started(server)).reset()
    assert failed.exit is Exit.START_FAILED
    assert "began with an episode that is over" in failed.why
    episodes.close()


def test_an_optional_text_that_is_missing_shows_nothing(server):
    (shown,) = (episodes := started(server)).reset()
    server.given = {"observation": {"text": None, "metadata": {}}}
    (later,) = episodes.step([0], ["a"])
    assert (shown.text, later.text) == ("5:0", "")
    episodes.close()


def test_all_of_an_observation(server):
    (shown,) = (episodes := started(server, text="*")).reset()
    assert json.loads(shown.text) == {"text": "5:0", "metadata": {}}
    episodes.close()


@pytest.mark.parametrize("depth", [500, 100_000])
def test_deep_json_is_an_action_that_is_not_taken(depth):
    world = source_of("openenv:http://127.0.0.1:9", {"action": "*"}).make()
    shown = asyncio.run(world.step('{"a":' * depth + "1" + "}" * depth))
    assert (shown.valid, shown.reward) == (False, -1.0)
    assert "not taken: no JSON" in shown.text


def test_addresses_and_options_are_checked():
    for url, options, message in [
        ("nowhere", {}, "no address of a server"),
        ("http://h:1", {"max_turns": 0}, "max_turns must be a whole number"),
        ("http://h:1", {"turns": 1}, "refuses data.task_config"),
    ]:
        with pytest.raises(UserError, match=message):
            source_of(f"openenv:{url}", options).make()
    with pytest.raises(UserError, match="give openenv:URL"):
        source_of("openenv:")
    nobody = source_of("openenv:http://127.0.0.1:9")
    (failed,) = (episodes := Episodes(nobody, (5,), limits=CallLimits(0, 20.0))).reset()
    assert "no OpenEnv server answers at http://127.0.0.1:9, start it before the run" in failed.why
    episodes.close()


def test_its_connections_are_those_of_one_loop(server):
    """Steps may be awaited in any loop, and a close in none."""
    episodes = started(server)
    episodes.reset()

    async def two():
        await episodes.step_alone(0, "a")
        return await episodes.step_alone(0, "b")

    assert asyncio.run(two()).text == ":2"
    assert asyncio.run(episodes.step_alone(0, "c")).done
    assert loop_of(os.getpid()).is_running()
    episodes.close()
