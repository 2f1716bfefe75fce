"""The interface of all engines: Request, Event, Answer and the Engine protocol.

`Passes` keeps running sums over an engine's passes, from which the cost of a pass can be estimated.

Nothing here imports torch, so strategies and their tests can be read and run without a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from strop.support.errors import UserError

if TYPE_CHECKING:
    from strop.engines.local.cache import Band
if TYPE_CHECKING:
    from torch import Tensor


Rule = Callable[["Tensor"], "Tensor"]
Source = tuple[int, int] | None  # a request, and how many of its tokens another one begins with
# broken: the engine has stopped the request; `AsyncEngine` restarts it after its tokens so far, so
# that no answer ever ends so.
Ended = Literal["", "stop", "length", "aborted", "failed", "broken"]
EXPERTS = "experts"  # which of a layer's experts each token went through
# What an engine can report about sampled tokens, beside their log-probabilities.
STATISTICS = frozenset({"entropy", "kept", "logp_model", "top", EXPERTS})
WAITING = 8  # most requests that wait in an engine for each that can run
# rules: the engine applies those of a request. weights: it accepts new ones.
CAPABILITIES = frozenset({"rules", "weights"}) | STATISTICS - {EXPERTS}
ADAPTERS = "adapters"  # the engine samples each request with the adapter that the request names


@dataclass(frozen=True)
class Request:
    """One sequence to continue.

    A draw depends only on (seed, position), where position counts all tokens before the drawn one,
    prompt included; so a result does not depend on the slot or on the rest of the batch, and two
    requests with equal ids and seed give the same tokens. Members of a group need different seeds.

    temperature 0 is greedy: the most likely token that the rules allow (the lowest id on ties).
    Raises UserError for an empty prompt or a field out of range.
    """

    ids: tuple[int, ...]  # prompt token ids, at least one
    max_tokens: int  # most new tokens, >= 1
    temperature: float = 1.0  # >= 0
    rules: tuple[Rule, ...] = ()  # hashable, picklable; each maps scaled logits [N, V] to [N, V]
    num_top: int = 0  # most likely tokens to report, before temperature and rules
    stop_ids: tuple[int, ...] = ()  # a sampled one ends the request and is its last token
    stop_strings: tuple[str, ...] = ()  # end once the text of the new tokens contains one of them
    seed: int = 0  # any integer; its lowest 64 bits count
    want: frozenset[str] = frozenset()  # of STATISTICS ("top" needs num_top)
    keep: bool = False  # a hint: requests that begin with its tokens will follow, so keep its cache
    drawn: int = 0  # how many of the last ids were sampled for it before: stop strings see them
    weights: str = ""  # the adapter to sample with; empty: the model as it is, or its first adapter

    def __post_init__(self) -> None:
        if not self.ids:
            raise UserError("a request has an empty prompt; give at least one token id")
        for name, least in (("max_tokens", 1), ("num_top", 0), ("drawn", 0)):
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

    @property
    def window(self) -> int:
        """How many of the newest tokens tell whether the newest one completes a stop string.

        Each token of a match contains at least one of its bytes, so as many tokens, and a few more
        for the start of a word and special tokens, are enough.
        """
        return max(len(string.encode()) for string in self.stop_strings) + 4

    def is_stopped(self, new: Sequence[int], decode: Callable[[Sequence[int]], str]) -> bool:
        """Whether the newest of its new tokens completes a stop string in their text."""
        text = decode(new[-self.window :])
        return any(string in text for string in self.stop_strings)

    def until_stop(
        self, tokens: Sequence[int], new: Sequence[int], decode: Callable[[Sequence[int]], str]
    ) -> tuple[int, bool]:
        """How many of the new tokens belong to its answer, and whether the last one ends it.

        tokens: its prompt and the tokens before the new ones.
        """
        known = [*tokens[len(self.ids) - self.drawn :]]
        for size, token in enumerate(new, 1):
            known.append(token)
            if token in self.stop_ids or (self.stop_strings and self.is_stopped(known, decode)):
                return size, True
        return len(new), False

    def room(self, context_length: int) -> int:
        """Most new tokens in a context."""
        return min(self.max_tokens, context_length - len(self.ids))

    def check_fits(self, context_length: int, vocab_size: float = math.inf) -> None:
        """Raise UserError for a prompt that fills the context, for unknown token ids, and for more
        likely tokens than there are.
        """
        if len(self.ids) >= context_length:
            raise UserError(
                f"the prompt has {len(self.ids)} tokens, the context {context_length}; "
                "shorten the prompt, at least one new token must fit"
            )
        for name in ("ids", "stop_ids"):
            ids = getattr(self, name)
            if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
                raise UserError(
                    f"Request.{name} has a token id outside [0, {vocab_size}), the model's "
                    "vocabulary; is this the model's own tokenizer?"
                )
        if self.num_top > vocab_size:
            raise UserError(
                f"Request.num_top is {self.num_top}, and the model has {vocab_size} tokens: ask "
                "for fewer"
            )


class Event(NamedTuple):
    """New tokens of one request, all sampled by one version of the weights.

    Joining the events of a request in order gives its new tokens; the last one has `ended` set.
    Every column is as long as `ids`, or empty when it was not requested. All logs are in nats.
    """

    request: int
    ids: tuple[int, ...]  # new tokens
    # under the sampling distribution (temperature, rules); greedy: 0.0; not reported: NaN
    logp: tuple[float, ...]
    version: int  # of the weights that sampled these tokens
    logp_model: tuple[float, ...] = ()  # at the temperature, without rules; greedy: temperature 1
    entropy: tuple[float, ...] = ()  # of that same distribution, in nats
    top: tuple[Mapping[int, float], ...] = ()  # num_top log-probs before temperature and rules
    ended: Ended = ""
    why: str = ""  # the reason why a request failed
    kept: tuple[bytes, ...] = ()  # int32 ids of the tokens that the rules left; empty: all of them
    # The experts of the passes since the last event, int16 [layers * k] each: of the passes that
    # sampled `ids`; in the first event preceded by those of the prompt's other tokens.
    experts: tuple[bytes, ...] = ()

    def values_of(self, statistic: str) -> tuple[float, ...]:
        """The "logp_model" or "entropy" of each new token; NaN where the engine does not report it.

        If kept sets are reported, "logp_model" is `logp`: the model is then the distribution that
        the tokens were sampled from.
        """
        if statistic == "logp_model" and self.kept:
            return self.logp
        return getattr(self, statistic) or (math.nan,) * len(self.ids)

    def part(self, first: int, last: int | None = None) -> Event:
        """Its tokens from `first` up to `last`, with all their columns."""
        columns = ("ids", "logp", "logp_model", "entropy", "top", "kept")
        cut = {name: getattr(self, name)[first:last] for name in columns}
        if self.experts and last is not None:  # those before the first token stay with it
            cut["experts"] = self.experts[: len(self.experts) - len(self.ids) + last]
        return self._replace(**cut)


@dataclass(frozen=True)
class Answer:
    """The result of a request so far: all its events, oldest first. A value, not a handle."""

    request: Request
    events: tuple[Event, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The new tokens."""
        return tuple(chain.from_iterable(event.ids for event in self.events))

    @property
    def sequence(self) -> tuple[int, ...]:
        """The prompt and the new tokens."""
        return (*self.request.ids, *self.ids)

    @property
    def ended(self) -> Ended:
        """How it ended; empty where it has not."""
        return self.events[-1].ended if self.events else ""

    @property
    def failed(self) -> bool:
        """Whether the request failed; it may have no token then."""
        return self.ended == "failed"

    def first(self, size: int) -> Answer:
        """The answer cut to its first `size` new tokens, without an end."""
        return Answer(self.request, first_tokens(self.events, size))

    def more(self, max_tokens: int = 0, given: Sequence[int] = (), **changes: Any) -> Request:
        """The request that continues after these tokens and, if any, `given` ones; max_tokens 0:
        by all that its request leaves.

        With the same seed its tokens are those of one longer request, and stop strings are found
        across the join, unless something was given in between. changes: other fields.
        """
        drawn = 0 if given else self.request.drawn + len(self.ids)
        ids, left = (*self.sequence, *given), self.request.max_tokens - len(self.ids)
        most = max_tokens or left
        return replace(self.request, ids=ids, max_tokens=most, drawn=drawn, **changes)

    def __add__(self, other: Answer) -> Answer:
        """Joins this answer and the one that directly followed it, whose end it gets."""
        before = tuple(event._replace(ended="") if event.ended else event for event in self.events)
        passes = sum(len(event.experts) for event in before)  # of the prompt and of our tokens
        if passes and other.events:
            first, *rest = other.events
            other = Answer(other.request, (first._replace(experts=first.experts[passes:]), *rest))
        size = len(other.sequence) - len(self.request.ids)
        room = size - len(other.ids) + other.request.max_tokens
        return Answer(replace(self.request, max_tokens=room), before + other.events)


