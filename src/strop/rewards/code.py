"""Built-in rewards that run the Python code of a completion in the sandbox.

    run_tests      the share of test cases that the code passes
    run_python     1.0 where the program prints the reference, else 0.0

The code is run here, or by a server with SandboxFusion's interface (`url`).

The code is the last ```python block of the completion, else its last block without a language, else
the whole completion. It can import Python's standard library, and with `packages` the packages that
are installed here.
"""

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from strop.rewards.answers import is_blank, references, right_values, text_of
from strop.rewards.scored import Unscored
from strop.sandbox.remote import RemoteSandbox
from strop.sandbox.run import Limits, NotRun, Ran, check_isolation, run
from strop.support.errors import UserError
from strop.support.exits import Exit
from strop.support.processes import num_cores

_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)```", re.DOTALL)
MOST, MOST_PARALLEL = 10**6, 1024  # largest value of a limit; most runs at once
_PYTHON = ("python", "python3", "py")
_HERE = {"disk_mb": 16, "processes": 16, "packages": False, "without_isolation": False}
_REMOTE_PARALLEL = 16


class Case(NamedTuple):
    """One test case: a test to run after the code, or a program's input and its right outputs."""

    test: str | None = None
    stdin: str = ""
    outputs: tuple[str, ...] = ()


def _bytes(mb: float) -> int:
    """Convert to bytes, at least one page, because 0 would mean no limit."""
    return max(math.ceil(mb * 2**20), 4096)


class _CodeReward:
    """Limits and isolation that both rewards share.

    seconds: wall and processor time of a run. answer_seconds: of all runs of an answer; cases that
    were not run by then fail. memory_mb: address space of each process. disk_mb: files. processes:
    including threads. parallel: runs at once, 0: one a core. packages: the code and its tests may
    import the packages of this interpreter. without_isolation: run the code even with access to
    network and files, for machines that are sandboxes themselves. url: of a server that runs the
    code in place of this machine; it has its own limits for the names in `_HERE`. wait_seconds:
    longest wait for that server, beside the runs, for each answer.

    Raises UserError for invalid limits and where isolation, or the server, does not work.
    """

    rows_are_independent = True

    def __init__(
        self,
        seconds: float = 5.0,
        answer_seconds: float = 10.0,
        memory_mb: float = 512,
        disk_mb: float = 16,
        processes: int = 16,
        parallel: int = 0,
        packages: bool = False,
        without_isolation: bool = False,
        url: str = "",
        wait_seconds: float = 30.0,
    ) -> None:
        given = {"seconds": seconds, "answer_seconds": answer_seconds, "memory_mb": memory_mb,
                 "disk_mb": disk_mb, "processes": processes,
                 "wait_seconds": wait_seconds}  # fmt: skip
        for name, value in given.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value <= MOST:
                raise UserError(
                    f"a code reward with {name}={value!r}: make it positive, {MOST:g} at most"
                )
        for name, flag in (("packages", packages), ("without_isolation", without_isolation)):
            if not isinstance(flag, bool):
                raise UserError(f"a code reward with {name}={flag!r}: make it true or false")
        if type(parallel) is not int or not 0 <= parallel <= MOST_PARALLEL:
            raise UserError(
                f"a code reward with parallel={parallel!r}: make it 0 to {MOST_PARALLEL}"
            )
        self.limits = Limits(
            wall_seconds=float(seconds),
            cpu_seconds=math.ceil(seconds),
            memory_bytes=_bytes(memory_mb),
            disk_bytes=_bytes(disk_mb),
            processes=math.ceil(processes),
        )
        self.answer_seconds = answer_seconds
        # The grader allows n rows 1 + (n - 1) / 32 times this; n rows never take longer here.
        self.timeout_seconds = 32 * (answer_seconds + seconds) + 30.0
        self.parallel = parallel or (_REMOTE_PARALLEL if url else num_cores())
        self.packages = packages
        self.isolate = not without_isolation
        self.remote: RemoteSandbox | None = None
        if url:
            own = {"disk_mb": disk_mb, "processes": processes, "packages": packages,
                   "without_isolation": without_isolation}  # fmt: skip
            self._connect(
                url, wait_seconds, [name for name, value in own.items() if value != _HERE[name]]
            )
        elif self.isolate:
            check_isolation()

    def _connect(self, url: str, wait_seconds: float, given: Sequence[str]) -> None:
        """Let a server run the code. Raises UserError."""
        if given:
            raise UserError(
                f"a code reward with url and {', '.join(given)}: the server has limits of its own, "
                "leave one of the two out"
            )
        self.remote = RemoteSandbox(url, self.parallel, wait_seconds)
        longest = self.remote.most_seconds(self.limits.wall_seconds)
        one = self.answer_seconds + wait_seconds + longest
        self.timeout_seconds = one * max(1.0, 32 / self.parallel) + 30.0
        self.remote.check()

    def _run(self, code: str, case: Case, left_seconds: float) -> tuple[Ran, float]:
        """Run a case; returns how it ended and its seconds, without the wait for a server."""
        limits = Limits(**{**vars(self.limits), "wall_seconds": left_seconds})
        if self.remote is not None:
            return self.remote.run(code, test=case.test, stdin=case.stdin, limits=limits)
        started = time.monotonic()
        ran = run(
            code, test=case.test, stdin=case.stdin, limits=limits,
            isolate=self.isolate, packages=self.packages,
        )  # fmt: skip
        return ran, time.monotonic() - started

    def _each(
        self, completions: Sequence[Any], cases: Sequence[list[Case] | None]
    ) -> tuple[list[Any], list[str]]:
        """Share of passed cases (None without any) and the first failure of each completion."""
        rows = list(zip(completions, cases, strict=True))
        with ThreadPoolExecutor(self.parallel) as pool:
            results = list(pool.map(lambda row: self._one(*row), rows))
        return [score for score, _ in results], [failure for _, failure in results]

    def _one(self, completion: Any, cases: list[Case] | None) -> tuple[Any, str]:
        if not cases:
            return None, ""
        code = code_of(text_of(completion))
        num_passed, failure, left_seconds = 0, "", self.answer_seconds
        started = time.monotonic()
        for number, case in enumerate(cases, 1):
            if left_seconds <= 0:
                failure = failure or f"case {number}: over {self.answer_seconds:g} s in all"
                break
            try:
                ran, took = self._run(code, case, min(self.limits.wall_seconds, left_seconds))
            except NotRun as error:
                return Unscored(str(error), error.cause), ""
            left_seconds -= took
            waited = time.monotonic() - started - (self.answer_seconds - left_seconds)
            if self.remote is not None and waited > self.remote.wait_seconds:
                late = f"{self.remote.url} let an answer wait for {waited:.0f} s"
                return Unscored(late, Exit.UNREACHABLE), ""
            what = _failure(case, ran)
            num_passed += not what
            failure = failure or (what and f"case {number}: {what}")
        return num_passed / len(cases), failure


class RunTests(_CodeReward):
    """The share of test cases that the completion's code passes, 0 to 1.

    Test cases are in the column `tests` (Python statements, such as `assert f(2) == 4`; the code is
    run again for each, and a process that the code cannot reach evaluates it), or in `inputs` and
    `outputs` (the input and the expected output of a program; blanks at the ends of lines and empty
    lines at the end do not count). Each is a list, or its JSON text. A row without test cases, as
    with an empty cell, is not applicable.
    """

    def __call__(
        self,
        completions: Sequence[Any],
        log_extra: Callable[[str, Sequence[Any]], None],
        tests: Sequence[Any] | None = None,
        inputs: Sequence[Any] | None = None,
        outputs: Sequence[Any] | None = None,
    ) -> list[Any]:
        if tests is None and (inputs is None or outputs is None):
            raise UserError(
                "reward run_tests needs a column 'tests', or 'inputs' and 'outputs': add it"
            )
        none = [None] * len(completions)
        cases = [
            _cases(*row) for row in zip(tests or none, inputs or none, outputs or none, strict=True)
        ]
        scores, failures = self._each(completions, cases)
        log_extra("run_tests/failure", failures)
        return scores


class RunPython(_CodeReward):
    """1.0 where the completion's program prints the reference, else 0.0.

    The reference is the row's `ground_truth`, or `answer` where it has none; an empty one: not
    applicable. Outputs are compared as in `run_tests`.
    """

    def __call__(
        self,
        completions: Sequence[Any],
        log_extra: Callable[[str, Sequence[Any]], None],
        ground_truth: Sequence[Any] | None = None,
        answer: Sequence[Any] | None = None,
    ) -> list[Any]:
        wanted = references(ground_truth, answer)
        if wanted is None:
            raise UserError("reward run_python needs a column 'ground_truth' or 'answer': add it")
        right = [tuple(map(str, right_values(reference))) for reference in wanted]
        cases = [[Case(outputs=texts)] if texts else None for texts in right]
        scores, failures = self._each(completions, cases)
        log_extra("run_python/failure", failures)
        return scores


def code_of(completion: str) -> str:
    """The last Python block, else the last block without a language, else the whole text."""
    blocks = [(language.strip().lower(), code) for language, code in _BLOCK.findall(completion)]
    for wanted in (_PYTHON, ("",)):
        found = [code for language, code in blocks if language in wanted]
        if found:
            return found[-1]
    return completion


def _failure(case: Case, ran: Ran) -> str:
    """Why a case failed; empty when it passed."""
    if ran.how:
        return ran.how
    if not ran.passed:
        lines = ran.errors.strip().splitlines()
        ended = "ended with an exit code that is not 0" if case.test is None else "ended early"
        return lines[-1][:200] if lines else ended
    if case.test is None and _shown(ran.output) not in map(_shown, case.outputs):
        return f"printed {ran.output[:80]!r}"
    return ""


def _shown(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _cases(tests: Any, inputs: Any, outputs: Any) -> list[Case] | None:
    """The test cases of a row; None when it has none."""
    if not is_blank(tests):
        return [Case(test=text) for text in _texts(tests, "tests")]
    if inputs is None or outputs is None or (is_blank(inputs) and is_blank(outputs)):
        return None
    given, wanted = _texts(inputs, "inputs"), _texts(outputs, "outputs")
    if len(given) != len(wanted):
        raise UserError(
            f"reward run_tests: a row has {len(given)} inputs and {len(wanted)} outputs: "
            f"give one output for each input; its inputs begin with {str(inputs)[:80]!r}"
        )
    return [Case(stdin=i, outputs=(o,)) for i, o in zip(given, wanted, strict=True)]


def _texts(value: Any, column: str) -> list[str]:
    """A list of texts, from a list, its JSON text, or one text alone."""
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value) if value.lstrip().startswith("[") else [value]
        except json.JSONDecodeError:
            found = [value]
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise UserError(
            f"reward run_tests: the column {column!r} is not a list of texts in a row: make "
            f"{str(value)[:80]!r} one"
        )
    return found
