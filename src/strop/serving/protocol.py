"""The protocol between a server of the policy and its backend: calls, answers, two refusals."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from strop.engines.base import Answer
from strop.traces.records import TurnRecord

Route = Literal["chat", "completions", "generate"]


@dataclass(frozen=True)
class ModelCall:
    """One call of the model, read and checked: the prompt's tokens, and how to draw.

    None: the client did not set it. top_p 1, top_k -1 and min_p 0 cut nothing. messages and tools
    are as received; they are empty where the prompt came as text or tokens.
    """

    route: Route
    prompt_ids: tuple[int, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_strings: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()  # beside those at which the policy always stops
    seed: int | None = None
    num: int = 1  # answers
    num_top: int = 0  # likeliest tokens to report for each token
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    key: str = field(default="", repr=False)  # the client's bearer token; no log may show it
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class ModelAnswer:
    """One answer to a call; every column is as long as `ids`, or empty where it is unknown.

    log_probs are those of the distribution that was drawn from, 0 for greedy draws;
    model_log_probs are the model's at the temperature (greedy: at 1), without top_p and the like.
    All are in nats. A stop token that was drawn is the last one of `ids`.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()  # of the weights that drew each token
    entropies: tuple[float, ...] = ()
    model_log_probs: tuple[float, ...] = ()
    ended: Literal["stop", "length"] = "stop"
    top: tuple[Mapping[int, float], ...] = ()  # likeliest tokens, where the call asks for them

    @classmethod
    def of(cls, answer: Answer) -> ModelAnswer:
        """Convert an engine's answer; columns that lack a token's value are left out."""
        events = answer.events
        return cls(
            answer.ids,
            _known(value for event in events for value in event.logp),
            tuple(event.version for event in events for _ in event.ids),
            _known(value for event in events for value in event.values_of("entropy")),
            _known(value for event in events for value in event.values_of("logp_model")),
            "length" if answer.ended == "length" else "stop",
            tuple(each for event in events for each in event.top),
        )

    def record(self, call: ModelCall) -> TurnRecord:
        """The call with this answer, as a record of a rollout."""
        return TurnRecord(
            call.prompt_ids,
            self.ids,
            self.log_probs,
            versions=self.versions,
            entropies=self.entropies,
            model_log_probs=self.model_log_probs,
            ended=self.ended,
        )


def _known(values: Iterable[float]) -> tuple[float, ...]:
    found = tuple(values)
    return () if any(map(math.isnan, found)) else found


class Busy(Exception):
    """The policy takes no call now, for example while it loads new weights.

    The client receives status 429 and the number of seconds after which to retry.
    """

    def __init__(
        self, retry_after: float = 1.0, text: str = "the policy takes new weights"
    ) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Refused(Exception):
    """A call that is not answered: an HTTP status with the words, code and field of OpenAI."""

    def __init__(self, status: int, text: str, code: str = "", param: str = "") -> None:
        super().__init__(text)
        self.status, self.code, self.param = status, code, param


class Backend(Protocol):
    """Samples answers for a server."""

    async def say(self, call: ModelCall) -> list[ModelAnswer]:
        """Draw the `call.num` answers; awaited in the server's event loop.

        It is cancelled where the client disconnects. Raises Busy, Refused, and UserError for the
        client's mistakes.
        """
        ...
