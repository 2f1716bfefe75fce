"""Scores rollouts outside the training process.

A reward function sees the whole batch in one call, because it may compare the members of a group;
one whose rows are independent is called on pieces of `PIECE_ROWS`. When a call fails, each of its
rows is tried alone to find those that fail. They get no score; the others are scored together in
a second call (or keep the scores they got alone, where rows are independent). When no row fails
alone, an exception or a late call belongs to the batch as a whole and leaves all of it unscored.

Every failure has a cause (`Exit`). Where the answer may have caused it, other answers and the row's
reference decide whether the answer or the reward is at fault (`Grader._judged`).

A call on n rows may take `timeout_seconds * (1 + (n - 1) / 32)`, where a reward that limits its own
time states its own seconds; imports inside the call have a limit of their own. Trying rows alone
ends at the eighth late row (or the 64th that ends its process): later rows count as not tried.
Neither the pieces nor that rule depend on the number of workers, so the scores don't either; a
function that keeps state between calls may see that it runs in several processes.
"""

import selectors
import time
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.data.encode import completion_form
from strop.data.given_answers import answer_text
from strop.rewards.answers import REFERENCES, references
from strop.rewards.grader_process import NotStarted, WorkerDied, WorkerProcess
from strop.rewards.scored import Rollouts, numbers_of
from strop.rewards.source import RewardSpec
from strop.support.errors import UserError
from strop.support.exits import Exit

PIECE_ROWS = 64
MOST_SECONDS = 1e6  # of a call: a socket takes no limit much longer
MAX_LOST_ROWS = {Exit.TIMEOUT: 8, Exit.CRASH: 64, Exit.START_FAILED: 2}
NUM_CONTROLS = 4  # other groups' references that are tried where those of all failing rows fail


@dataclass(frozen=True)
class Failure:
    """Why one reward gave one row no score."""

    row: int
    reward: str
    cause: Exit
    message: str


@dataclass(frozen=True)
class Grades:
    """Scores of a batch of B rollouts under M rewards."""

    scores_BM: NDArray[np.float64]  # NaN: no score (failed, or the reward returned None)
    scored_B: NDArray[np.bool_]  # False: a reward failed on the row, or every one returned None
    failures: tuple[Failure, ...]  # by reward, then by row
    metrics: Mapping[str, float]  # log_metric; the mean over rows when there were several calls
    extra: Mapping[str, list[Any]]  # log_extra; None where the reward did not score the row
    seconds: float = 0.0

    @property
    def failing(self) -> dict[str, str]:
        """Rewards that failed on every row because of the row or of the reward itself, with the
        message of the first failure.
        """
        return self._everywhere({cause for cause in Exit if cause.is_policys} | {Exit.REWARD_BUG})

    @property
    def unreachable(self) -> dict[str, str]:
        """Rewards whose server answered for no row, with the message of the first failure."""
        return self._everywhere({Exit.UNREACHABLE})

    def _everywhere(self, causes: Container[Exit]) -> dict[str, str]:
        found: dict[str, list[str]] = {}
        for each in self.failures:
            if each.cause in causes:
                found.setdefault(each.reward, []).append(each.message)
        return {name: why[0] for name, why in found.items() if len(why) == len(self.scored_B)}


@dataclass(frozen=True)
class _Call:
    function: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class _Outcome:
    """Either a reply with scores, or the cause and message of a failure."""

    reply: Mapping[str, Any] = field(default_factory=dict)
    cause: Exit | None = None
    message: str = ""


_Answered = list[tuple[_Call, _Outcome]]


