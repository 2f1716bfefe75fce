"""A policy that answers as a test wants, served in this process, and a tokenizer of bytes."""

import asyncio
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from strop.data.chat import Chat
from strop.serving.protocol import ModelAnswer, ModelCall
from strop.serving.server import PolicyServer

CONTEXT = 500
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for each in messages %}{{ each.role }}: {{ each.content }}"
    "{% for call in each.tool_calls %}<{{ call.function.name }} {{ call.function.arguments.x }}>"
    "{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking %}<think>{% endif %}{% endif %}"
)


@functools.cache
def by_bytes(template: str = TEMPLATE) -> Any:
    """A token for each byte, and one for the end."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"]
    known = {letter: number for number, letter in enumerate(letters)}
    made = Tokenizer(models.BPE(known, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<end>",
        pad_token="<end>",
        clean_up_tokenization_spaces=False,
    )
    if template:
        found.chat_template = template
    return found


class Speaker:
    """A backend that gives its texts in turn, with their end, and keeps the calls.

    fails: raised in place of an answer, the first ones first. hold: an answer waits for it.
    """

    def __init__(self, *texts: str) -> None:
        self.texts, self.calls, self.cancelled = texts or ("ab",), list[ModelCall](), 0
        self.fails: list[BaseException | None] = []
        self.hold: asyncio.Event | None = None
        self.columns: dict[str, Any] = {}

    async def say(self, call: ModelCall) -> list[ModelAnswer]:
        self.calls.append(call)
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        if self.hold is not None:
            try:
                await self.hold.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        text = self.texts[(len(self.calls) - 1) % len(self.texts)]
        return [self.answer(text, number) for number in range(call.num)]

    def answer(self, text: str, number: int) -> ModelAnswer:
        tokenizer = by_bytes()
        ids = (*tokenizer(text)["input_ids"], tokenizer.eos_token_id)
        size = range(len(ids))
        told = {"log_probs": tuple(-0.5 - n / 8 - number for n in size),
                "versions": tuple(3 + (n > 1) + number for n in size)}  # fmt: skip
        return ModelAnswer(ids, **(told | self.columns))


@contextmanager
def served(
    backend: Any, chat: Chat | None = None, template: str = TEMPLATE, **options: Any
) -> Iterator[PolicyServer]:
    """A server of the backend, under the name `policy`."""
    given = {"max_model_len": CONTEXT, **options}
    with PolicyServer(
        by_bytes(template), chat or Chat(), backend, model="policy", **given
    ) as server:  # fmt: skip
        yield server


@contextmanager
def asking(server: PolicyServer, **headers: str) -> Iterator[httpx2.Client]:
    """A plain client with the server's key."""
    known = {"authorization": f"Bearer {server.key}", **headers}
    with httpx2.Client(base_url=server.url, headers=known, timeout=60) as client:
        yield client


def message(text: str = "hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]
