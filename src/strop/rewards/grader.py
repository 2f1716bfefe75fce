"""Scores of rollouts, computed outside the training process.

A reward function sees the whole batch in one call, because it may compare the members of a group;
one whose rows are independent is called on pieces of `PIECE_ROWS`. When a call fails, each of its
rows is tried alone to find those that fail. They stay unscored; the others are scored together in
a second call (or keep the scores they got alone, where rows are independent). When no row fails
alone, an exception or a late call belongs to the batch as a whole and leaves all of it unscored.

A call on n rows may take `timeout_seconds * (1 + (n - 1) / 32)`, where a reward that limits its own
time says its seconds itself; what the call imports has a limit of its own. Trying rows alone ends
at the eighth late row (or the 64th that ends its process): later rows stay unscored and say so.
Neither the pieces nor that rule depend on the number of workers, so the scores don't either; a
function that keeps state between calls may see that it runs in several processes.
"""

import contextlib
import json
import pickle
import selectors
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from strop.data.encode import completion_form
from strop.environments.tasks import RewardSpec
from strop.rewards.scored import Rollouts
from strop.support import guarded_process
from strop.support.errors import UserError
from strop.support.guarded_process import GuardedProcess
from strop.support.loading import search_path

START_SECONDS = 120.0  # of loading the user's module, and of what a call imports
MODEL_START_SECONDS = 1800.0  # reading the weights of a reward model
_WORKER = "strop.rewards.grader_worker"


class WorkerDied(Exception):
    """The process ended by itself, or said what is no reply; the text says how."""


class WorkerProcess(GuardedProcess):
    """One process that holds the loaded reward functions; starts again when asked after death.

    `deadline` is when the reply is due. What a call imports does not count there: that has a limit
    of its own, and the process says when it begins and ends.
    """

    def __init__(self, specs: Sequence[RewardSpec], log: Path | None) -> None:
        self.specs = tuple(specs)
        self.log = log
        self.deadline = 0.0
        self._left = 0.0  # seconds for importing; while it imports, for the rest of the call
        self._importing = False
        self._asked = 0  # number of the last request
        self.facts: list[dict[str, Any]] = []  # of each function: independent rows, own time

    def start(self) -> None:
        """Launch the process and ask it to load the functions; `finish_start` waits for it."""
        with contextlib.ExitStack() as opened:
            log = None if self.log is None else opened.enter_context(self.log.open("ab"))
            self.launch(_WORKER, 2 if log is None else log)
        request = {"operation": "load", "specs": self.specs, "path": search_path()}
        self._write(request, self._start_seconds)

    def finish_start(self) -> None:
        """Wait until the functions are loaded.

        Raises UserError for what `load_reward` refuses and for a file that ends the process.
        """
        sources = ", ".join(spec.source for spec in self.specs)
        try:
            self.facts = self.receive()["facts"]
        except WorkerDied as error:
            raise UserError(f"loading the rewards {sources}: {error}: mend the file") from error
        except TimeoutError as error:
            raise UserError(
                f"loading the rewards {sources} took over {self._start_seconds:g} s: "
                "move slow work out of the import"
            ) from error

    def ask(self, request: dict[str, Any], limit: float) -> None:
        """Send a request whose reply is due in `limit` seconds, in a new process if need be."""
        try:
            self._write(request, limit)
        except (OSError, EOFError):  # it died since the last reply; nothing was lost
            self.start()
            self.finish_start()
            self._write(request, limit)

    def receive(self) -> dict[str, Any]:
        """The reply. Raises WorkerDied, TimeoutError, or the UserError that the process met."""
        reply = self.news()
        while reply is None:
            reply = self.news()
        return reply

    def news(self) -> dict[str, Any] | None:
        """The reply; None where the call has begun or ended to import. Raises as `receive`."""
        assert self.channel is not None
        try:
            reply = json.loads(guarded_process.receive(self.channel, self.deadline))
            about = reply["number"]
        except EOFError:
            raise self._died(self.how_it_died()) from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise self.malformed() from None
        except TimeoutError:
            self.end()
            raise
        if about != self._asked:
            raise self.malformed()
        if "imports" in reply:
            if reply["imports"] != self._importing:
                now, self._importing = time.monotonic(), not self._importing
                self.deadline, self._left = now + self._left, self.deadline - now
            return None
        if "user_error" in reply:
            raise UserError(reply["user_error"])
        return dict(reply)

    def malformed(self) -> WorkerDied:
        """End the process for a reply that is none; the error to raise."""
        return self._died(
            "the process sent what is no reply; does it write to files that it did not open?"
        )

    def _died(self, how: str) -> WorkerDied:
        self.end()
        return WorkerDied(how)

    @property
    def _start_seconds(self) -> float:
        models = any(spec.source.startswith("model:") for spec in self.specs)
        return MODEL_START_SECONDS if models else START_SECONDS

    def _write(self, request: dict[str, Any], limit: float) -> None:
        if self.channel is None:
            raise EOFError("not started")
        self._asked, self._importing = self._asked + 1, False
        self.deadline, self._left = time.monotonic() + limit, START_SECONDS
        self.channel.settimeout(limit)
        content = {**request, "number": self._asked}
        guarded_process.send(self.channel, pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL))