class Grader:
    """Runs reward functions in `num_workers` processes of their own; a context manager.

    Functions are loaded at once, so an error in a reward file shows before training begins. A
    process that dies is restarted. The functions' output goes to the error stream, or to the file
    `log`. max_steps: the run's steps, as reward functions see them.

    Raises UserError for what `load_reward` refuses.
    """

    def __init__(
        self,
        specs: Sequence[RewardSpec],
        timeout_seconds: float = 10.0,
        num_workers: int = 1,
        log: Path | None = None,
        max_steps: int = 1,
    ) -> None:
        names = [spec.name for spec in specs]
        if not names or len(set(names)) < len(names):
            raise UserError(f"rewards are named {names}: give at least one, and each only once")
        if timeout_seconds <= 0 or num_workers < 1:
            raise UserError(
                f"grading with timeout_seconds={timeout_seconds} and num_workers={num_workers}: "
                "make both positive"
            )
        self.specs = tuple(specs)
        self.timeout_seconds = timeout_seconds
        self.max_steps = max_steps
        # The first reward that logged each column ("extra") and each metric ("metrics").
        self._loggers: dict[tuple[str, str], int] = {}
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

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.end()

    def check(self, columns: Iterable[str]) -> None:
        """Raise UserError when a reward needs a parameter that is none of these columns."""
        worker = self._workers[0]
        try:
            limit = min(self.timeout_seconds, MOST_SECONDS)
            worker.ask({"operation": "check", "columns": list(columns)}, limit)
            worker.receive()
        except (NotStarted, WorkerDied, TimeoutError) as error:
            raise UserError(f"the process of the rewards stopped: {error}") from error

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
        strict: bool = False,
    ) -> Grades:
        """Score B rollouts under every reward.

        Completions are text; after a chat prompt the rewards see them as one message. `groups` are
        the rollouts' prompt groups, `prompt_texts` the prompts as the model saw them, `truncated`
        whether a limit cut the answer off.

        Raises UserError for a result that is not one entry for each completion, for a needed column
        that is missing, and where `strict` for an entry that is neither a finite number nor None.
        """
        started = time.perf_counter()
        batch = Rollouts(
            rows=range(len(prompts)),
            prompts=prompts,
            completions=[completion_form(p, c) for p, c in zip(prompts, completions, strict=True)],
            completion_ids=completion_ids,
            columns=columns,
            step=step,
            max_steps=self.max_steps,
            groups=groups or [0] * len(prompts),
            prompt_texts=prompt_texts,
            truncated=truncated,
            strict=strict,
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
        found = self._collected(answered, len(prompts))
        failures = tuple(self._judged(found.failures, batch))
        return replace(found, failures=failures, seconds=time.perf_counter() - started)

    def _first_calls(self, function: int, batch: Rollouts) -> list[_Call]:
        num_rows = len(batch.rows)
        size = PIECE_ROWS if self.specs[function].rows_are_independent else max(num_rows, 1)
        starts = range(0, num_rows, size)
        return [_Call(function, tuple(batch.rows[i : i + size])) for i in starts]

    def _mended(self, function: int, answered: _Answered, batch: Rollouts) -> _Answered:
        """Replace this function's failed calls by calls that keep the scores of the other rows."""
        failed = [a for a in answered if a[0].function == function and len(a[0].rows) > 1]
        failed = [a for a in failed if a[1].cause not in (None, Exit.START_FAILED)]
        if not failed:
            return answered
        kept = [a for a in answered if all(a is not other for other in failed)]
        rows = [row for call, _ in failed for row in call.rows]
        alone = self._alone(function, rows, batch)
        if self.specs[function].rows_are_independent:
            return kept + alone
        (_, outcome) = failed[0]
        offenders = [a for a in alone if a[1].cause is not None]
        rest = _Call(function, tuple(call.rows[0] for call, o in alone if o.cause is None))
        # A process may also die for a reason outside the batch; then all rows get a second try.
        if rest.rows and (offenders or outcome.cause is Exit.CRASH):
            ((_, outcome),) = self._run([rest], batch)
        if outcome.cause not in (None, Exit.START_FAILED):
            together = f"{len(rest.rows)} rows fail together, each passes alone: {outcome.message}"
            outcome = _Outcome(cause=Exit.REWARD_BUG, message=together)
        return [*kept, *offenders, *([(rest, outcome)] if rest.rows else [])]

    def _alone(self, function: int, rows: Sequence[int], batch: Rollouts) -> _Answered:
        """Try each row in a call of its own, until too many rows have cost a process."""
        answered = self._run([_Call(function, (row,)) for row in rows], batch, MAX_LOST_ROWS)
        lost: Counter[Exit] = Counter()
        reason: _Outcome | None = None
        result: _Answered = []
        for call, outcome in answered:
            result.append((call, outcome if reason is None else reason))
            if reason is None and outcome.cause in MAX_LOST_ROWS:
                lost[outcome.cause] += 1
                if lost[outcome.cause] == MAX_LOST_ROWS[outcome.cause]:
                    many = f"{lost[outcome.cause]} rows before it ({outcome.message})"
                    reason = _Outcome(cause=Exit.NOT_TRIED, message=f"not tried: {many}")
        return result

    def _run(
        self, calls: Sequence[_Call], batch: Rollouts, max_lost: Mapping[Exit, int] | None = None
    ) -> _Answered:
        """Make the calls, in order, on whichever workers are free; with `max_lost`, stop early.

        Calls that were not made get an empty outcome. They all come after enough lost ones, for any
        number of workers, because calls are assigned in order.
        """
        outcomes = [_Outcome() for _ in calls]
        waiting = deque(range(len(calls)))
        lost: Counter[Exit | None] = Counter()
        busy: dict[int, int] = {}  # worker -> call
        try:
            while waiting or busy:
                if max_lost and any(lost[cause] >= most for cause, most in max_lost.items()):
                    waiting.clear()
                for number, worker in enumerate(self._workers):
                    if waiting and number not in busy:
                        busy[number] = waiting.popleft()
                        failed = self._ask(worker, calls[busy[number]], batch)
                        if failed is not None:
                            lost[failed.cause] += 1
                            outcomes[busy.pop(number)] = failed
                for number in self._ready(list(busy)):
                    num_rows = len(calls[busy[number]].rows)
                    outcome = self._outcome(self._workers[number], num_rows)
                    if outcome is None:
                        continue
                    lost[outcome.cause] += 1
                    outcomes[busy.pop(number)] = outcome
        except BaseException:  # no later call may read the reply of one of these
            for number in busy:
                self._workers[number].end()
            raise
        return list(zip(calls, outcomes, strict=True))

    def _ask(self, worker: WorkerProcess, call: _Call, batch: Rollouts) -> _Outcome | None:
        """Start a call; returns its outcome only where it cannot start."""
        seconds = self._seconds[call.function] * (1 + (len(call.rows) - 1) / 32)
        limit = min(seconds, MOST_SECONDS)
        rollouts = batch if len(call.rows) == len(batch.rows) else _taken(batch, call.rows)
        request = {"operation": "grade", "function": call.function, "rollouts": rollouts}
        try:
            worker.ask(request, limit)
        except NotStarted as error:
            return _Outcome(cause=Exit.START_FAILED, message=str(error))
        return None

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
        """The outcome of a call; None while it runs."""
        try:
            reply = worker.news()
            if reply is None:
                return None
            if not _is_whole(reply, num_rows):
                raise worker.malformed()
        except WorkerDied as error:
            return _Outcome(cause=Exit.CRASH, message=str(error))
        except TimeoutError:
            return _Outcome(
                cause=Exit.TIMEOUT,
                message="over the time limit; raise reward.timeout_seconds if it is slow, not hung",
            )
        if "exception" in reply:
            return _Outcome(cause=Exit.EXCEPTION, message=reply["exception"])
        return _Outcome(reply=reply)

    def _collected(self, answered: _Answered, num_rows: int) -> Grades:
        scores_BM = np.full((num_rows, len(self.specs)), np.nan)
        failed_B = np.zeros(num_rows, dtype=bool)
        failures: list[Failure] = []
        logged: dict[str, list[tuple[float, int]]] = {}
        extra: dict[str, list[Any]] = {}
        for call, outcome in sorted(answered, key=lambda a: (a[0].function, a[0].rows)):
            rows = list(call.rows)
            name = self.specs[call.function].name
            if outcome.cause is not None:
                failed_B[rows] = True
                failures += [Failure(row, name, outcome.cause, outcome.message) for row in rows]
                continue
            scores_BM[rows, call.function] = np.array(outcome.reply["scores"], dtype=np.float64)
            for position, (cause, reason) in outcome.reply["unscored"].items():
                row = rows[int(position)]
                failed_B[row] = True
                failures.append(Failure(row, name, Exit(cause), reason))
            columns = outcome.reply["extra"]
            counts = {f"rewards/{title}": len(numbers_of(columns[title])) for title in columns}
            for metric, value in outcome.reply["metrics"].items():
                own = self._own_name("metrics", metric, call.function)
                logged.setdefault(own, []).append((value, counts.get(metric) or len(rows)))
            for title, values in columns.items():
                own = self._own_name("extra", title, call.function)
                column = extra.setdefault(own, [None] * num_rows)
                for row, value in zip(rows, values, strict=True):
                    column[row] = value
        names = [spec.name for spec in self.specs]
        return Grades(
            scores_BM=scores_BM,
            scored_B=~failed_B & ~np.isnan(scores_BM).all(axis=1),
            failures=tuple(sorted(failures, key=lambda f: (names.index(f.reward), f.row))),
            metrics={
                name: sum(v * n for v, n in pairs) / sum(n for _, n in pairs)
                for name, pairs in logged.items()
            },
            extra=extra,
        )

    def _own_name(self, kind: str, title: str, function: int) -> str:
        """The name under which a logged value is kept: after the reward's own name where another
        reward logged the title first.
        """
        first = self._loggers.setdefault((kind, title), function)
        return title if first == function else f"{self.specs[function].name}/{title}"

    def _judged(self, failures: Sequence[Failure], batch: Rollouts) -> list[Failure]:
        """The failures, with the cause REWARD_BUG where the reward is at fault, not the answer.

        The fault lies with:

        1. The reward, if the row's reference fails too, while that of another row gets a score.
        2. The reward, if none of several different answers and their references gets a score.
        3. Otherwise the answer.

        Another reference that passes shows that the reward can read references at all: a reward
        that needs a form which they lack fails on all of them.
        """
        found = list(failures)
        for m, spec in enumerate(self.specs):
            own = [f for f in failures if f.reward == spec.name]
            suspects = [f.row for f in own if f.cause.is_policys]
            if not suspects:
                continue
            passed = self._references_passed(m, suspects, {f.row for f in own}, batch)
            failed = {f.row for f in own}
            several = len({str(batch.completions[row]) for row in suspects}) > 1
            nothing = several and len(failed) == len(batch.rows) and not any(passed.values())
            for place, f in enumerate(found):
                if f.reward != spec.name or not f.cause.is_policys:
                    continue
                fails_too = passed.get(batch.groups[f.row]) is False and any(passed.values())
                if fails_too or nothing:
                    why = "its reference fails too" if fails_too else "no answer gets a score"
                    found[place] = replace(
                        f, cause=Exit.REWARD_BUG, message=f"{f.message} ({f.cause.label}; {why})"
                    )
        return found

    def _references_passed(
        self, function: int, suspects: Sequence[int], failed: set[int], batch: Rollouts
    ) -> dict[int, bool]:
        """Whether the reward scores the reference, by prompt group, without groups that have none.
        References of groups without a failure are tried where all others fail.
        """
        first: dict[int, int] = {}  # a row of each group
        for row in suspects:
            first.setdefault(batch.groups[row], row)
        passed = self._references(function, [*first.values()], batch)
        if passed and not any(passed.values()):
            others = {batch.groups[row] for row in failed}
            controls: dict[int, int] = {}
            for row, group in enumerate(batch.groups):
                if group not in others:
                    controls.setdefault(group, row)
            passed |= self._references(function, [*controls.values()][:NUM_CONTROLS], batch)
        return passed

    def _references(self, function: int, rows: Sequence[int], batch: Rollouts) -> dict[int, bool]:
        """Whether the reward scores the reference of these rows' groups."""
        texts = {row: text for row in rows if (text := reference(batch.columns, row)) is not None}
        completions = list(batch.completions)
        for row, text in texts.items():
            completions[row] = completion_form(batch.prompts[row], text)
        asked = replace(batch, completions=completions, completion_ids=[()] * len(completions))
        size = PIECE_ROWS if self.specs[function].rows_are_independent else 1
        known = list(texts)
        calls = [_Call(function, tuple(known[i : i + size])) for i in range(0, len(known), size)]
        try:
            answered = self._mended(function, self._run(calls, asked, MAX_LOST_ROWS), asked)
        except UserError:  # an invalid result is no score
            return {batch.groups[row]: False for row in known}
        passed: dict[int, bool] = {}
        for call, outcome in answered:
            unscored = outcome.reply.get("unscored", {})
            for position, row in enumerate(call.rows):
                cause = outcome.cause
                if str(position) in unscored:
                    cause = Exit(unscored[str(position)][0])
                if cause is None and not outcome.reply:
                    continue  # it was not tried
                if cause is None or cause.is_policys:
                    passed[batch.groups[row]] = cause is None
        return passed


def without(specs: Sequence[RewardSpec], num_rows: int, cause: Exit, message: str) -> Grades:
    """Grades of rows that could not be sent to any reward."""
    failures = [
        Failure(row, spec.name, cause, message) for spec in specs for row in range(num_rows)
    ]
    scores_BM = np.full((num_rows, len(specs)), np.nan)
    return Grades(scores_BM, np.zeros(num_rows, dtype=bool), tuple(failures), {}, {})


def weighted_sum(scores_BM: NDArray[np.float64], weights: Sequence[float]) -> NDArray[np.float64]:
    """reward_b = sum over the rewards m that scored row b of weight_m * score_bm; [B] float64.

    A row that no reward scored is NaN. `Grades.scored_B` marks rows with a failed reward; this
    function does not.
    """
    if scores_BM.shape[1] != len(weights):
        raise ValueError(f"{len(weights)} weights for {scores_BM.shape[1]} rewards")
    absent_BM = np.isnan(scores_BM)
    sum_B = np.where(absent_BM, 0.0, scores_BM) @ np.asarray(weights, dtype=np.float64)
    return np.where(absent_BM.all(axis=1), np.nan, sum_B)


def _taken(batch: Rollouts, rows: Sequence[int]) -> Rollouts:
    def of(values: Sequence[Any]) -> list[Any]:
        return [values[row] for row in rows] if values else []

    return replace(
        batch,
        rows=rows,
        prompts=of(batch.prompts),
        completions=of(batch.completions),
        completion_ids=of(batch.completion_ids),
        columns={name: of(values) for name, values in batch.columns.items()},
        groups=of(batch.groups),
        prompt_texts=of(batch.prompt_texts),
        truncated=of(batch.truncated),
    )


def reference(columns: Mapping[str, Sequence[Any]], row: int) -> str | None:
    """The reference of a row as a text, which its answers are compared with; None: it has none."""
    names = [name for name in ("completion", *REFERENCES) if name in columns]
    known = references(*([columns[name][row]] for name in names))
    if known is None or known[0] is None:
        return None
    return answer_text(known[0]) or str(known[0])  # a demonstration may be a message


def _is_whole(reply: Mapping[str, Any], num_rows: int) -> bool:
    """Whether a reply is a complete `Scored` of `num_rows` rows, or an exception's text."""
    if "exception" in reply:
        return isinstance(reply["exception"], str)
    kinds = {"scores": list, "unscored": dict, "metrics": dict, "extra": dict}
    if not all(isinstance(reply.get(name), kind) for name, kind in kinds.items()):
        return False
    places = {str(place) for place in range(num_rows)}
    return (
        len(reply["scores"]) == num_rows
        and all(value is None or _is_number(value) for value in reply["scores"])
        and all(p in places and _is_cause(why) for p, why in reply["unscored"].items())
        and all(_is_number(value) for value in reply["metrics"].values())
        and all(isinstance(v, list) and len(v) == num_rows for v in reply["extra"].values())
    )


def _is_cause(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and value[0] in {cause.value for cause in Exit}
        and isinstance(value[1], str)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
