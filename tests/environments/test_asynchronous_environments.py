"""Environments with an async step: the same episodes, and a slow one delays no other."""

import asyncio
import os
import signal
import time
from typing import ClassVar

import pytest
from fakes.engine import TableEngine, by_last_token

from strop.engines.asynchronous import AsyncEngine, asynchronous, gather, run
from strop.engines.base import Account, Request
from strop.environments import Environment, Observation
from strop.environments.base import EnvironmentSource
from strop.environments.episodes import CallLimits, Episodes
from strop.support.exits import Exit


class Digits(Environment):
    """What is said comes back with its length as a reward, three times."""

    max_turns = 3

    def reset(self, seed):
        self.turns = 0
        return Observation(f"{seed}:")

    def step(self, action):
        self.turns += 1
        return Observation(f"{action}={self.turns}", float(len(action)), self.turns == 3)


class Slow(Digits):
    """The same, after as many rounds of the loop as its seed says."""

    rounds: ClassVar[list[int]] = []

    def reset(self, seed):
        self.seed = seed
        return super().reset(seed)

    async def step(self, action):
        if action == "raise":
            raise ValueError("broken")
        for _ in range(self.seed):
            await asyncio.sleep(0.001)
        self.rounds.append(self.seed)
        return super().step(action)


def episodes_of(name, seeds):
    return Episodes(EnvironmentSource(f"{__file__}:{name}"), seeds)


def test_steps_are_those_of_an_ordinary_environment():
    plain, slow = episodes_of("Digits", (1, 2)), episodes_of("Slow", (1, 2))
    assert (plain.awaited, slow.awaited) == (False, True)
    assert plain.reset() == slow.reset()
    for actions in (["a", "bc"], ["d", ""], ["e", "f"]):
        assert plain.step([0, 1], actions) == slow.step([0, 1], actions)
    slow.close()


def test_an_error_names_action_and_seed_and_a_middle_is_repeated_inside_a_loop():
    episodes = episodes_of("Slow", (4,))
    episodes.reset()
    (failed,) = episodes.step([0], ["raise"])
    assert "the action 'raise' in the episode of the seed 4: ValueError: broken" in failed.why

    async def inside():
        again = episodes.repeat(0, ["a"], ["4:", "a=1"])
        return await episodes.step_alone(again, "bc")

    assert asyncio.run(inside()).text == "bc=2"
    episodes.close()


def test_a_step_that_takes_too_long_is_the_policys():
    source = EnvironmentSource(f"{__file__}:Slow")
    episodes = Episodes(source, (1000, 1), limits=CallLimits(0, seconds=0.05))
    episodes.reset()
    late, other = episodes.step([0, 1], ["a", "b"])
    assert (late.exit, late.done, other.exit) == (Exit.TIMEOUT, True, None)
    assert "TimeoutError: it took over 0.05 s (data.env_timeout_seconds). Correct it" in late.why
    episodes.close()


class Interrupted(Digits):
    """Ctrl-C comes while it begins."""

    async def reset(self, seed):
        await asyncio.sleep(0.3)  # whoever awaits it only waits by then
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)


def test_an_interrupt_does_not_wait_for_what_is_awaited():
    interrupted, started = episodes_of("Interrupted", (1,)), time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted.reset()
    finally:
        signal.signal(signal.SIGINT, before)
    interrupted.close()
    assert time.monotonic() - started < 30


class Counting(TableEngine):
    """In lockstep, or not; keeps the ids of what it is given, in that order."""

    def __init__(self, lockstep=False):
        super().__init__(by_last_token({0: [0.0, 1.0], 1: [0.0, 1.0]}))
        self.lockstep, self.asked = lockstep, []

    def start(self, id, request, source=None):
        self.asked.append(request.seed)
        super().start(id, request, source)


async def played(engine: AsyncEngine, seconds: list[float]):
    """Each asks again after its time; the order in which they ended, and the first one's tokens."""
    ends: list[int] = []

    async def one(number):
        await engine.generate(Request((1,), 1, seed=number))
        await asyncio.sleep(seconds[number])
        await engine.generate(Request((1,), 3, seed=number))
        ends.append(number)

    await gather(one(number) for number in range(len(seconds)))
    return ends


def test_generation_goes_on_for_those_that_have_answered():
    engine = Counting()
    ends = run(asynchronous(engine), played(asynchronous(engine), [0.2, 0.0, 0.05]), Account())
    assert ends == [1, 2, 0]
    assert engine.asked == [0, 1, 2, 1, 2, 0]


def test_several_processes_wait_for_all_and_hand_on_in_one_order():
    engine = Counting(lockstep=True)
    run(asynchronous(engine), played(asynchronous(engine), [0.1, 0.0, 0.05]), Account())
    assert engine.asked == [0, 1, 2, 0, 1, 2]
    assert engine.num_steps == 4


class Leaving(Digits):
    """Which ends its process, or cancels itself, in place of an answer."""

    async def step(self, action):
        if action == "exit":
            raise SystemExit(429)
        if action == "cancel":
            raise asyncio.CancelledError
        return super().step(action)


def test_one_that_exits_or_is_cancelled_inside_costs_its_own_episode():
    episodes = episodes_of("Leaving", (1, 2, 3))
    episodes.reset()
    left, cancelled, other = episodes.step([0, 1, 2], ["exit", "cancel", "a"])
    assert [left.exit, cancelled.exit, other.exit] == [Exit.ENVIRONMENT_CRASH] * 2 + [None]
    assert "ItExited: it called sys.exit(429)" in left.why
    assert "ItExited: it was cancelled from inside" in cancelled.why

    async def ended():
        task = asyncio.ensure_future(episodes.step_alone(2, "b"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(ended())
    episodes.close()