def first_tokens(events: Sequence[Event], number: int) -> tuple[Event, ...]:
    """The events cut to the first `number` tokens, none of them an end."""
    kept = []
    for event in events:
        size = min(number, len(event.ids))
        number -= size
        if size:
            kept.append(event.part(0, size)._replace(ended=""))
    return tuple(kept)


def taken_out(events: list[Event], id: int) -> list[Event]:
    """Remove the events of a request from `events` and return them."""
    own = [event for event in events if event.request == id]
    events[:] = [event for event in events if event.request != id]
    return own


class Ends(NamedTuple):
    """The ends of some requests: how many ended well, and why the others failed."""

    num_well: int = 0
    failures: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError where all requests failed."""
        if self.failures and not self.num_well:
            number = len(self.failures)
            every = (
                "a request failed" if number == 1 else f"all {number} requests failed, the first"
            )
            raise UserError(f"{every}: {self.failures[0]}")


@dataclass(eq=False)
class Account:
    """The record of the requests of one run. on_failure: called with the reason of a failure."""

    on_failure: Callable[[str], None] = lambda why: None
    open: dict[Any, None] = field(default_factory=dict)  # of PendingRequest, oldest first
    kept: set[int] = field(default_factory=set)  # requests whose cache is held for it
    num_started: int = 0
    num_well: int = 0  # requests that ended well
    num_drawn: int = 0  # tokens of all requests
    failures: list[str] = field(default_factory=list)

    @property
    def ends(self) -> Ends:
        """The ends of its requests so far."""
        return Ends(self.num_well, tuple(self.failures))


class Engine(Protocol):
    """Samples tokens. Strategies do not call it: `engines.asynchronous` keeps track of requests.

    It starts a request, cancels one, and works for a while. It holds the state of a request while
    it samples, and drops it with the last event. A request with `keep` remains as a source until it
    is cancelled.

    An engine is a subclass of this one. The methods written out here suit an engine that stores no
    weights but those that it samples with.
    """

    capabilities: frozenset[str]  # out of CAPABILITIES, and ADAPTERS
    version: int  # of the current sampling weights
    most_requests: int = 1 << 62  # most requests that it is given at a time
    longest: int | None = None  # most tokens of a sequence; None: as many as the model allows
    drafts: tuple[int, int] = (0, 0)  # tokens drafted so far, and how many of them were accepted
    passes: Passes | None = None  # costs of its passes so far; None: it does not measure them
    notes: tuple[str, ...] = ()  # notes for the user, shown once
    renews_alone: bool = False  # requests end under the weights with which they started
    lockstep: bool = False  # several processes give it the same requests, and poll it together

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Start a request, whose events have this number; UserError when it cannot fit the context.

        id: greater than the ids of all earlier requests. source: a request that has ended with
        `keep`, and how many of its tokens, prompt included, this one begins with; an engine that
        has its cache need not compute them again.
        """
        ...

    def cancel(self, id: int) -> list[Event]:
        """Stop a request, and free its slot or cache; returns its events that are not reported yet.

        `poll` reports no more of it. Nothing happens where the request is already dropped.
        """
        ...

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Advance all running requests by one token or more; returns the events to report.

        Called while requests are in progress. An engine that samples elsewhere waits for an event,
        for at most so many seconds; None: until there is one.

        A request that cannot continue ends as "failed" with a reason; it may have no token. The
        others continue. An exception concerns the engine as a whole.
        """
        ...

    def forget(self) -> None:
        """Free what ended requests have left, and all that only speeds requests up. Called while no
        request is in progress.
        """
        return

    def load_weights(self, state: Any, version: int) -> None:
        """Sample with other weights from the next token on; state None: the model's own.

        Raises UserError where the engine lacks the capability "weights".
        """
        ...

    def newest(self) -> AbstractContextManager[None]:
        """Inside, the engine samples with the newest weights that it was given."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs beside the newest weights; empty: none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Resume from a checkpoint, whose weights the model already has; `state`: the saved state.

        Raises UserError for the state of an engine with other settings.
        """
        if state:
            raise UserError(
                "the checkpoint holds weights of older steps for engine.staleness, and this run's "
                "engine holds none: keep the setting, or start a run"
            )
        self.load_weights(None, version)

    def close(self) -> None:
        """Free what it holds outside this process."""
        return


def try_start(engine: Engine, id: int, request: Request, source: Source = None) -> list[Event]:
    """Start a request. Where the engine refuses it, returns its one event, which says why.

    For requests that were queued: nobody who could catch an error waits for their start.
    """
    try:
        engine.start(id, request, source)
    except UserError as error:
        return [Event(id, (), (), engine.version, ended="failed", why=str(error))]
    return []


PASSES, SECONDS = "passes", "seconds"


class Sums:
    """Sums over passes of 1, of sizes, of seconds and of the products of each two of these.

    These sums are all that a least-squares fit of the seconds needs, whatever the number of passes.
    sizes: the names of the sizes.
    """

    def __init__(self, *sizes: str) -> None:
        self.terms = (PASSES, *sizes, SECONDS)
        self.values = [0.0] * len(names(self.terms))

    def add(self, *numbers: float) -> None:
        """Add a pass: its sizes, then its seconds."""
        values, place, terms = self.values, 0, (1.0, *numbers)
        for first, own in enumerate(terms):
            for other in terms[first:]:
                values[place] += own * other
                place += 1

    def as_dict(self) -> dict[str, float]:
        """The sums by name; a product is `first_second`."""
        return dict(zip(names(self.terms), self.values, strict=True))


class Passes:
    """The costs of an engine's passes: decode steps by their rows and the tokens in these rows'
    caches, and prefill passes, also those that recompute caches, by their tokens.

    places: cache positions that decode steps read, padding included.
    """

    def __init__(self) -> None:
        self.decode, self.prefill = Sums("rows", "tokens"), Sums("tokens")
        self.places = 0

    def add_decode(self, bands: Sequence[Band], tokens: int, seconds: float) -> None:
        """Add a decode step of the rows of these bands, with so many tokens in their caches."""
        self.places += sum((band.end - band.first) * band.used for band in bands)
        self.decode.add(bands[-1].end, tokens, seconds)

    def add_prefill(self, tokens: int, seconds: float) -> None:
        """Add prefill passes over so many tokens."""
        if tokens:
            self.prefill.add(tokens, seconds)

    def as_dict(self) -> dict[str, float]:
        """All sums by name, `decode/rows` and so on."""
        found = {"decode/places": float(self.places)}
        for kind, sums in (("decode", self.decode), ("prefill", self.prefill)):
            found |= {f"{kind}/{name}": value for name, value in sums.as_dict().items()}
        return found


def names(terms: tuple[str, ...]) -> list[str]:
    """Names of the sums of each term and of the products of each two; the first term is the 1."""
    return [
        other if not place else f"{first}_{other}"
        for place, first in enumerate(terms)
        for other in terms[place:]
    ]
