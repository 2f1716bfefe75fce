"""An environment that an OpenEnv server plays: `data.task=openenv:http://127.0.0.1:8000`.

One connection (a WebSocket) is one session. The client sends a message `reset`, `step` or `close`,
and the server answers with an `observation` or an `error` with a code. A session that is lost is
restarted from its seed and replayed to where it was.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from strop.environments.base import Environment, Observation, check_number
from strop.support.errors import UserError, check_value, needs_extra
from strop.support.exits import Exit
from strop.support.http import Failed, Http, loop_of

# Usual names of an observation's text, in order of preference.
TEXTS = ("text", "prompt", "observation", "message", "content", "output", "response", "question")
UNREAD = ("VALIDATION_ERROR", "INVALID_JSON")  # the server does not take the action
CLOSE_SECONDS = 5.0


class ServerError(Exception):
    """An error of the server, with its code; an error of capacity is transient."""

    def __init__(self, code: str, message: str) -> None:
        advice = ": let it have more (max_concurrent_envs)" if code == "CAPACITY_REACHED" else ""
        super().__init__(f"{code}: {message}{advice}")
        self.code, self.transient = code, code == "CAPACITY_REACHED"


class LostSession(ConnectionError):
    """The connection ended, and the session with it."""


class Openenv(Environment):
    """Options: text (the observation's field that is shown; `*`: all of it as JSON; found unless
    given), action (the field of the action that takes the text; `*`: the text is the action, as
    JSON; found unless given), fields (further ones of every action), reset (further ones of every
    reset), max_turns, max_tokens, reward_range, illegal_reward (of an action that the server does
    not take, which uses up its turn).

    An episode that ends without any reward has no score.
    """

    def __init__(
        self,
        url: str,
        text: str = "",
        action: str = "",
        fields: Mapping[str, Any] | None = None,
        reset: Mapping[str, Any] | None = None,
        max_turns: int = 8,
        max_tokens: int = 256,
        reward_range: tuple[float, float] | None = None,
        illegal_reward: float = -1.0,
    ) -> None:
        check_number("openenv: max_turns", max_turns, 1)
        check_number("openenv: max_tokens", max_tokens, 1)
        check_number("openenv: illegal_reward", illegal_reward, float("-inf"), whole=False)
        self.connect = _connect_of_websockets(url)
        scheme, _, rest = url.rstrip("/").partition("://")
        secure = scheme in ("https", "wss")
        if scheme not in ("http", "https", "ws", "wss") or not rest:
            raise UserError(f"openenv: {url!r} is no address of a server: http://HOST:PORT")
        self.place, self.http = f"ws{'s' * secure}://{rest}/ws", f"http{'s' * secure}://{rest}"
        self.text, self.field = text, action
        self.fields, self.beginning = dict(fields or {}), dict(reset or {})
        self.max_turns, self.max_tokens = max_turns, max_tokens
        self.illegal_reward = illegal_reward
        self.reward_range = None if reward_range is None else (reward_range[0], reward_range[1])
        self.session: Any = None
        self.seed, self.actions, self.is_scored = 0, list[dict[str, Any]](), False

    async def reset(self, seed: int) -> Observation:  # type: ignore[override]
        """Begin the episode of a seed, in the open session or a new one."""
        self.seed, self.actions, self.is_scored = seed, [], False
        return await _elsewhere(self._reset())

    async def step(self, action: str) -> Observation:  # type: ignore[override]
        """Send an action; one that the server cannot read uses up a turn."""
        if self.field == "*":
            try:
                given = json.loads(action)
                check_value(given, "the action")  # a deep one could not be sent
            except (ValueError, RecursionError) as error:
                return self._refused(f"no JSON: {error}")
            if not isinstance(given, dict):
                return self._refused("no JSON object")
        else:
            given = {self.field: action}
        return await _elsewhere(self._step({**self.fields, **given}))

    def close(self) -> None:
        """Close the session."""
        if self.session is not None:
            gone = asyncio.run_coroutine_threadsafe(self._leave(), loop_of(os.getpid()))
            gone.result(CLOSE_SECONDS)

    async def _reset(self) -> Observation:
        if not self.field:
            self.field = await asyncio.to_thread(_action_field, self.http)
        reply = await self._ask("reset", {"seed": self.seed, **self.beginning})
        named = tuple(name for name in (self.field, *self.fields) if name != "*")
        await asyncio.to_thread(_check_fields, self.http, named)
        seen = reply["observation"]
        self.text = self.text or _text_field(seen)
        return Observation(self._shown(seen), done=bool(reply.get("done")))

    async def _step(self, action: dict[str, Any]) -> Observation:
        if self.session is None:  # it was lost
            await self._play_again()
        try:
            reply = await self._ask("step", action)
        except ServerError as error:
            if error.code in UNREAD:
                return self._refused(str(error))
            raise
        self.actions.append(action)
        reward, done = reply.get("reward"), bool(reply.get("done"))
        self.is_scored |= reward is not None
        if done and not self.is_scored:
            why = f"{self.place} ended the episode without a reward"
            return Observation("", done=True, exit=Exit.DECLARED, why=why)
        text = "" if done else self._shown(reply["observation"])
        return Observation(text, float(reward or 0.0), done)

    async def _play_again(self) -> None:
        """Open a new session and replay the episode up to the same place."""
        await self._ask("reset", {"seed": self.seed, **self.beginning})
        for action in self.actions:
            await self._ask("step", action)

    def _refused(self, why: str) -> Observation:
        return Observation(f"The action was not taken: {why}\n", self.illegal_reward, valid=False)

    def _shown(self, seen: Mapping[str, Any]) -> str:
        if self.text == "*":
            return json.dumps(seen, ensure_ascii=False)
        if self.text not in seen:
            raise UserError(
                f"openenv: an observation of {self.place} has no field {self.text!r}; it has "
                f"{', '.join(seen)}: give one of them as text in data.task_config"
            )
        found = seen[self.text]
        if found is None:  # an optional field that says nothing this time
            return ""
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the reply's data. Raises ServerError, LostSession, OSError."""
        from websockets.exceptions import ConnectionClosed, InvalidHandshake

        session, self.session = self.session, None  # a session that fails here is not used again
        try:
            if session is None:
                session = await self.connect(self.place, max_size=None, ping_timeout=None)
            with contextlib.suppress(ConnectionClosed):  # an earlier message can still be received
                await session.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(await session.recv())
            payload = answer.get("data", {})
        except (ConnectionClosed, InvalidHandshake) as error:
            raise LostSession(f"{self.place}: {error}") from error
        except BaseException:
            if session is not None:
                session.transport.abort()
            raise
        if answer.get("type") == "error":
            failed = ServerError(
                str(payload.get("code")), f"{self.place}: {payload.get('message')}"
            )
            if failed.code in ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"):
                await session.close()  # the server has no session for it
            else:
                self.session = session
            raise failed
        self.session = session
        return payload

    async def _leave(self) -> None:
        from websockets.exceptions import ConnectionClosed

        session, self.session = self.session, None
        try:
            await session.send(json.dumps({"type": "close"}))
        except ConnectionClosed:
            return
        await session.close()


