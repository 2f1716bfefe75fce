"""Calls of one rollout become contexts: sequences of tokens that a policy is trained on.

A call goes on from a context whose tokens its prompt begins with. Where a prompt is written anew,
by a template or an agent that edits its history, it may differ:

    CLEAN    the prompt begins with all that the context holds: what is new is appended
    REALIGN  it differs only within the context's last answer, in less than `fork_threshold` tokens
             of what the context holds: the prompt is taken from there on, as text that was given
    FORK     else: the call begins a context of its own

The three are those of TRL 1.16 (`_SampleBuilder.classify_token_drift`), but for two things. The
newest context that a call can go on from counts, so that calls of several agents may alternate; TRL
looks at the last one alone. And a prompt that keeps nothing of the last answer, because a template
drops its thinking or the same prompt is asked again, forks, where TRL overwrites the answer: it
would never be learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from strop.traces.records import TurnRecord

FORK_THRESHOLD = 1024


class Drift(Enum):
    """How a call's prompt is beside the context that it goes on from."""

    CLEAN = "clean"
    REALIGN = "realign"
    FORK = "fork"


@dataclass
class Piece:
    """A call within its context: tokens that it was given there, and how many of its own stay.

    opens: it is the first one of a context.
    """

    given: tuple[int, ...]
    record: TurnRecord
    kept: int
    opens: bool

    @property
    def ids(self) -> tuple[int, ...]:
        """Its own tokens that stay."""
        return self.record.output_ids[: self.kept]


@dataclass
class Context:
    """A sequence so far. begins: where its last answer does."""

    tokens: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    begins: int = 0

    def drift(self, prompt: Sequence[int], fork_threshold: int) -> tuple[Drift, int]:
        """How a prompt is beside this context, and in how many tokens of it they differ."""
        common = common_prefix(self.tokens, prompt)
        tokens = len(self.tokens) - common
        if tokens == 0:
            return Drift.CLEAN, 0
        if common > self.begins and tokens < fork_threshold and common < len(prompt):
            return Drift.REALIGN, tokens
        return Drift.FORK, tokens

    def add(self, record: TurnRecord) -> None:
        """Go on with a call, whose prompt may differ from this context's last answer."""
        common = common_prefix(self.tokens, record.prompt_ids)
        if self.pieces and common < len(self.tokens):
            self.pieces[-1].kept = common - self.begins
        given = record.prompt_ids[common:]
        self.pieces.append(Piece(given, record, len(record.output_ids), not self.pieces))
        self.tokens = [*record.prompt_ids, *record.output_ids]
        self.begins = len(record.prompt_ids)


class Transition(NamedTuple):
    """How a call followed those before it: tokens is the drift, of the newest context in a fork."""

    kind: Drift
    tokens: int


@dataclass
class Joined:
    """The contexts of a rollout, in the order of their first calls, and how calls followed."""

    fork_threshold: int = FORK_THRESHOLD
    contexts: list[Context] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)

    def add(self, record: TurnRecord) -> None:
        """Put a call where it belongs."""
        if self.contexts:
            context, transition = self._place(record.prompt_ids)
            self.transitions.append(transition)
            if context is not None:
                context.add(record)
                return
        self.contexts.append(Context())
        self.contexts[-1].add(record)

    def _place(self, prompt: Sequence[int]) -> tuple[Context | None, Transition]:
        """The newest context that it goes on from cleanly, else the newest that is realigned."""
        found = [
            (context, Transition(*context.drift(prompt, self.fork_threshold)))
            for context in reversed(self.contexts)
        ]
        for kind in (Drift.CLEAN, Drift.REALIGN):
            for context, transition in found:
                if transition.kind is kind:
                    return context, transition
        return None, found[0][1]

    @property
    def pieces(self) -> list[Piece]:
        """Of all contexts, one context after another."""
        return [piece for context in self.contexts for piece in context.pieces]


def join(records: Sequence[TurnRecord], fork_threshold: int = FORK_THRESHOLD) -> Joined:
    """The contexts that the calls of one rollout come to."""
    joined = Joined(fork_threshold)
    for record in records:
        joined.add(record)
    return joined


def drift_metrics(rollouts: Sequence[Joined]) -> dict[str, float]:
    """Shares of calls that followed cleanly, realigned and forked, drift in tokens, contexts."""
    found = {"turns/contexts": sum(len(each.contexts) for each in rollouts) / len(rollouts)}
    transitions = [each for joined in rollouts for each in joined.transitions]
    if not transitions:
        return found
    for kind in Drift:
        share = sum(each.kind is kind for each in transitions) / len(transitions)
        found[f"turns/{kind.value}"] = share
    found["turns/drift_tokens"] = sum(each.tokens for each in transitions) / len(transitions)
    return found


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens two sequences begin."""
    size = min(len(one), len(other))
    if tuple(one[:size]) == tuple(other[:size]):
        return size
    low, high = 0, size  # equal before low, different somewhere before high
    while high - low > 1:
        middle = (low + high) // 2
        if tuple(one[low:middle]) == tuple(other[low:middle]):
            low = middle
        else:
            high = middle
    return low
