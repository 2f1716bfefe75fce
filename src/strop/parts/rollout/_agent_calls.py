"""Handles the calls of one agent: draws as they arrive, records them, stops unneeded draws."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from strop.engines.asynchronous import AsyncEngine, PendingRequest
from strop.engines.base import Answer
from strop.method.services import (
    AgentEnd,
    AgentEpisode,
    ModelAnswer,
    ModelCall,
    Refused,
    Sampling,
    Withdrawn,
)
from strop.parts.rollout.base import SPREAD, SamplingFields
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.traces.records import TurnRecord


def too_long(call: ModelCall, sampling: Sampling) -> Refused | None:
    """Why a call has no room in the context; None where it has."""
    if len(call.prompt_ids) < sampling.context_tokens:
        return None
    size = len(call.prompt_ids)
    why = f"the context of this model is {sampling.context_tokens} tokens: the prompt has {size}"
    return Refused(400, why, "context_length_exceeded")


def begin(
    call: ModelCall, part: SamplingFields, sampling: Sampling, engine: AsyncEngine, seed: int,
    number: int,
) -> list[PendingRequest]:  # fmt: skip
    """Start to draw the answers to the call of this index, with the run's sampling options."""
    room = sampling.context_tokens - len(call.prompt_ids)
    most = min(room, part.max_tokens or sampling.answer_tokens, call.max_tokens or room)
    ends = {"stop_ids": (*sampling.stop_ids, *call.stop_ids),
            "stop_strings": (*sampling.stop_strings, *call.stop_strings)}  # fmt: skip
    seeds = ((seed + SPREAD * (number + (choice << 32))) % 2**64 for choice in range(call.num))
    return [
        engine.begin(part.request(sampling, call.prompt_ids, each, most, keep=True, **ends))
        for each in seeds
    ]


class OpenCall(NamedTuple):
    """A call that is being answered. number: its index among all calls."""

    number: int
    task: asyncio.Task[None]
    pending: list[PendingRequest]

    def stop(self) -> None:
        """Stop the draws for it."""
        self.task.cancel()
        for each in self.pending:
            if not each.done:
                each.stop()


@dataclass
class AgentCalls:
    """The calls of one agent so far, in the order in which they came.

    part: the strategy, for its sampling options; max_turns: most calls that are answered.
    """

    part: SamplingFields
    max_turns: int
    engine: AsyncEngine
    sampling: Sampling
    episode: AgentEpisode
    seed: int
    records: list[list[TurnRecord]] = field(default_factory=list)  # of each call, by choice
    asked: dict[str, OpenCall] = field(default_factory=dict)  # by call
    held: list[Answer] = field(default_factory=list)  # of the newest call, kept by the engine
    limit: Exit | None = None  # why the newest call got no answer
    limited: int = -1  # the place of that call
    broken: Exception | None = None  # a fault of ours

    async def listen(self) -> AgentEnd:
        """Answer calls until the agent has ended; returns how it ended."""
        most = self.max_turns
        while not isinstance(event := await self.episode.next(), AgentEnd):
            if isinstance(event, Withdrawn):
                self.forget(event)
                continue
            number = len(self.records)
            if number >= 2 * most:
                return AgentEnd(Exit.TURN_LIMIT, f"the agent called on after {most} refusals", 0.0)
            self.records.append([])
            pending: list[PendingRequest] = []
            task = asyncio.ensure_future(self.answered(event, number, pending))
            self.asked[event.id] = OpenCall(number, task, pending)
        return event

    def exit_of(self, end: AgentEnd) -> Exit:
        """Why the agent ended: the limit that its newest call hit, where it failed for that. With
        a call that it gave up it failed for a limit of time, else for something beside the call.
        """
        if self.limit is None or end.exit in (Exit.DONE, Exit.ENVIRONMENT_CRASH):
            return end.exit
        late = end.exit is Exit.UNREACHABLE and end.timed_out
        if self.limit is Exit.TIMEOUT and not late:
            return end.exit
        return self.limit

    def forget(self, gone: Withdrawn) -> None:
        """Cancel a call that nobody waits for; it is no part of the rollout."""
        asked = self.asked[gone.call_id]
        asked.stop()
        self.records[asked.number] = []
        self.limit_at(asked.number, Exit.TIMEOUT)

    def stop(self) -> None:
        """Stop the running draws."""
        for asked in self.asked.values():
            if not asked.task.done():  # an agent that has ended has given it up
                asked.stop()
                if self.limit is None:
                    self.limit_at(asked.number, Exit.TIMEOUT)

    def limit_at(self, number: int, exit: Exit) -> None:
        """Refuse a call, with the reason."""
        if number >= self.limited:
            self.limit, self.limited = exit, number

    async def answered(self, call: ModelCall, number: int, pending: list[PendingRequest]) -> None:
        """As `answer`, but reports errors to the agent, so that it never waits forever."""
        try:
            await self.answer(call, number, pending)
        except Exception as error:
            self.broken = error
            self.episode.refuse(call, Refused(500, "the run failed at this call"))

    async def answer(self, call: ModelCall, number: int, pending: list[PendingRequest]) -> None:
        """Draw the answers to a call, send them to the agent, and keep a record of each."""
        part, sampling = self.part, self.sampling
        if number >= self.max_turns:
            self.limit_at(number, Exit.TURN_LIMIT)
            why_not = f"an episode has {self.max_turns} calls (rollout.max_turns)"
            self.episode.refuse(call, Refused(400, why_not))
            return
        if (why := too_long(call, sampling)) is not None:
            self.limit_at(number, Exit.TOKEN_LIMIT)
            self.episode.refuse(call, why)
            return
        pending += begin(call, part, sampling, self.engine, self.seed, number)
        await self.engine.wait(pending)
        try:
            answers = [each.answer() for each in pending]
        except UserError as error:  # the engine does not take the call
            self.episode.refuse(call, Refused(400, str(error)))
            return
        if lost := [each for each in answers if each.failed]:
            self.limit_at(number, Exit.ENGINE_LOST)
            self.episode.refuse(call, Refused(500, lost[0].events[-1].why))
            return
        replies = [ModelAnswer.of(each) for each in answers]
        most = pending[0].request.max_tokens
        chosen = call.max_tokens == most  # by the agent, so this end cuts nothing
        self.records[number] = [
            replace(each, ended="stop" if chosen else each.ended).record(call)
            for each in replies
            if each.ids
        ]
        for each in self.held:
            self.engine.drop(each)
        self.held = answers
        if number > self.limited:
            self.limit = None
        self.episode.reply(call, replies)
