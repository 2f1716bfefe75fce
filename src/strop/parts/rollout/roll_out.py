"""Runs strategies of rollouts on an engine, one to its end or several beside each other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple, TypeAlias

from strop.batch.batch import Batch
from strop.engines.asynchronous import Account, Ends, asynchronous
from strop.engines.base import Engine
from strop.engines.loop import EngineLoop, on, run
from strop.method.services import Services
from strop.parts.rollout.base import THROWN_AWAY, Rollouts
from strop.support.errors import UserError

Strategy: TypeAlias = Coroutine[Any, Any, Rollouts]


class RolledOut(NamedTuple):
    """What a strategy of rollouts came to."""

    batch: Batch
    state: Any
    num_thrown_away: int  # tokens that the engine drew for it and that are not in the batch
    metrics: Mapping[str, float] = {}


def roll_out(strategy: Strategy, engine: Engine, services: Services | None = None) -> RolledOut:
    """Run a strategy to its end. Raises UserError where all of its requests failed.

    A strategy whose tokens are of other steps too tells `rollout/tokens_thrown_away` itself.
    """
    account = account_of(services)
    returned = run(asynchronous(engine), strategy, account)
    account.ends.check()
    return _rolled_out(returned, account)


def account_of(services: Services | None) -> Account:
    """An account whose failures the run's services are told of."""
    return Account() if services is None else Account(services.sampling.failures.append)


class Crowd:
    """Strategies of rollouts on one engine, each of which begins and ends for itself."""

    def __init__(self, engine: Engine, services: Services | None = None) -> None:
        self.engine, self.services = asynchronous(engine), services
        self.loop = EngineLoop(self.engine)
        self.runs: dict[Any, tuple[asyncio.Task[Any], Account]] = {}  # by what `begin` was told

    def begin(self, key: Any, strategy: Strategy) -> None:
        """Run a strategy beside the others from the next turn on."""
        account = account_of(self.services)
        self.runs[key] = self.loop.create_task(on(account, strategy)), account

    def left(self, key: Any, size: int) -> int:
        """Rollouts that one under way has yet to end, of `size`; it may have more requests open.

        Between two turns what follows an ended request, such as an episode's next one, has begun.
        """
        _, account = self.runs[key]
        return max(size - (account.num_begun - len(account.open)), len(account.open))

    def turn(self) -> list[tuple[Any, RolledOut, Ends]]:
        """Let the engine step once; those that have ended by then, with their keys."""
        self.loop.run_until_complete(self._turn())
        return [self._end(key) for key, (task, _) in list(self.runs.items()) if task.done()]

    async def _turn(self) -> None:
        await self.engine.settled(outer=True)
        if not any(task.done() for task, _ in self.runs.values()):
            self.engine.step()
            await self.engine.settled(outer=True)  # what follows the ends of this step has begun

    def _end(self, key: Any) -> tuple[Any, RolledOut, Ends]:
        task, account = self.runs.pop(key)
        self.engine.close(account)
        return key, _rolled_out(task.result(), account), account.ends

    def close(self) -> None:
        """End all that are under way."""
        for _, account in self.runs.values():
            self.engine.close(account)
        self.runs = {}
        if not self.loop.is_closed():
            self.loop.end()


def _rolled_out(returned: Any, account: Account) -> RolledOut:
    """What a strategy that has ended came to. Raises UserError where that is none of it."""
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise UserError(
            f"the strategy returned {type(returned).__name__}; it returns its batch and its state, "
            "which is None where it keeps none"
        )
    batch, state, metrics = (*returned, {})[:3]
    thrown_away = int(metrics.get(THROWN_AWAY, max(account.num_drawn - _drawn_in(batch), 0)))
    told = {name: value for name, value in metrics.items() if name != THROWN_AWAY}
    return RolledOut(batch, state, thrown_away, told)


def _drawn_in(batch: Batch) -> int:
    """Tokens of a batch that an engine drew, those that rollouts share counted once."""
    drawn_T = batch["mask_T"] & (batch["origin_T"] == 0)
    return int(drawn_T.sum() - batch["fork_at_B"].clamp(min=0).sum())
