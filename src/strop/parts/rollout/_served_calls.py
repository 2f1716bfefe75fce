"""Answers calls of clients that sample from the run while it trains, as they arrive."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from strop.engines.asynchronous import ACCOUNT, AsyncEngine, PendingRequest
from strop.engines.base import Account, Answer
from strop.method.services import ModelAnswer, ModelCall, ModelCalls, Refused, Sampling, Withdrawn
from strop.parts.rollout._agent_calls import begin, too_long
from strop.parts.rollout.base import SamplingFields
from strop.support.errors import UserError

MOST_KEPT = 256  # answers whose caches are held, for calls that continue them


@dataclass
class ServedCalls:
    """Calls in flight. Those that a step leaves unfinished continue in the next one.

    Therefore they have an account of their own, which no step closes.
    """

    calls: ModelCalls
    engine: AsyncEngine
    account: Account = field(default_factory=Account)
    open: dict[str, tuple[ModelCall, list[PendingRequest]]] = field(default_factory=dict)
    kept: deque[Answer] = field(default_factory=deque)
    broken: Exception | None = None  # a fault of ours

    async def serve(self, part: SamplingFields, sampling: Sampling, seed: int) -> None:
        """Answer clients' calls until cancelled; then pending clients get no message."""
        ACCOUNT.set(self.account)
        self.account.on_failure = sampling.failures.append
        waiting = {asyncio.ensure_future(self._answer(*each)) for each in self.open.values()}
        number = 0
        try:
            while True:
                event = await self.calls.event()
                if isinstance(event, Withdrawn):
                    self._forget(event)
                elif (why := too_long(event, sampling)) is not None:
                    self.calls.refuse(event, why)
                else:
                    pending = begin(event, part, sampling, self.engine, seed, number)
                    self.open[event.id] = event, pending
                    waiting.add(asyncio.ensure_future(self._answer(event, pending)))
                    number += 1
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            while self.kept:
                self.engine.drop(self.kept.popleft())

    async def _answer(self, call: ModelCall, pending: Sequence[PendingRequest]) -> None:
        """Send a client its answers once all of them are drawn."""
        try:
            await self.engine.wait(pending)
            answers = [each.answer() for each in pending]
        except UserError as error:  # the engine does not take the call
            self._refuse(call, Refused(400, str(error)))
        except Exception as error:
            self.broken = error
            self._refuse(call, Refused(500, "the run failed at this call"))
        else:
            self._keep(answers)
            if lost := [each for each in answers if each.failed]:
                self._refuse(call, Refused(500, lost[0].events[-1].why))
                return
            del self.open[call.id]
            self.calls.reply(call, [ModelAnswer.of(each) for each in answers])

    def _refuse(self, call: ModelCall, why: Refused) -> None:
        del self.open[call.id]
        self.calls.refuse(call, why)

    def _keep(self, answers: Sequence[Answer]) -> None:
        """Hold the caches of these answers, and release those of the oldest ones."""
        self.kept.extend(answers)
        while len(self.kept) > MOST_KEPT:
            self.engine.drop(self.kept.popleft())

    def _forget(self, gone: Withdrawn) -> None:
        """Cancel a call that nobody waits for."""
        _, pending = self.open.get(gone.call_id, (None, ()))
        for each in pending:
            if not each.done:
                each.stop()