PIECE_ROWS = 64
MAX_LOST_ROWS = {"timeout": 8, "crash": 64}
Kind = Literal["exception", "crash", "timeout"]


@dataclass(frozen=True)
class Failure:
    """Why one reward left one row unscored."""

    row: int
    reward: str
    kind: Kind
    message: str


@dataclass(frozen=True)
class Grades:
    """Scores of a batch of B rollouts under M rewards."""

    scores_BM: NDArray[np.float64]  # NaN: no score (failed, or the reward returned None)
    scored_B: NDArray[np.bool_]  # False: a reward failed on the row, or every one returned None
    failures: tuple[Failure, ...]  # by reward, then by row
    metrics: Mapping[str, float]  # log_metric; the mean over rows when there were several calls
    extra: Mapping[str, list[Any]]  # log_extra; None where the reward did not score the row
    seconds: float


@dataclass(frozen=True)
class _Call:
    function: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class _Outcome:
    """Either a reply with scores, or the kind and message of a failure."""

    reply: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind | None = None
    message: str = ""


_Answered = list[tuple[_Call, _Outcome]]


class Grader:
    """Runs reward functions in `num_workers` processes of their own; a context manager.

    Functions are loaded at once, so a mistake in a reward file shows before training begins. A
    process that dies is started again. What the functions print goes to the error stream, or to
    the file `log`.

    Raises UserError for what `load_reward` refuses.
    """

    def __init__(
        self,
        specs: Sequence[RewardSpec],
        timeout_seconds: float = 10.0,
        num_workers: int = 1,
        log: Path | None = None,
    ) -> None:
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise UserError(f"rewards are named {names}: give at least one, and each its own name")
        if timeout_seconds <= 0 or num_workers < 1:
            raise UserError(
                f"grading with timeout_seconds={timeout_seconds} and num_workers={num_workers}: "
                "make both positive"
            )
        self.specs = tuple(specs)
        self.timeout_seconds = timeout_seconds
        self._workers = [WorkerProcess(specs, log) for _ in range(num_workers)]
        try:
            for worker in self._workers:
                worker.start()
            for worker in self._workers:
                worker.finish_start()
            facts = self._workers[0].facts
            self.specs = tuple(
                replace(spec, rows_are_independent=fact["rows_are_independent"])
                for spec, fact in zip(specs, facts, strict=True)
            )
            self._seconds = [fact["timeout_seconds"] or timeout_seconds for fact in facts]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Grader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def check(self, columns: Iterable[str]) -> None:
        """Raise UserError when a reward needs a parameter that is none of these columns."""
        worker = self._workers[0]
        worker.ask({"operation": "check", "columns": list(columns)}, self.timeout_seconds)
        try:
            worker.receive()
        except (WorkerDied, TimeoutError) as error:
            raise UserError(f"the process of the rewards did not go on: {error}") from error

    def grade(
        self,
        prompts: Sequence[str | list[dict[str, Any]]],
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        columns: Mapping[str, Sequence[Any]],
        step: int = 0,
        groups: Sequence[int] = (),
        prompt_texts: Sequence[str] = (),
        truncated: Sequence[bool] = (),
    ) -> Grades:
        """Score B rollouts under every reward.

        Completions are text; after a chat prompt the rewards see them as one message. `groups` are
        the rollouts' prompt groups, `prompt_texts` the prompts as the model saw them, `truncated`
        whether a limit cut the answer off.

        Raises UserError for a result that is not a finite number or None for each completion, and
        for a needed column that is missing.
        """
        started = time.perf_counter()
        batch = Rollouts(
            rows=range(len(prompts)),
            prompts=prompts,
            completions=[completion_form(p, c) for p, c in zip(prompts, completions, strict=True)],
            completion_ids=completion_ids,
            columns=columns,
            step=step,
            groups=groups or [0] * len(prompts),
            prompt_texts=prompt_texts,
            truncated=truncated,
        )
        given = {"completion_ids": completion_ids, "groups": batch.groups, **columns}
        if prompt_texts:
            given["prompt_texts"] = prompt_texts
        if truncated:
            given["truncated"] = truncated
        for name, values in given.items():
            if len(values) != len(prompts):
                raise ValueError(f"{name} has {len(values)} entries for {len(prompts)} prompts")
        calls = [call for m in range(len(self.specs)) for call in self._first_calls(m, batch)]
        answered = self._run(calls, batch)
        for m in range(len(self.specs)):
            answered = self._mended(m, answered, batch)
        return self._collected(answered, len(prompts), time.perf_counter() - started)

    def _first_calls(self, function: int, batch: Rollouts) -> list[_Call]:
        num_rows = len(batch.rows)
        size = PIECE_ROWS if self.specs[function].rows_are_independent else max(num_rows, 1)
        starts = range(0, num_rows, size)
        return [_Call(function, tuple(batch.rows[i : i + size])) for i in starts]

    def _mended(self, function: int, answered: _Answered, batch: Rollouts) -> _Answered:
        """The answers with this function's failed calls replaced by what can be saved of them."""
        failed = [a for a in answered if a[0].function == function and a[1].kind is not None]
        failed = [a for a in failed if len(a[0].rows) > 1]
        if not failed:
            return answered
        kept = [a for a in answered if all(a is not other for other in failed)]
        rows = [row for call, _ in failed for row in call.rows]
        alone = self._alone(function, rows, batch)
        if self.specs[function].rows_are_independent:
            return kept + alone
        (_, outcome) = failed[0]
        offenders = [a for a in alone if a[1].kind is not None]
        rest = _Call(function, tuple(call.rows[0] for call, o in alone if o.kind is None))
        # A process may also die for a reason outside the batch; then all rows get a second try.
        if rest.rows and (offenders or outcome.kind == "crash"):
            ((_, outcome),) = self._run([rest], batch)
        if outcome.kind is not None:
            together = f"{len(rest.rows)} rows fail together, each passes alone: {outcome.message}"
            outcome = _Outcome(kind=outcome.kind, message=together)
        return [*kept, *offenders, *([(rest, outcome)] if rest.rows else [])]

    def _alone(self, function: int, rows: Sequence[int], batch: Rollouts) -> _Answered:
        """Each row in a call of its own, until too many have cost a process."""
        answered = self._run([_Call(function, (row,)) for row in rows], batch, MAX_LOST_ROWS)
        lost: Counter[str] = Counter()
        reason: _Outcome | None = None
        result: _Answered = []
        for call, outcome in answered:
            result.append((call, outcome if reason is None else reason))
            if reason is None and outcome.kind in MAX_LOST_ROWS:
                lost[outcome.kind] += 1
                if lost[outcome.kind] == MAX_LOST_ROWS[outcome.kind]:
                    message = f"not tried: {lost[outcome.kind]} rows before it ({outcome.message})"
                    reason = _Outcome(kind=outcome.kind, message=message)
        return result

    def _run(
        self, calls: Sequence[_Call], batch: Rollouts, max_lost: Mapping[str, int] | None = None
    ) -> _Answered:
        """Make the calls, in order, on whichever workers are free; with `max_lost`, stop early.

        Calls that were not made get an empty outcome. They all come after enough lost ones,
        whatever the number of workers, because calls are handed out in order.
        """
        outcomes = [_Outcome() for _ in calls]
        waiting = deque(range(len(calls)))
        lost: Counter[str | None] = Counter()
        busy: dict[int, int] = {}  # worker -> call
        try:
            while waiting or busy:
                if max_lost and any(lost[kind] >= most for kind, most in max_lost.items()):
                    waiting.clear()
                for number, worker in enumerate(self._workers):
                    if waiting and number not in busy:
                        busy[number] = waiting.popleft()
                        self._ask(worker, calls[busy[number]], batch)
                for number in self._ready(list(busy)):
                    num_rows = len(calls[busy[number]].rows)
                    outcome = self._outcome(self._workers[number], num_rows)
                    if outcome is None:
                        continue
                    lost[outcome.kind] += 1
                    outcomes[busy.pop(number)] = outcome
        except BaseException:  # no later call may read the reply of one of these
            for number in busy:
                self._workers[number].end()
            raise
        return list(zip(calls, outcomes, strict=True))

    def _limit_seconds(self, function: int, num_rows: int) -> float:
        return self._seconds[function] * (1 + (num_rows - 1) / 32)

    def _ask(self, worker: WorkerProcess, call: _Call, batch: Rollouts) -> None:
        limit = self._limit_seconds(call.function, len(call.rows))
        rollouts = batch if len(call.rows) == len(batch.rows) else _taken(batch, call.rows)
        request = {"operation": "grade", "function": call.function, "rollouts": rollouts}
        worker.ask(request, limit)

    def _ready(self, numbers: Sequence[int]) -> list[int]:
        """The workers that have replied, died or run out of time; waits for the first."""
        if not numbers:
            return []
        deadline = min(self._workers[number].deadline for number in numbers)
        with selectors.DefaultSelector() as selector:
            for number in numbers:
                channel = self._workers[number].channel
                assert channel is not None
                selector.register(channel, selectors.EVENT_READ, number)
            wait = max(deadline - time.monotonic(), 0.0)
            ready = [key.data for key, _ in selector.select(wait)]
        now = time.monotonic()
        return ready or [number for number in numbers if self._workers[number].deadline <= now]

    def _outcome(self, worker: WorkerProcess, num_rows: int) -> _Outcome | None:
        """What became of a call; None where it goes on."""
        try:
            reply = worker.news()
            if reply is None:
                return None
            if not _is_whole(reply, num_rows):
                raise worker.malformed()
        except WorkerDied as error:
            return _Outcome(kind="crash", message=str(error))
        except TimeoutError:
            return _Outcome(
                kind="timeout",
                message="over the time limit; raise reward.timeout_seconds if it is slow, not hung",
            )
        if "exception" in reply:
            return _Outcome(kind="exception", message=reply["exception"])
        return _Outcome(reply=reply)

    def _collected(self, answered: _Answered, num_rows: int, seconds: float) -> Grades:
        scores_BM = np.full((num_rows, len(self.specs)), np.nan)
        failed_B = np.zeros(num_rows, dtype=bool)
        failures: list[Failure] = []
        logged: dict[str, list[tuple[float, int]]] = {}
        extra: dict[str, list[Any]] = {}
        for call, outcome in sorted(answered, key=lambda a: (a[0].function, a[0].rows)):
            rows = list(call.rows)
            if outcome.kind is not None:
                name = self.specs[call.function].name
                failed_B[rows] = True
                failures += [Failure(row, name, outcome.kind, outcome.message) for row in rows]
                continue
            scores_BM[rows, call.function] = np.array(outcome.reply["scores"], dtype=np.float64)
            for position, reason in outcome.reply["unscored"].items():
                row = rows[int(position)]
                failed_B[row] = True
                failures.append(Failure(row, self.specs[call.function].name, "exception", reason))
            for name, value in outcome.reply["metrics"].items():
                logged.setdefault(name, []).append((value, len(rows)))
            for name, values in outcome.reply["extra"].items():
                column = extra.setdefault(name, [None] * num_rows)
                for row, value in zip(rows, values, strict=True):
                    column[row] = value
        return Grades(
            scores_BM=scores_BM,
            scored_B=~failed_B & ~np.isnan(scores_BM).all(axis=1),
            failures=tuple(sorted(failures, key=lambda f: (self._place(f.reward), f.row))),
            metrics={
                name: sum(v * n for v, n in pairs) / sum(n for _, n in pairs)
                for name, pairs in logged.items()
            },
            extra=extra,
            seconds=seconds,
        )

    def _place(self, reward: str) -> int:
        return [spec.name for spec in self.specs].index(reward)


