"""Plays many episodes at once: each ends with a cause, and none of them ends the run."""

import asyncio
import inspect
import numbers
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from strop.environments.base import (
    SHOWN,
    Environment,
    EnvironmentSource,
    Observation,
    close,
    steps_all,
)
from strop.environments.tools import ToolAnswer
from strop.support.about import SOURCE
from strop.support.errors import RunStopped, UserError, in_words
from strop.support.exits import Exit
from strop.support.http import RETRIED
from strop.support.loading import where_raised

T = TypeVar("T")
# Classes of errors that libraries raise where something could not be reached: Python, urllib,
# httpx, requests, aiohttp, websockets and openai.
TRANSIENT = frozenset(
    ("ConnectionError", "TimeoutError", "URLError", "TransportError", "Timeout",
     "ClientConnectionError", "ConnectionClosed", "APIConnectionError")
)  # fmt: skip
FIRST_WAIT_SECONDS = 0.25  # before the second try; each further wait is twice as long
MOST_WAIT_SECONDS = 30.0
HUGE = 2.0**127  # larger rewards are refused, before float32 overflows
TEXTS = ("text", "state", "why")  # of an observation
FLAGS = ("done", "truncated", "valid", "match")


@dataclass(frozen=True)
class CallLimits:
    """retries: further tries of a call that fails with a transient error. seconds: the time limit
    of a call, where it is awaited or runs in a process of its own.
    """

    retries: int = 2
    seconds: float = 120.0

    def waits(self) -> Iterator[float]:
        """Seconds before each further try."""
        for number in range(self.retries):
            yield min(FIRST_WAIT_SECONDS * 2.0**number, MOST_WAIT_SECONDS)

    @property
    def whole_seconds(self) -> float:
        """The time limit of a call, including the waits before its further tries."""
        return self.seconds + sum(self.waits())


