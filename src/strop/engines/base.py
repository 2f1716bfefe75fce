"""What every engine takes and gives: Request, Event, Finished and the Engine protocol.

Nothing here imports torch, so strategies and their tests can be read and run without a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from strop.support.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from strop.engines.passes import Passes

Rule = Callable[["Tensor"], "Tensor"]
Ended = Literal["", "paused", "stop", "length", "aborted", "failed"]
# What an engine can tell of the tokens that it draws, beside their log-probabilities.
STATISTICS = frozenset({"entropy", "logp_model", "top"})
# fork: it goes on from another request. rules: it applies those of a request. pause: it stops after
# so many tokens. weights: it takes new ones.
WAITING = 8  # requests that wait for each that can run; more are not taken before some of them do
CAPABILITIES = frozenset({"fork", "rules", "pause", "weights"}) | STATISTICS


@dataclass(frozen=True)
class Request:
    """One sequence to continue.

    A draw depends only on (seed, position), where position counts all tokens before the drawn one,
    prompt included; so a result does not depend on the slot or on what else is in the batch, and
    two requests with equal ids and seed give the same tokens. Members of a group need own seeds.

    temperature 0 is greedy: the most likely token that the rules allow (the lowest id on ties).
    Raises UserError for an empty prompt or a field out of range.
    """

    ids: tuple[int, ...]  # prompt token ids, at least one
    max_tokens: int  # most new tokens, >= 1
    temperature: float = 1.0  # >= 0
    rules: tuple[Rule, ...] = ()  # hashable, picklable; each maps scaled logits [N, V] to [N, V]
    num_top: int = 0  # most likely tokens to report, before temperature and rules
    pause_every: int = 0  # pause after so many new tokens; 0: run to the end
    stop_ids: tuple[int, ...] = ()  # a drawn one ends the request and is its last token
    stop_strings: tuple[str, ...] = ()  # end once the text of the new tokens holds one of them
    seed: int = 0  # any integer; its lowest 64 bits count
    want: frozenset[str] = frozenset()  # of "entropy", "logp_model", "top" ("top" needs num_top)
    keep: bool = False  # hold the cache after the end while slots last, so that forks are cheap
    drawn: int = 0  # the last so many of ids were drawn for it before: stop strings see them

    def __post_init__(self) -> None:
        if not self.ids:
            raise UserError("a request has an empty prompt; give at least one token id")
        for name, least in (("max_tokens", 1), ("num_top", 0), ("pause_every", 0), ("drawn", 0)):
            if getattr(self, name) < least:
                raise UserError(f"Request.{name} is {getattr(self, name)}; it must be >= {least}")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(
                f"Request.temperature is {self.temperature}; it must be >= 0 and finite"
            )
        unknown = sorted(self.want - STATISTICS)
        if unknown:
            raise UserError(f"Request.want has {unknown[0]!r}; choose from {sorted(STATISTICS)}")
        if "top" in self.want and self.num_top == 0:
            raise UserError("Request.want has 'top' but num_top is 0; set num_top to 1 or more")
        if "" in self.stop_strings:
            raise UserError("Request.stop_strings has an empty string; leave it out")

    def changed(self, changes: Mapping[str, Any]) -> Request:
        """This request with other fields. Raises UserError for a field that there is not."""
        unknown = sorted(set(changes) - set(Request.__dataclass_fields__))
        if unknown:
            known = sorted(Request.__dataclass_fields__)
            raise UserError(f"a request has no field {unknown[0]!r}; choose from {known}")
        return replace(self, **changes)

    def is_stopped(self, new: Sequence[int], decode: Callable[[Sequence[int]], str]) -> bool:
        """Whether the newest of its new tokens completes a stop string in their text.

        Each token of a match holds at least one of its bytes, so that a window of so many tokens,
        and a few more for the start of a word and special tokens, is enough.
        """
        window = max(len(string.encode()) for string in self.stop_strings) + 4
        text = decode(new[-window:])
        return any(string in text for string in self.stop_strings)


class Event(NamedTuple):
    """New tokens of one request, all sampled by one version of the weights.

    Joining the events of a request in order gives its new tokens; the last one has `ended` set.
    Every column is as long as `ids`, or empty when it was not wanted. Nats throughout.
    """

    request: int
    ids: tuple[int, ...]  # new tokens
    # under the sampling distribution (temperature, rules); greedy: 0.0; not told: NaN
    logp: tuple[float, ...]
    version: int  # of the weights that sampled these tokens
    logp_model: tuple[float, ...] = ()  # at the temperature, without rules; greedy: temperature 1
    entropy: tuple[float, ...] = ()  # of that same distribution, in nats
    top: tuple[Mapping[int, float], ...] = ()  # num_top log-probs before temperature and rules
    ended: Ended = ""
    why: str = ""  # of a request that failed

    def told(self, statistic: str) -> tuple[float, ...]:
        """Of each new token "logp_model" or "entropy"; NaN where the engine does not tell it."""
        return getattr(self, statistic) or (math.nan,) * len(self.ids)


class Finished(NamedTuple):
    """A request and all its events so far, oldest first."""

    request: Request
    events: tuple[Event, ...]

    @property
    def failed(self) -> bool:
        """Whether it could not go on; it may have no token then."""
        return self.events[-1].ended == "failed"


class Engine(Protocol):
    """Generates; several callers may share one engine, each knows its requests by their ids.

    An engine is a class over this one. What is written out here holds for an engine that keeps no
    weights but those that it samples with.
    """

    capabilities: frozenset[str]  # out of CAPABILITIES
    version: int  # of the weights that sample now
    parked: list[Event]  # events that somebody stepped over for other callers; see `drive`
    longest: int | None = None  # tokens of a sequence that it has room for; None: as the model has
    drafts: tuple[int, int] = (0, 0)  # tokens drafted so far, those of them that were then drawn
    passes: Passes | None = None  # what its passes took so far; None: it does not measure them
    notes: tuple[str, ...] = ()  # what to tell whoever runs it, once
    renews_alone: bool = False  # what it has begun ends with the weights that were there then

    def submit(self, request: Request) -> int:
        """Queue a request and return its id; UserError when it cannot fit the context."""
        ...

    def fork(self, id: int, at: int, forced: tuple[int, ...] = (), **changes: Any) -> int:
        """Queue a new request that starts with the first `at` tokens of another one.

        `at` counts prompt and new tokens together; the new request's ids are those tokens and
        then `forced`. Other fields are the parent's, but for `changes`; max_tokens becomes what
        the parent had left at that place. With the parent's seed and nothing forced the fork
        repeats the parent, so give a new `seed`. Same result as submitting that request afresh.
        """
        ...

    def resume(self, id: int, **changes: Any) -> None:
        """Continue a paused request; one that has ended gives its end event, without ids, again."""
        ...

    def abort(self, id: int) -> Finished:
        """End a request now, free its slot; its last event (ended "aborted") is in the answer."""
        ...

    def release(self, id: int) -> None:
        """Forget a request: its tokens, its cache, its events. It can't be forked any more."""
        ...

    def busy(self) -> bool:
        """True while a step can bring something: running or waiting requests, unread events."""
        ...

    def full(self) -> bool:
        """True while so many requests wait that others had better not be submitted yet."""
        return False

    def step(self) -> list[Event]:
        """Advance all running requests by one token or more; return what there is to report.

        A request that cannot go on ends as "failed" and says why; it may have no token. The others
        go on. What is raised is of the engine as a whole.
        """
        ...

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with other weights from the next token on; state None: those in the model.

        Raises UserError where the engine lacks the capability "weights".
        """
        ...

    def newest(self) -> AbstractContextManager[None]:
        """Inside, samples are drawn with the newest weights that it was given."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the newest weights; empty: nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Go on from a checkpoint: the model has its weights by now, `state` is what was held.

        Raises UserError when that is of an engine of other settings.
        """
        if state:
            raise UserError(
                "the checkpoint holds weights of older steps for engine.staleness, and this run's "
                "engine holds none: keep the setting, or start a run"
            )
        self.load_weights(None, version)

    def close(self) -> None:
        """Let go of what it holds outside this process."""
        return


def forked(
    id: int,
    request: Request,
    tokens: Sequence[int],
    at: int,
    forced: tuple[int, ...],
    changes: Mapping[str, Any],
) -> Request:
    """What `Engine.fork` asks for, of the request `id` that has these tokens by now."""
    if not 0 <= at <= len(tokens):
        raise UserError(f"fork at token {at} of request {id}, which has {len(tokens)} tokens")
    if "ids" in changes:
        raise UserError("fork takes its ids from `at` and `forced`; leave `ids` out of changes")
    ids = (*tokens[:at], *forced)
    left = len(request.ids) + request.max_tokens - len(ids)
    if left < 1 and "max_tokens" not in changes:
        raise UserError(
            f"request {id} has no token left after {len(ids)}; give the fork max_tokens"
        )
    return request.changed({"ids": ids, "max_tokens": left, "drawn": 0, **changes})


def resumed(
    id: int, status: str, request: Request, num_tokens: int, changes: Mapping[str, Any]
) -> Request:
    """What `Engine.resume` goes on with, of the paused request `id` of so many tokens by now."""
    if status != "paused":
        raise UserError(f"request {id} is not paused; wait for its event before resuming it")
    if "ids" in changes:
        raise UserError("resume keeps the tokens; leave `ids` out of changes, or fork")
    request = request.changed(changes)
    if len(request.ids) + request.max_tokens <= num_tokens:
        done = num_tokens - len(request.ids)
        raise UserError(f"request {id} has {done} new tokens; max_tokens must be more")
    return request