def weighted_sum(scores_BM: NDArray[np.float64], weights: Sequence[float]) -> NDArray[np.float64]:
    """reward_b = sum over the rewards m that scored row b of weight_m * score_bm; [B] float64.

    A row that no reward scored is NaN. Rows with a failed reward are told apart by
    `Grades.scored_B`, not here.
    """
    if scores_BM.shape[1] != len(weights):
        raise ValueError(f"{len(weights)} weights for {scores_BM.shape[1]} rewards")
    absent_BM = np.isnan(scores_BM)
    sum_B = np.where(absent_BM, 0.0, scores_BM) @ np.asarray(weights, dtype=np.float64)
    return np.where(absent_BM.all(axis=1), np.nan, sum_B)


def _taken(batch: Rollouts, rows: Sequence[int]) -> Rollouts:
    return Rollouts(
        rows=rows,
        prompts=[batch.prompts[row] for row in rows],
        completions=[batch.completions[row] for row in rows],
        completion_ids=[batch.completion_ids[row] for row in rows],
        columns={name: [values[row] for row in rows] for name, values in batch.columns.items()},
        step=batch.step,
        groups=[batch.groups[row] for row in rows],
        prompt_texts=[batch.prompt_texts[row] for row in rows] if batch.prompt_texts else (),
        truncated=[batch.truncated[row] for row in rows] if batch.truncated else (),
    )


def _is_whole(reply: Mapping[str, Any], num_rows: int) -> bool:
    """Whether a grading process says all of a `Scored` of so many rows, or an exception's text."""
    if "exception" in reply:
        return isinstance(reply["exception"], str)
    kinds = {"scores": list, "unscored": dict, "metrics": dict, "extra": dict}
    if not all(isinstance(reply.get(name), kind) for name, kind in kinds.items()):
        return False
    places = {str(place) for place in range(num_rows)}
    return (
        len(reply["scores"]) == num_rows
        and all(value is None or _is_number(value) for value in reply["scores"])
        and all(p in places and isinstance(why, str) for p, why in reply["unscored"].items())
        and all(_is_number(value) for value in reply["metrics"].values())
        and all(isinstance(v, list) and len(v) == num_rows for v in reply["extra"].values())
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
