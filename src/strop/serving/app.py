"""The routes of a policy's server, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from strop.serving import anthropic_messages, openai_responses
from strop.serving.answers import CallResponse, respond
from strop.serving.fields import Fields, refuse
from strop.serving.intake import Intake
from strop.serving.protocol import Backend, Busy, ModelAnswer, Refused, Route
from strop.serving.reading import Reading, Wanted
from strop.serving.replays import Attempt, Replays
from strop.support.errors import UserError, needs_extra

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")
Handler: TypeAlias = "Callable[[Request], Awaitable[Response]]"
Knows = Callable[[str], bool]
MOST_BYTES = 2**26  # of a body
KEEP_ALIVE_SECONDS = 10.0  # silence after which a stream sends a keep-alive comment
WRONG_KEY = "a wrong key: give the server's, which an agent of a run finds as OPENAI_API_KEY"
VERSION_HEADER = "x-weights-version"
KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class Form(NamedTuple):
    """How a path reads a body and writes the answer. read: converts a body to that of the route.
    named: the events of its streams have their types as names, and no [DONE] after them.
    """

    route: Route
    read: Callable[[Any], Any] = lambda body: body
    write: Callable[[CallResponse], dict[str, Any]] = CallResponse.body
    events: Callable[[CallResponse], Iterator[dict[str, Any]]] = CallResponse.events
    named: bool = False


FORMS = {
    "/v1/chat/completions": Form("chat"),
    "/v1/completions": Form("completions"),
    "/v1/responses": Form("chat", openai_responses.chat_body, openai_responses.body,
                          openai_responses.events, named=True),
    "/v1/messages": Form("chat", anthropic_messages.chat_body, anthropic_messages.body,
                         anthropic_messages.events, named=True),
    "/inference/v1/generate": Form("generate"),
}  # fmt: skip


class Gone(Exception):
    """The client has closed its connection."""


def check_installed() -> None:
    """Raise UserError where the packages of a server are missing."""
    with needs_extra("a server of the policy needs Starlette and uvicorn", "serve"):
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401


class Service:
    """Answers requests: reads them, lets the backend draw answers, and writes these.

    keys: whether a bearer token is known. intake: receives posted rollouts; None: they are refused.
    """

    def __init__(
        self, tokenizer: Any, backend: Backend, reading: Reading, keys: Knows,
        intake: Intake | None = None,
    ) -> None:  # fmt: skip
        self.tokenizer, self.backend, self.reading, self.keys = tokenizer, backend, reading, keys
        self.intake = intake
        self.replays = Replays(_size)
        self.created = int(time.time())
        self.ending = False

    def app(self) -> Starlette:
        """The application, which answers an error of any route in the form of OpenAI."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route as Path

        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/health", self.health),
            ("GET", "/v1/models", self.models),
            *(("POST", path, self.at(path)) for path in FORMS),
            ("POST", "/v1/messages/count_tokens", self.count_tokens),
            ("GET", "/v1/models/{name:path}", self.models),
        ]
        if self.intake is not None:
            handlers += [
                ("POST", "/v1/rollouts", self.post_rollouts),
                ("GET", "/v1/rollouts", self.rollouts),
            ]
        return Starlette(
            routes=[Path(path, _answering(each), methods=[how]) for how, path, each in handlers],
            exception_handlers={HTTPException: _no_route},
        )

    def end(self) -> None:
        """Stop answering and cancel answers in progress. Called in the loop."""
        self.ending = True
        self.replays.cancel()

    async def health(self, request: Request) -> Response:
        """Report that the server is up."""
        return _json({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """List the only model, with its context length, or return it where the path names it."""
        self._key(request)
        if wanted := request.path_params.get("name"):
            self.reading.check_model(wanted)
        name, length = self.reading.model, self.reading.max_model_len
        listed = {"id": name, "object": "model", "created": self.created, "owned_by": "strop"}
        found = {**listed, "max_model_len": length}
        return _json(found if wanted else {"object": "list", "data": [found]})

    def at(self, path: str) -> Handler:
        """The handler of a POST to one of the paths that sample."""
        form = FORMS[path]

        async def answer(request: Request) -> Response:
            key = self._key(request)
            body = await _body(request)
            wanted = self.reading.read(form.route, form.read(_parsed(body)), key)
            attempt = Attempt(key, path, body, *_named(request))
            if wanted.stream:
                return _stream(request, form, lambda: self._result(attempt, wanted))
            response, replayed = await _while_connected(request, self._result(attempt, wanted))
            return _json(form.write(response), headers=_headers(response, replayed))

        return answer

    async def count_tokens(self, request: Request) -> Response:
        """The number of tokens of a prompt in the form of Anthropic's Messages."""
        key = self._key(request)
        body = anthropic_messages.chat_body(_parsed(await _body(request)))
        call = self.reading.read("chat", body, key, checks_room=False).call
        return _json({"input_tokens": len(call.prompt_ids)})

    async def post_rollouts(self, request: Request) -> Response:
        """Accept rollouts that have ended."""
        assert self.intake is not None
        self._key(request)
        rows, whole = _rollouts(_parsed(await _body(request)))
        name, _ = _named(request)
        if self.ending:
            raise Refused(503, "the run takes no more rollouts")
        added = await asyncio.to_thread(self.intake.add, rows, name, whole)
        return _json({**self.intake.status(), "data": added})

    async def rollouts(self, request: Request) -> Response:
        """Report which rollouts the run waits for."""
        assert self.intake is not None
        self._key(request)
        return _json(self.intake.status())

    async def _result(self, attempt: Attempt, wanted: Wanted) -> tuple[CallResponse, bool]:
        """The backend's answers to a call, new or cached."""
        try:
            (call, answers), replayed = await self.replays.answer(
                attempt, lambda: self._draw(wanted)
            )
        except asyncio.CancelledError:
            if self.ending:
                raise Refused(503, "the server ends") from None
            raise
        if replayed:  # a cached answer keeps its id
            wanted = call
        model, form = self.reading.model, self.reading.prompts.call_form
        return respond(wanted, answers, self.tokenizer, model, int(time.time()), form), replayed

    async def _draw(self, wanted: Wanted) -> tuple[Wanted, list[ModelAnswer]]:
        if self.ending:
            raise Refused(503, "the server ends")
        answers = await self.backend.say(wanted.call)
        if len(answers) != wanted.call.num:
            raise RuntimeError(f"{len(answers)} answers came to a call for {wanted.call.num}")
        return wanted, answers

    def _key(self, request: Request) -> str:
        """The bearer token of a request. Raises Refused where it is not known."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        if not kind:  # Anthropic's clients
            kind, key = "bearer", request.headers.get("x-api-key", "")
        key = key.strip()
        if kind.lower() != "bearer" or not self.keys(key):
            text = "send the server's key: Authorization: Bearer KEY" if not key else WRONG_KEY
            raise Refused(401, text, "invalid_api_key")
        return key


def _rollouts(body: Any) -> tuple[list[Any], bool]:
    """The rollouts of a body, and whether they complete their groups. A body is one rollout, a
    list, or an object with several of one group. Raises Refused.
    """
    if isinstance(body, list):
        if not body:
            raise refuse("the list is empty: give at least one rollout")
        return body, False
    if not isinstance(body, dict) or "rollouts" not in body:
        return [body], False
    fields = Fields(body)
    rows, whole, group = fields.objects("rollouts"), fields.flag("complete"), fields.take("group")
    if group is not None and not isinstance(group, str):
        raise fields.wrong("group", "a name, the same for all rollouts of a task")
    fields.end()
    if not rows:
        raise refuse("rollouts is empty: give at least one", "rollouts")
    named = {} if group is None else {"group": group}
    return [{**named, **row} for row in rows], whole


def _size(drawn: tuple[Wanted, list[ModelAnswer]]) -> int:
    """The number of tokens of a call and its answers."""
    wanted, answers = drawn
    return len(wanted.call.prompt_ids) + sum(len(answer.ids) for answer in answers)


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await the work; cancel it and raise Gone once the client closes the connection."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _stream(
    request: Request, form: Form, work: Callable[[], Awaitable[tuple[CallResponse, bool]]]
) -> Response:
    """Server-sent events: keep-alive comments until all is drawn, then the whole answer.

    The client receives an error as a status while nothing was sent yet, and later as an event.
    """
    from starlette.responses import Response, StreamingResponse

    class Events(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            task = asyncio.ensure_future(_while_connected(request, work()))
            try:
                await asyncio.wait((task,), timeout=KEEP_ALIVE_SECONDS)
                response: Response
                if task.done() and (error := task.exception()) is not None:
                    response = _error(error)
                else:
                    headers = _headers(*task.result()) if task.done() else {}
                    response = StreamingResponse(
                        _events(task, form),
                        media_type="text/event-stream",
                        headers={"cache-control": "no-store", **headers},
                    )
                await response(scope, _never, send)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    return Events()


async def _never() -> Any:
    """Stands in for the client's messages; another task watches whether it is connected."""
    await asyncio.Event().wait()


async def _events(task: asyncio.Task[tuple[CallResponse, bool]], form: Form) -> AsyncIterator[str]:
    while not task.done():
        yield ": the policy is at work\n\n"
        await asyncio.wait((task,), timeout=KEEP_ALIVE_SECONDS)
    if (error := task.exception()) is not None:
        if not isinstance(error, Gone):
            yield _event(_error_body(_as_refused(error)), form)
        return
    try:
        for each in form.events(task.result()[0]):
            yield _event(each, form)
        if not form.named:
            yield "data: [DONE]\n\n"
    except ValueError as wrong:  # a number that is not finite
        yield _event(_error_body(_as_refused(wrong)), form)


def _event(content: dict[str, Any], form: Form) -> str:
    name = f"event: {content['type']}\n" if form.named else ""
    return f"{name}data: {_text(content)}\n\n"


def _text(content: Any) -> str:
    """Encode as JSON; raises ValueError for a number that is not finite."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


async def _body(request: Request) -> bytes:
    """The body of a request. Raises Refused where it is too large."""
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > MOST_BYTES:
            raise refuse(f"a body of more than {MOST_BYTES} bytes", status=413)
    return bytes(found)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise refuse("the body is not JSON") from error


def _named(request: Request) -> tuple[str, int]:
    """The client's name for the request, and how often it has tried before."""
    again = request.headers.get("x-stainless-retry-count", "")
    number = int(again) if again.isascii() and again.isdigit() and len(again) < 10 else 0
    return request.headers.get("idempotency-key", ""), number


def _headers(response: CallResponse, replayed: bool) -> dict[str, str]:
    found = {} if response.version is None else {VERSION_HEADER: str(response.version)}
    return {**found, **({"idempotent-replayed": "true"} if replayed else {})}


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(_text(body), status, headers, "application/json")


def _as_refused(error: BaseException) -> Refused:
    """The status and message for an error; an internal error is printed on the server."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, Gone):
        return Refused(499, "the client has gone")  # no client reads this
    if isinstance(error, Busy):
        return Refused(429, str(error), "rate_limit_exceeded")
    if isinstance(error, UserError):
        return refuse(str(error))
    print("the server of the policy could not answer:", file=sys.stderr)
    traceback.print_exception(error)
    return Refused(500, "the policy failed; its server says why where it runs", "internal_error")


def _error_body(refused: Refused) -> dict[str, Any]:
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {
            "message": str(refused),
            "type": KINDS.get(refused.status, kind),
            "param": refused.param or None,
            "code": refused.code or None,
            "details": {"error_code": refused.code or None},  # which Anthropic's clients read
        },
    }


def _error(error: BaseException) -> Response:
    headers = {}
    if isinstance(error, Busy):
        headers["retry-after"] = str(max(math.ceil(error.retry_after), 1))
    refused = _as_refused(error)
    if refused.status == 401:
        headers["www-authenticate"] = "Bearer"
    return _json(_error_body(refused), refused.status, headers)


def _answering(handler: Handler) -> Handler:
    """The handler, whose errors become answers."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            return _error(error)

    return answer


async def _no_route(request: Request, error: Any) -> Response:
    """Answer an unknown path or method, in the same form as all errors."""
    status = int(error.status_code)
    there = ", ".join(dict.fromkeys(each.path for each in request.app.routes))
    text = {
        404: f"there is no such route: there are {there}",
        405: "this route takes another method",
    }
    return _error(Refused(status, text.get(status, str(error.detail))))