async def _elsewhere(call: Any) -> Observation:
    """Await a call in the loop of this process, to which its connections belong."""
    running = asyncio.run_coroutine_threadsafe(call, loop_of(os.getpid()))
    return await asyncio.wrap_future(running)


def _connect_of_websockets(url: str) -> Any:
    with needs_extra(f"environment openenv:{url} needs the package websockets", "openenv"):
        from websockets.asyncio.client import connect
    return connect


def _action_of(place: str) -> Mapping[str, Any]:
    """The schema of an action, by the server's /schema. Raises UserError and Failed."""
    client = Http(30.0)
    try:
        return client.ask(f"{place}/schema", read=json.loads)["action"]
    except (Failed, ValueError, KeyError, TypeError) as error:
        if isinstance(error, Failed) and error.again:
            why = f"no OpenEnv server answers at {place}, start it before the run ({error})"
            raise Failed(why, True, error.after, error.status) from error
        raise UserError(
            f"openenv: {place}/schema does not say what an action is ({error}): give its field as "
            "action in data.task_config"
        ) from error
    finally:
        client.close()


@cache
def _action_field(place: str) -> str:
    """The only text field of an action. Raises UserError and Failed."""
    schema = _action_of(place)
    known = {
        name: each for name, each in schema.get("properties", {}).items() if name != "metadata"
    }
    texts = [name for name, each in known.items() if each.get("type") == "string"]
    needed = [name for name in texts if name in schema.get("required", ())]
    for found in (needed, texts):
        if len(found) == 1:
            return found[0]
    raise UserError(
        f"openenv: an action of {place} has the fields {', '.join(known) or 'of no name'}: say in "
        "data.task_config which one takes the text (action), and what the others are (fields); "
        "action='*' takes the whole action as JSON"
    )


@cache
def _check_fields(place: str, names: tuple[str, ...]) -> None:
    """Raise UserError for a field that the server would refuse in every action."""
    try:
        schema = _action_of(place)
    except (UserError, Failed):  # it does not say what an action is
        return
    known = schema.get("properties", {})
    for name in names:
        if name not in known and schema.get("additionalProperties") is False:
            raise UserError(
                f"openenv: an action of {place} has no field {name!r}; it has {', '.join(known)}: "
                "correct action or fields in data.task_config"
            )


def _text_field(seen: Mapping[str, Any]) -> str:
    """The field of an observation that is its text: the first with a usual name, or else the only
    one.
    """
    texts = [name for name, value in seen.items() if isinstance(value, str)]
    usual = [name for name in TEXTS if name in texts]
    return (usual or (texts if len(texts) == 1 else ["*"]))[0]
