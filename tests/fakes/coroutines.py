"""Engines on which coroutines run in tests, and their results."""

import functools

from fakes.engine import TableEngine, by_last_token
from fakes.models import VOCAB, tiny
from strop.engines.asynchronous import asynchronous, run
from strop.engines.base import Account, Answer, Engine, Request
from strop.engines.local.engine import LocalEngine

# After any of 24 tokens three of the next ones, so that answers differ and stop strings occur.
TABLE = {
    i: [0.4 if j == (i + 1) % VOCAB else 0.3 if j in ((i + 2) % VOCAB, (i + 5) % VOCAB) else 0.0
        for j in range(VOCAB)]
    for i in range(VOCAB)
}  # fmt: skip


def text(ids) -> str:
    return "".join(chr(97 + id) for id in ids)


def table(**options) -> TableEngine:
    return TableEngine(by_last_token(TABLE), text=text, **options)


@functools.cache
def model():
    return tiny("qwen3", context=128)


def local(num_slots: int = 8, **options) -> LocalEngine:
    return LocalEngine(model(), decode=text, num_slots=num_slots, **options)


def requests(number: int, max_tokens: int = 6, **fields) -> list[Request]:
    return [Request((3, 4 + n % 3), max_tokens + n % 4, seed=n, **fields) for n in range(number)]


def go(engine: Engine, coroutine, account: Account | None = None):
    return run(asynchronous(engine), coroutine, account or Account())


def told(answers: list[Answer]) -> list[tuple]:
    return [(answer.ids, answer.ended) for answer in answers]


def check_closed(engine: Engine) -> None:
    """Nothing is left of what was begun."""
    book = asynchronous(engine)
    assert not any([book.queue, book.running, book.prefixes, book.resting, book.outer])
    assert not book.busy()
    assert not (engine.rows if isinstance(engine, TableEngine) else engine.known)