def is_transient(error: BaseException) -> bool:
    """Whether another try may help after an error, by its attribute `transient` or `again`, its
    HTTP status, or because it is one of the errors of connections, or was raised from one.
    """
    for name in ("transient", "again"):
        if isinstance(flag := getattr(error, name, None), bool):
            return flag
    for owner in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            status = getattr(owner, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status in RETRIED
    if any(kind.__name__ in TRANSIENT for kind in type(error).__mro__):
        return True
    return error.__cause__ is not None and is_transient(error.__cause__)


class ItExited(Exception):
    """An environment called `sys.exit`, or cancelled itself, instead of answering."""


class Episodes:
    """Many episodes of one environment at once; each has a number, its index among the seeds.

    An environment is closed when its episode ends; `close` closes the others. `played`: an existing
    environment for a single episode, which stays open.

    Where an environment raises, or answers with something other than an Observation, its episode
    ends with an exit that says why. A call with a transient error is retried first. A call that
    hangs ends its episode too, where it can be awaited.
    """

    def __init__(
        self, source: EnvironmentSource, seeds: Sequence[int], played: Environment | None = None,
        limits: CallLimits = CallLimits(),
    ) -> None:  # fmt: skip
        self.source, self.limits = source, limits
        self.seeds = tuple(seeds)
        self.environments: dict[int, Environment] = {0: played} if played else {}
        self.failed: dict[int, Observation] = {}  # the observations of failed episodes
        # Whether an observation is the whole context of its turn; most actions of an episode, most
        # tokens of an action; the role of each player, empty where there is one player.
        self.rewrites, self.max_turns, self.max_tokens = False, 1, 1
        self.roles: tuple[int, ...] = ()
        self.awaited = False  # steps are awaited (`step_alone`), while other episodes continue
        self._awaits_reset = False
        self._open: set[int] = set()
        self._shown: dict[int, set[int]] = {}  # the players of each episode who have seen a text
        self._loop: asyncio.AbstractEventLoop | None = None  # awaits steps for synchronous callers
        self._thread: ThreadPoolExecutor | None = None  # the thread of the loop
        if played is not None:
            self._learn(played)
        else:
            for number in range(len(self.seeds)):
                self._make(number)

    def reset(self) -> list[Observation]:
        """Begin all episodes, concurrently where `reset` is asynchronous."""
        if self._awaits_reset:
            return self._together([self._reset_alone(n) for n in range(len(self.seeds))])
        return [self._reset(number) for number in range(len(self.seeds))]

    async def step_alone(self, number: int, action: str) -> Observation:
        """Step one episode, whose environment is asynchronous."""
        if number in self.failed:
            return self.failed[number]
        where = self._at([number], [action])
        made = await self._called(number, where, lambda: self.environments[number].step(action))
        return made if number in self.failed else self._observed(number, action, made)

    def step(self, numbers: Sequence[int], actions: Sequence[str]) -> list[Observation]:
        """Step the episodes `numbers` and return their observations in the same order."""
        going = {n: a for n, a in zip(numbers, actions, strict=True) if n not in self.failed}
        found = dict(zip(going, self._step(going), strict=True))
        return [found[n] if n in found else self.failed[n] for n in numbers]

    def repeat(self, number: int, actions: Sequence[str], seen: Sequence[str]) -> int:
        """Begin another episode with the seed of `number`, replay these actions, and return its
        number. `seen`: the texts of the first episode, before the actions and after each.

        Raises RunStopped where the new episode shows other texts.
        """
        return self.begin(self.seeds[number], actions, seen)[0]

    def begin(
        self, seed: int, actions: Sequence[str] = (), seen: Sequence[str] = ()
    ) -> tuple[int, Observation]:
        """Begin another episode of a seed and replay these actions. Returns its number and its last
        observation; a failure of the replay is returned by its next step. Raises RunStopped where
        it shows other texts than `seen`.
        """
        again = len(self.seeds)
        self.seeds = (*self.seeds, seed)
        self._make(again)
        shown = self._reset(again)
        for place, text in enumerate(seen):
            if place:
                (shown,) = self.step([again], [actions[place - 1]])
            if again in self.failed:
                break
            if shown.text != text or shown.done or shown.truncated:
                after = f"the first {place} actions" if place else "its reset"
                raise RunStopped(
                    f"environment {self.source.name} does not repeat: in the episode of the seed "
                    f"{seed} it showed {text[:SHOWN]!r} after {after}, and then "
                    f"{shown.text[:SHOWN]!r}. Equal seeds and actions must give equal episodes"
                )
        return again, shown

    def close(self) -> None:
        """Close the environments of unfinished episodes."""
        self._close(sorted(self._open))
        if self._thread is not None and self._loop is not None:
            self._thread.submit(self._loop.close)
            self._thread.shutdown()
            self._thread = self._loop = None

    # ---- from here on: how

    def _make(self, number: int) -> None:
        try:
            made = self.environments[number] = self._tried(self.source.make)
        except Exception as error:
            self._fail(
                number, Exit.START_FAILED, f"the start of the seed {self.seeds[number]}", error
            )
        except BaseException:
            self.close()
            raise
        else:
            self._open.add(number)
            if len(self.environments) == 1:
                self._learn(made)

    def _learn(self, made: Environment) -> None:
        """Copy the facts of an environment, which are equal in all episodes."""
        self.rewrites, self.max_turns, self.max_tokens = (
            made.rewrites, made.max_turns, made.max_tokens
        )  # fmt: skip
        self.roles = made.roles if len(made.roles) > 1 else ()
        self.awaited = inspect.iscoroutinefunction(type(made).step)
        self._awaits_reset = inspect.iscoroutinefunction(type(made).reset)

    def _reset(self, number: int) -> Observation:
        if number in self.failed:
            return self.failed[number]
        if self._awaits_reset:
            return self._together([self._reset_alone(number)])[0]
        seed = self.seeds[number]
        try:
            answer = self._tried(lambda: self.environments[number].reset(seed))
            return self._checked(number, answer, begins=True)
        except Exception as error:
            return self._fail(number, Exit.START_FAILED, f"reset with the seed {seed}", error)

    async def _reset_alone(self, number: int) -> Observation:
        """Begin an episode whose environment is asynchronous."""
        if number in self.failed:
            return self.failed[number]
        seed = self.seeds[number]
        where = f"reset with the seed {seed}"
        made = await self._called(
            number, where, lambda: self.environments[number].reset(seed), Exit.START_FAILED
        )
        if number in self.failed:
            return self.failed[number]
        try:
            return self._checked(number, made, begins=True)
        except Exception as error:
            return self._fail(number, Exit.START_FAILED, where, error)

    async def _called(
        self, number: int, where: str, call: Callable[[], Any], exit: Exit | None = None
    ) -> Any:
        """Return the result of an asynchronous call, which is retried after a transient error; or
        end the episode and return its last observation. exit: used for any kind of failure.
        """
        waits = self.limits.waits()
        while True:
            try:
                async with asyncio.timeout(self.limits.seconds) as limit:
                    return await _never_leaving(call)
            except Exception as error:
                if isinstance(error, TimeoutError) and limit.expired():
                    return self._fail(number, exit or Exit.TIMEOUT, where, over_time(self.limits))
                wait = next(waits, None) if is_transient(error) else None
                if wait is None:
                    return self._fail(number, exit or _exit_of(error), where, error)
            await asyncio.sleep(wait)

    def _step(self, actions: Mapping[int, str]) -> list[Observation]:
        """Step episodes that have not failed."""
        if not actions:
            return []
        if self.awaited:
            return self._together([self.step_alone(*each) for each in actions.items()])
        chosen = [self.environments[number] for number in actions]
        kind, given = type(chosen[0]), list(actions.values())
        if not steps_all(kind):
            return [self._step_one(*each) for each in actions.items()]
        try:
            answers = list(self._tried(lambda: kind.step_all(chosen, given)))
            if len(answers) != len(chosen):
                raise ValueError(f"step_all gave {len(answers)} answers to {len(chosen)} actions")
        except Exception as error:
            where = self._at(list(actions), given)
            return [self._fail(number, _exit_of(error), where, error) for number in actions]
        return [self._observed(*each, o) for each, o in zip(actions.items(), answers, strict=True)]

    def _step_one(self, number: int, action: str) -> Observation:
        try:
            answer = self._tried(lambda: self.environments[number].step(action))
        except Exception as error:
            return self._fail(number, _exit_of(error), self._at([number], [action]), error)
        return self._observed(number, action, answer)

    def _together(self, calls: Sequence[Awaitable[Observation]]) -> list[Observation]:
        """Await all calls together in a loop that lasts as long as the episodes do."""
        if self._loop is None:
            self._loop, self._thread = asyncio.new_event_loop(), ThreadPoolExecutor(1)
        assert self._thread is not None

        async def together() -> list[Observation]:
            return await asyncio.gather(*calls)

        task = self._loop.create_task(together())
        try:
            return self._thread.submit(self._loop.run_until_complete, task).result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(task.cancel)
            raise

    def _tried(self, call: Callable[[], T]) -> T:
        """Return the result of a call, which is retried after a transient error."""
        waits = self.limits.waits()
        while True:
            try:
                return call()
            except SystemExit as error:
                raise ItExited(f"it called sys.exit({error.code!r})") from None
            except Exception as error:
                # the error of a constructor is the cause of a UserError
                wait = next(waits, None) if is_transient(error.__cause__ or error) else None
                if wait is None:
                    raise
            time.sleep(wait)

    def _observed(self, number: int, action: str, answer: Any) -> Observation:
        """Return a checked observation; an answer that is none fails the episode."""
        try:
            checked = self._checked(number, answer)
        except Exception as error:  # its fields may raise anything
            return self._fail(number, Exit.ENVIRONMENT_CRASH, self._at([number], [action]), error)
        if checked.done or checked.truncated:
            self._close([number])
        return checked

    def _fail(self, number: int, exit: Exit, where: str, error: Exception) -> Observation:
        """End an episode with an exit and return the observation that it shows from then on."""
        self.failed[number] = failed(self.source.name, exit, where, error)
        self._close([number])
        return self.failed[number]

    def _close(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number in self._open:
                self._open.remove(number)
                where = f"close after the seed {self.seeds[number]}"
                close(self.environments[number], self.source.name, where)

    def _checked(self, number: int, answer: Any, begins: bool = False) -> Observation:
        """Return the answer. Raises TypeError where it is not a valid observation."""
        problem, players = "", set[int]() if begins else self._shown.get(number, set[int]())
        if not isinstance(answer, Observation):
            problem = f"gave {type(answer).__name__} instead of an Observation"
        elif lacking := [name for name in TEXTS if not _is_text(getattr(answer, name))]:
            problem = f"gave {getattr(answer, lacking[0])!r} as {lacking[0]}"
        elif not isinstance(answer.role, numbers.Integral):
            problem = f"gave {answer.role!r} as role"
        elif not all(map(_is_reward, (answer.reward, *answer.rewards))):
            problem = f"gave the reward {answer.rewards or answer.reward!r}: give finite numbers"
        elif not all(map(_is_reward, answer.measures.values())):
            problem = f"gave the measures {dict(answer.measures)}: give finite numbers"
        elif unclear := [name for name in FLAGS if getattr(answer, name) not in (True, False)]:
            problem = f"gave {getattr(answer, unclear[0])!r} as {unclear[0]}: give true or false"
        elif not all(isinstance(each, ToolAnswer) for each in answer.answers):
            problem = f"gave the answers {answer.answers!r} of tools, which are no ToolAnswers"
        elif answer.rewards and len(answer.rewards) != max(len(self.roles), 1):
            problem = f"gave {len(answer.rewards)} rewards to {max(len(self.roles), 1)} players"
        elif self.roles and not 0 <= answer.role < len(self.roles):
            problem = f"gave the turn to player {answer.role} of {len(self.roles)}"
        elif begins and (answer.done or answer.truncated or not answer.text):
            problem = "began with an episode that is over, or without a text"
        elif not (answer.text or answer.done or answer.truncated) and (
            self.rewrites or (self.roles and answer.role not in players)
        ):
            problem = "gave no text to a turn that shows nothing else"
        elif not isinstance(answer.exit, Exit | None):
            problem = f"gave the exit {answer.exit!r}, which is none of strop.support.exits.Exit"
        elif answer.exit is not None and not (answer.done or answer.truncated):
            problem = f"gave the exit {answer.exit.label} of an episode that goes on"
        if problem:
            raise TypeError(problem)
        self._shown[number] = {*players, answer.role}
        return answer

    def _at(self, numbers: Sequence[int], actions: Sequence[str]) -> str:
        """Describe the call, for messages."""
        seeds = [self.seeds[number] for number in numbers]
        if len(seeds) > 1:
            shown = ", ".join(map(str, seeds[:8])) + (", ..." if len(seeds) > 8 else "")
            return f"step_all over {len(seeds)} episodes (seeds {shown})"
        return step_of(seeds[0], actions[0])


async def _never_leaving(call: Callable[[], Any]) -> Any:
    """Await a call that may neither end this process nor cancel the task that awaits it."""
    task = asyncio.current_task()
    assert task is not None
    asked = task.cancelling()
    try:
        return await call()
    except SystemExit as error:
        raise ItExited(f"it called sys.exit({error.code!r})") from None
    except asyncio.CancelledError:
        if task.cancelling() > asked:  # cancelled from outside: the run ends, or time is up
            raise
        raise ItExited("it was cancelled from inside") from None


def _is_reward(value: Any) -> bool:
    """Whether the value is a number of a size that can be averaged."""
    try:
        return not isinstance(value, str) and abs(float(value)) < HUGE
    except (TypeError, ValueError, OverflowError):
        return False


def _is_text(value: Any) -> bool:
    """Whether the value is a text that can be encoded in UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def step_of(seed: int, action: str) -> str:
    """Describe a step of an episode, for messages."""
    shown = action if len(action) <= SHOWN else action[:SHOWN] + "..."
    return f"the action {shown!r} in the episode of the seed {seed}"


def failed(name: str, exit: Exit, where: str, error: BaseException) -> Observation:
    """The observation of a failed episode: that it has ended, why, and where.

    An exit that the policy causes, as by too slow an action, ends it like a rule, so that its
    rewards count.
    """
    by_rule = exit.is_policys
    place = where_raised(error) if error.__traceback__ is not None else str(SOURCE)
    raised = f" ({place})" if not place.startswith(str(SOURCE)) else ""
    why = f"environment {name} failed at {where}: {in_words(error)}{raised}. Correct it"
    if isinstance(error, UserError):  # it says what to do
        why = f"environment {name} failed at {where}: {error}{raised}"
    elif exit is not Exit.START_FAILED:
        why += "; an action that it cannot read should be answered with valid=False"
    return Observation("", done=by_rule, truncated=not by_rule, exit=exit, why=why)


def over_time(limits: CallLimits) -> TimeoutError:
    """The error of a call that takes too long."""
    return TimeoutError(f"it took over {limits.seconds:g} s (data.env_timeout_seconds)")


def _exit_of(error: Exception) -> Exit:
    return Exit.UNREACHABLE if is_transient(error) else Exit.ENVIRONMENT_CRASH
