"""What every engine takes and gives: Request, Event, Answer and the Engine protocol.

It also counts what its passes took, as running sums, from which the costs of a pass can be told.

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
Source = tuple[int, int] | None  # a request, and with how many of its tokens another one begins
# broken: the engine draws it no further; the book begins it again behind its tokens, so that no
# answer ever ends so.
Ended = Literal["", "stop", "length", "aborted", "failed", "broken"]
EXPERTS = "experts"  # which of a layer's experts each token went through
# What an engine can tell of the tokens that it draws, beside their log-probabilities.
STATISTICS = frozenset({"entropy", "kept", "logp_model", "top", EXPERTS})
# rules: it applies those of a request. weights: it takes new ones.
WAITING = 8  # requests that wait for each that can run; an engine is handed no more
CAPABILITIES = frozenset({"rules", "weights"}) | STATISTICS - {EXPERTS}
ADAPTERS = "adapters"  # it draws each request with the adapter that this names


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
    stop_ids: tuple[int, ...] = ()  # a drawn one ends the request and is its last token
    stop_strings: tuple[str, ...] = ()  # end once the text of the new tokens holds one of them
    seed: int = 0  # any integer; its lowest 64 bits count
    want: frozenset[str] = frozenset()  # of STATISTICS ("top" needs num_top)
    keep: bool = False  # a hint: requests that begin with its tokens follow, so hold its cache
    drawn: int = 0  # the last so many of ids were drawn for it before: stop strings see them
    weights: str = ""  # the adapter that draws it; empty: the model as it is, or its first

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

    def is_stopped(self, new: Sequence[int], decode: Callable[[Sequence[int]], str]) -> bool:
        """Whether the newest of its new tokens completes a stop string in their text.

        Each token of a match holds at least one of its bytes, so that a window of so many tokens,
        and a few more for the start of a word and special tokens, is enough.
        """
        window = max(len(string.encode()) for string in self.stop_strings) + 4
        text = decode(new[-window:])
        return any(string in text for string in self.stop_strings)

    def until_stop(
        self, tokens: Sequence[int], new: Sequence[int], decode: Callable[[Sequence[int]], str]
    ) -> tuple[int, bool]:
        """How many of the new tokens belong to its answer, and whether the last one ends it.

        tokens: its prompt and what it has drawn before these.
        """
        known = [*tokens[len(self.ids) - self.drawn :]]
        for size, token in enumerate(new, 1):
            known.append(token)
            if token in self.stop_ids or (self.stop_strings and self.is_stopped(known, decode)):
                return size, True
        return len(new), False

    def check_fits(self, context_length: int, vocab_size: int) -> None:
        """Raise UserError where a model cannot have its tokens."""
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
    kept: tuple[bytes, ...] = ()  # int32 ids of the tokens that the rules left; empty: all of them
    # The experts of the passes since the last event, int16 [layers * k] each: those that drew `ids`
    # from the token before them, and before the first event's those of the prompt's other tokens.
    experts: tuple[bytes, ...] = ()

    def values_of(self, statistic: str) -> tuple[float, ...]:
        """Of each new token "logp_model" or "entropy"; NaN where the engine does not tell it.

        Of a token whose kept set is told, the model is what is drawn from: "logp_model" is `logp`.
        """
        if statistic == "logp_model" and self.kept:
            return self.logp
        return getattr(self, statistic) or (math.nan,) * len(self.ids)

    def part(self, first: int, last: int | None = None) -> Event:
        """Its tokens from `first` up to `last`, with all that is told of them."""
        columns = ("ids", "logp", "logp_model", "entropy", "top", "kept")
        cut = {name: getattr(self, name)[first:last] for name in columns}
        if self.experts and last is not None:  # those before the first token stay with it
            cut["experts"] = self.experts[: len(self.experts) - len(self.ids) + last]
        return self._replace(**cut)


@dataclass(frozen=True)
class Answer:
    """What a request came to so far: all its events, oldest first. A value, not a handle."""

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
        """How; empty where it has not."""
        return self.events[-1].ended if self.events else ""

    @property
    def failed(self) -> bool:
        """Whether it could not go on; it may have no token then."""
        return self.ended == "failed"

    def first(self, size: int) -> Answer:
        """Its first new tokens only, which have not ended."""
        return Answer(self.request, first_tokens(self.events, size))

    def more(self, max_tokens: int, given: Sequence[int] = (), **changes: Any) -> Request:
        """The request that goes on behind these tokens and, if any, `given` ones.

        With the same seed its tokens are those of one longer request, and stop strings are found
        across the join, unless something was given in between. changes: other fields.
        """
        drawn = 0 if given else self.request.drawn + len(self.ids)
        ids = (*self.sequence, *given)
        return replace(self.request, ids=ids, max_tokens=max_tokens, drawn=drawn, **changes)

    def __add__(self, other: Answer) -> Answer:
        """This answer and what followed it at once as one: with the end of the other."""
        before = tuple(event._replace(ended="") if event.ended else event for event in self.events)
        passes = sum(len(event.experts) for event in before)  # those of its prompt, and of ours
        if passes and other.events:
            first, *rest = other.events
            other = Answer(other.request, (first._replace(experts=first.experts[passes:]), *rest))
        size = len(other.sequence) - len(self.request.ids)
        room = size - len(other.ids) + other.request.max_tokens
        return Answer(replace(self.request, max_tokens=room), before + other.events)


def first_tokens(events: Sequence[Event], number: int) -> tuple[Event, ...]:
    """The events of the first tokens only, none of them an end."""
    kept = []
    for event in events:
        size = min(number, len(event.ids))
        number -= size
        if size:
            kept.append(event.part(0, size)._replace(ended=""))
    return tuple(kept)


def taken_out(events: list[Event], id: int) -> list[Event]:
    """The events of a request, which are taken out of these."""
    own = [event for event in events if event.request == id]
    events[:] = [event for event in events if event.request != id]
    return own


class Ends(NamedTuple):
    """Of some requests: how many came to an end, and why the others failed."""

    num_well: int = 0
    failures: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError where requests failed and none did not."""
        if self.failures and not self.num_well:
            number = len(self.failures)
            every = (
                "a request failed" if number == 1 else f"all {number} requests failed, the first"
            )
            raise UserError(f"{every}: {self.failures[0]}")


