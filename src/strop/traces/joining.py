"""Joins the calls of one rollout to contexts: sequences of tokens that a policy is trained on.

A call continues a context if its prompt begins with the context's tokens. Where a template, or an
agent that edits its history, rewrites a prompt, it may differ:

    CLEAN    the prompt begins with all tokens of the context: the new ones are appended
    REALIGN  it differs only within the context's last answer, in less than `fork_threshold` tokens
             of the context: from there on the prompt's tokens are used, as given text
    FORK     else: the call begins a context of its own

These are the cases of TRL 1.16 (`_SampleBuilder.classify_token_drift`), with two differences. A
call may continue any context, so that calls of several agents may alternate; TRL considers only the
last one. Of several it continues the one of which it repeats most, so that a retokenised answer is
not taken for another answer to the same prompt that begins alike. And a prompt that keeps nothing
of the last answer, because a template drops its thinking or the same prompt is sent again, forks;
TRL overwrites the answer, which then would never be learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from strop.traces.records import TurnRecord

FORK_THRESHOLD = 1024


class Drift(Enum):
    """How a call's prompt relates to the context that it continues."""

    CLEAN = "clean"
    REALIGN = "realign"
    FORK = "fork"


@dataclass
class Piece:
    """A call within its context: the tokens given to it there, and how many of its own are kept.

    opens: it is the first call of a context.
    """

    given: tuple[int, ...]
    record: TurnRecord
    kept: int
    opens: bool

    @property
    def ids(self) -> tuple[int, ...]:
        """The output tokens that are kept."""
        return self.record.output_ids[: self.kept]


@dataclass
class Context:
    """A sequence so far. begins: the index at which its last answer begins."""

    tokens: list[int] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    begins: int = 0

    def may_continue(self, prompt: Sequence[int]) -> bool:
        """Whether the prompt repeats the first token of the last answer; else it forks."""
        return self.begins < len(prompt) and prompt[self.begins] == self.tokens[self.begins]

    def drift(self, prompt: Sequence[int], fork_threshold: int) -> tuple[Drift, int]:
        """How a prompt relates to this context, and in how many tokens of it they differ."""
        common = common_prefix(self.tokens, prompt)
        tokens = len(self.tokens) - common
        if tokens == 0:
            return Drift.CLEAN, 0
        if common > self.begins and tokens < fork_threshold and common < len(prompt):
            return Drift.REALIGN, tokens
        return Drift.FORK, tokens

    def add(self, record: TurnRecord) -> None:
        """Continue with a call, whose prompt may differ from this context's last answer."""
        common = common_prefix(self.tokens, record.prompt_ids)
        if self.pieces and common < len(self.tokens):
            self.pieces[-1].kept = common - self.begins
        given = record.prompt_ids[common:]
        self.pieces.append(Piece(given, record, len(record.output_ids), not self.pieces))
        self.tokens = [*record.prompt_ids, *record.output_ids]
        self.begins = len(record.prompt_ids)


class Transition(NamedTuple):
    """How a call follows earlier ones. tokens: the drift, in a fork from the newest context."""

    kind: Drift
    tokens: int


@dataclass
class Joined:
    """The contexts of a rollout, in the order of their first calls, and the calls' transitions."""

    fork_threshold: int = FORK_THRESHOLD
    contexts: list[Context] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)

    def add(self, record: TurnRecord) -> None:
        """Add a call to the context that it continues, or to a new one."""
        if self.contexts:
            context, transition = self._place(record.prompt_ids)
            self.transitions.append(transition)
            if context is not None:
                context.add(record)
                return
        self.contexts.append(Context())
        self.contexts[-1].add(record)

    def _place(self, prompt: Sequence[int]) -> tuple[Context | None, Transition]:
        """The context that the prompt continues: a clean one before others, then the one of which
        it repeats most, then the newest.
        """
        newest, *older = reversed(self.contexts)
        found = [
            (context, Transition(*context.drift(prompt, self.fork_threshold)))
            for context in (newest, *(each for each in older if each.may_continue(prompt)))
        ]
        continued = [each for each in found if each[1].kind is not Drift.FORK]
        if not continued:
            return None, found[0][1]
        return max(
            continued,
            key=lambda each: (each[1].kind is Drift.CLEAN, len(each[0].tokens) - each[1].tokens),
        )

    @property
    def pieces(self) -> list[Piece]:
        """The pieces of all contexts, one context after another."""
        return [piece for context in self.contexts for piece in context.pieces]


def join(records: Sequence[TurnRecord], fork_threshold: int = FORK_THRESHOLD) -> Joined:
    """Join the calls of one rollout to contexts."""
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
    """The length of the common prefix of two sequences."""
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