@dataclass(eq=False)
class Account:
    """What the requests of one run came to. on_failure: told why one failed."""

    on_failure: Callable[[str], None] = lambda why: None
    open: dict[Any, None] = field(default_factory=dict)  # `asynchronous.Begun`, oldest first
    kept: set[int] = field(default_factory=set)  # requests whose cache is held for it
    num_begun: int = 0
    num_well: int = 0  # that came to an end
    num_drawn: int = 0  # tokens of all
    failures: list[str] = field(default_factory=list)

    @property
    def ends(self) -> Ends:
        """Of its requests so far."""
        return Ends(self.num_well, tuple(self.failures))


class Engine(Protocol):
    """Generates. Strategies do not call it: `engines.asynchronous` keeps the book of requests.

    It starts a request, cancels one, and works for a while; it keeps of a request what drawing it
    takes, and forgets it with its last event. One that asked to `keep` its cache is a source until
    it is cancelled.

    An engine is a class over this one. What is written out here holds for an engine that keeps no
    weights but those that it samples with.
    """

    capabilities: frozenset[str]  # out of CAPABILITIES, and ADAPTERS
    version: int  # of the weights that sample now
    most_requests: int = 1 << 62  # requests that it is handed at once
    longest: int | None = None  # tokens of a sequence that it has room for; None: as the model has
    drafts: tuple[int, int] = (0, 0)  # tokens drafted so far, those of them that were then drawn
    passes: Passes | None = None  # what its passes took so far; None: it does not measure them
    notes: tuple[str, ...] = ()  # what to tell whoever runs it, once
    renews_alone: bool = False  # what it has begun ends with the weights that were there then
    lockstep: bool = False  # several processes hand it the same requests, and poll it together

    def start(self, id: int, request: Request, source: Source = None) -> None:
        """Draw a request, whose events have this number; UserError when it cannot fit the context.

        id: greater than those of all that were begun before it. source: a request that has ended
        with `keep`, and with how many of its tokens, prompt included, this one begins; an engine
        that holds its cache need not compute them again.
        """
        ...

    def cancel(self, id: int) -> list[Event]:
        """Draw a request no further, and let go of its slot or cache; what was not told of it yet.

        `poll` tells no more of it. Nothing happens where it is forgotten by now.
        """
        ...

    def poll(self, seconds: float | None = None) -> list[Event]:
        """Advance all running requests by one token or more; return what there is to report.

        Called while some are under way. One that draws elsewhere waits for an event, for no longer
        than so many seconds; None: until there is one.

        A request that cannot go on ends as "failed" and says why; it may have no token. The others
        go on. What is raised is of the engine as a whole.
        """
        ...

    def forget(self) -> None:
        """Nothing is under way: let go of what ended requests have left, and of what only speeds
        requests up.
        """
        return

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


PASSES, SECONDS = "passes", "seconds"


class Sums:
    """Sums over passes of 1, of sizes, of seconds and of the products of each two of these.

    All that least squares of the seconds need, whatever the number of passes. sizes: their names.
    """

    def __init__(self, *sizes: str) -> None:
        self.terms = (PASSES, *sizes, SECONDS)
        self.values = [0.0] * len(names(self.terms))

    def add(self, *numbers: float) -> None:
        """One more pass: its sizes, then its seconds."""
        values, place, terms = self.values, 0, (1.0, *numbers)
        for first, own in enumerate(terms):
            for other in terms[first:]:
                values[place] += own * other
                place += 1

    def as_dict(self) -> dict[str, float]:
        """The sums by name; a product is `first_second`."""
        return dict(zip(names(self.terms), self.values, strict=True))


class Passes:
    """Of an engine: decode steps by their rows and the tokens in the caches of these, and passes
    over prompts and over caches read again by their tokens.

    places: of the caches that decode steps read, those in vain among them.
    """

    def __init__(self) -> None:
        self.decode, self.prefill = Sums("rows", "tokens"), Sums("tokens")
        self.places = 0

    def add_decode(self, bands: Sequence[Band], tokens: int, seconds: float) -> None:
        """One more decode step, of the rows of these bands with so many tokens in their caches."""
        self.places += sum((band.end - band.first) * band.used for band in bands)
        self.decode.add(bands[-1].end, tokens, seconds)

    def add_prefill(self, tokens: int, seconds: float) -> None:
        """Passes that rows were let in with, over so many tokens."""
        if tokens:
            self.prefill.add(tokens, seconds)

    def as_dict(self) -> dict[str, float]:
        """All sums by name, `decode/rows` and so on."""
        found = {"decode/places": float(self.places)}
        for kind, sums in (("decode", self.decode), ("prefill", self.prefill)):
            found |= {f"{kind}/{name}": value for name, value in sums.as_dict().items()}
        return found


def names(terms: tuple[str, ...]) -> list[str]:
    """Of the sums of each term and of the products of each two; the first term is the 1."""
    return [
        other if not place else f"{first}_{other}"
        for place, first in enumerate(terms)
        for other in terms[place:]
    ]
