"""Mutate signs, comparisons and bounds, in parts or in other code, and check that a test notices.

    python tools/mutate.py [--only NAME ...] [--folder FOLDER] [--reach part|recipes|all]
    python tools/mutate.py --module strop.training.learner.kernel [--out FOLDER]
    python tools/mutate.py --sample 1000 [--seed 0] [--shard 1/4] [--out FOLDER]

Each `-`, `+`, comparison, `min`, `max`, `&` and `|` of a function is changed in turn. For a part
its own tests run first (those of its recipes if it has none), then those of all parts, restricted
to this one. Unless --reach is `part`, the tests of the recipes that use it follow, which take up to
a minute a mutant, and with `all` the wider suite of parts and recipes, which takes minutes.

--module takes a module outside parts, --sample a number of mutants of all such modules. First the
tests that import the module and those in the folder of its room run unchanged, for at most
--measure seconds, and the functions that each test reaches are recorded. Then, for a mutant, the
tests that reach its function run, the shortest first, for at most --limit seconds. A mutant lives
in one process: code that only other processes run counts as reached by no test; mutate_files.py is
for that. --out stores the results of tests and mutants, so that a run continues where another one
ended; shards may share it.

A mutant that passes all tests is printed with its file and line, and the exit code is 1.

Tests are collected once. A mutant lives in a process forked from there, in which the functions of
the module have other code; values that are computed while the module or a test is imported come
from the original. A mutant that takes five times as long as the original, and 20 seconds more,
counts as noticed.
"""

import argparse
import inspect
import json
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import numpy
import pytest
import torch
from mutants import (
    ROOT,
    Mutant,
    append,
    chosen_of,
    imports,
    key_of,
    lines_of,
    module_names,
    mutants,
    tests_of,
)  # fmt: skip

from strop.catalogue import catalogue
from strop.support.errors import UserError

# Ignores the warning that this process has imported a module already.
WORDS = (
    "-q", "-s", "-n", "0", "-p", "no:cacheprovider",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
# Tests of runs in many processes, which a mutant does not reach.
LONG = (
    "tests/ray/",
    "tests/training/test_asynchronous.py",
    "tests/training/test_ranks.py",
    "tests/api/test_notebooks.py",
    "tests/trl/test_trl_p",
)
UNUSED = 77  # exit code of a process in which the mutant could not take the part's place
WIDER = ("tests/recipes", "tests/every_part", "tests/every_recipe", "tests/training/test_kernel.py")


def codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Names and code of the functions that a module or class defines."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner.co_qualname, inner
            yield from codes(inner)


def functions(space: Any, module: str) -> Iterator[FunctionType]:
    """The functions that a module defines, also those behind a decorator."""
    for value in list(vars(space).values()):
        for name in ("__func__", "fget", "func"):  # of class and static methods, and of properties
            value = getattr(value, name, value)
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, FunctionType) and value.__module__ == module:
            yield value
        elif isinstance(value, type) and value.__module__ == module:
            yield from functions(value, module)


def put(source: str, module: ModuleType) -> None:
    """Replace the code of a module's functions by that of another source."""
    found = dict(codes(compile(source, str(module.__file__), "exec")))
    for function in functions(module, module.__name__):
        if function.__qualname__ in found:
            function.__code__ = found[function.__qualname__]


class Unsteady(Exception):
    """Tests fail on unchanged code."""


class Stage(NamedTuple):
    """Tests that run for a mutant; tests over many cases run only for `cases` (empty: all)."""

    items: list[pytest.Item]
    cases: frozenset[str] = frozenset()


class Parts:
    """Runs the mutants of parts in place of the tests that pytest has collected."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seconds: dict[tuple[str, frozenset[str]], float] = {}  # on the unchanged parts
        self.survivors: list[str] = []
        self.total = self.unsteady = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """All parts."""
        for part in catalogue.parts(self.options.folder):
            if not self.options.only or part.name in self.options.only:
                self.mutate(session, part)
        return True

    def mutate(self, session: pytest.Session, part: Any) -> None:
        """All mutants of a part."""
        path = ROOT / "src/strop/parts" / part.folder / f"{part.name}.py"
        name = ".".join(("strop", *path.relative_to(ROOT / "src/strop").with_suffix("").parts))
        module, text = import_module(name), path.read_text(encoding="utf-8")
        stages, found, before = self.stages(session, part), 0, len(self.survivors)
        try:
            for mutant in mutants(text):
                found += 1
                if not any(self.caught(stage, module, mutant.source) for stage in stages):
                    place = f"{path.relative_to(ROOT)}:{mutant.line}"
                    self.survivors.append(f"{place}: {mutant.change}")
        except Unsteady as error:
            self.unsteady += 1
            print(f"{part.name}: its mutants cannot be judged: {error}", flush=True)
            return
        self.total += found
        print(f"{part.name}: {found} mutants, {len(self.survivors) - before} survived", flush=True)
        for survivor in self.survivors[before:]:
            print(f"  {survivor}", flush=True)

    def stages(self, session: pytest.Session, part: Any) -> list[Stage]:
        """Tests that run one after the other, in the order of their reach."""
        files = sorted((ROOT / "tests/parts" / part.folder).glob("test_*.py"))
        recipes = tuple(
            f"tests/recipes/{test.name}::"
            for recipe in (ROOT / "src/strop/recipes").glob("*.py")
            if part.attribute in recipe.read_text(encoding="utf-8")
            for test in (ROOT / "tests/recipes").glob("test_*.py")
            if re.search(rf"\b{recipe.stem}\b", test.read_text(encoding="utf-8"))
        )
        own = tuple(
            f"tests/parts/{part.folder}/{test.name}::"
            for test in files
            if test.stem == f"test_{part.name}" or part.attribute in test.read_text("utf-8")
        )
        of_all = [
            i for i in session.items if part.name in cases_of(i) and in_folder(i, "every_part")
        ]
        chosen = [
            Stage([i for i in session.items if i.nodeid.startswith(own or recipes)]),
            Stage(of_all, frozenset([part.name])),
            Stage([i for i in session.items if i.nodeid.startswith(recipes)]),
            Stage([i for i in session.items if i.nodeid.startswith(WIDER)]),
        ]
        reach = {"part": 2, "recipes": 3, "all": 4}[self.options.reach]
        return [stage for stage in chosen[:reach] if stage.items]

    def caught(self, stage: Stage, module: ModuleType, source: str) -> bool:
        """Whether a test fails with `source` in place of the module's own."""
        items, cases = stage
        new = [item for item in items if (item.nodeid, cases) not in self.seconds]
        started = time.monotonic()
        if new and failed(Stage(new, cases), module, None, 3600):
            names = ", ".join(sorted({item.nodeid.partition("::")[0] for item in new}))
            raise Unsteady(f"{names}: fail on unchanged code")
        each = (time.monotonic() - started) / max(len(new), 1)
        self.seconds |= {(item.nodeid, cases): each for item in new}
        limit = 20 + 5 * sum(self.seconds[item.nodeid, cases] for item in items)
        return failed(stage, module, source, limit)


def cases_of(item: pytest.Item) -> frozenset[str]:
    """The cases that a test checks one by one, if it does so (tests/every.py)."""
    return getattr(getattr(item, "function", None), "cases", frozenset())


def in_folder(item: pytest.Item, folder: str) -> bool:
    return item.nodeid.startswith(f"tests/{folder}/")


def failed(stage: Stage, module: ModuleType, source: str | None, limit: float) -> bool:
    """Whether a test fails in a forked process, or the tests take longer than `limit` seconds."""
    child = os.fork()
    if child == 0:
        os.setsid()
        silence()
        items, session, code = stage.items, stage.items[0].session, 1
        try:
            if source is not None:
                code = UNUSED
                put(source, module)
                code = 1
            sys.modules["every"].ONLY.update(stage.cases)
            session.testsfailed = 0  # it counts files that cannot be collected
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    break
            code = int(session.testsfailed > 0)
        finally:
            os._exit(code)
    ended = os.pidfd_open(child)
    in_time, _, _ = select.select([ended], [], [], limit)
    os.close(ended)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that its tests left running
    if code == UNUSED:
        raise RuntimeError(f"a mutant of {module.__name__} could not take its place")
    return code != 0


class Known(NamedTuple):
    """What is known of a test on unchanged code."""

    seconds: float
    passed: bool
    reached: frozenset[str]  # functions outside parts, "module:name"


class Machinery:
    """Runs mutants of modules outside parts in place of the tests that pytest has collected."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chosen = chosen_of(options)
        self.every = {name: module for name in module_names() if (module := imported(name))}
        self.codes: dict[int, str] = {}  # functions outside parts, by the id of their code
        self.tests = options.out / "tests.jsonl"
        self.results = options.out / "mutants.jsonl"
        self.known = {
            row["test"]: Known(row["seconds"], row["passed"], frozenset(row["reached"]))
            for row in lines_of(self.tests)
        }
        self.noticing: Stage | None = None  # tests that noticed the last mutant of a module
        self.survivors: list[str] = []
        self.total = self.unsteady = 0

    def places(self) -> list[str]:
        """Files and folders with the tests of the chosen modules."""
        return sorted({place for module in self.chosen for place in tests_of(module)})

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """All chosen mutants that have no result yet, module by module."""
        done = {row["mutant"] for row in lines_of(self.results)}
        for name, module in self.every.items():  # all, so that stored results serve other samples
            for function in functions(module, name):
                for each in (function.__code__, *(c for _, c in codes(function.__code__))):
                    self.codes[id(each)] = f"{name}:{each.co_qualname}"
        modules = {name: self.every[name] for name in self.chosen if name in self.every}
        for name, module in modules.items():
            left = [mutant for mutant in self.chosen[name] if key_of(name, mutant) not in done]
            items = self.items(session, name) if left else []
            self.measure([item for item in items if item.nodeid not in self.known])
            self.judge(module, left, items)
        for name, module in modules.items():  # by now tests of other modules are measured too
            rows = self.rows()
            left = [m for m in self.chosen[name] if not reached(rows.get(key_of(name, m)))]
            self.judge(module, left, session.items)
        found = [*self.rows().values()]
        self.survivors = [row["mutant"] for row in found if not row["noticed"]]
        self.total = len(found)
        self.show(found)
        return True

    def rows(self) -> dict[str, dict[str, Any]]:
        """The newest result of each mutant."""
        return {row["mutant"]: row for row in lines_of(self.results)}

    def judge(self, module: ModuleType, left: list[Mutant], items: list[pytest.Item]) -> None:
        """Run mutants of a module. Those that were noticed are stored once the tests that noticed
        the last of them have passed on unchanged code.
        """
        self.noticing = None
        rows = [row for mutant in left if (row := self.mutate(mutant, module, items))]
        if self.noticing and failed(self.noticing, module, None, 600):
            self.unsteady += 1
            names = ", ".join(item.nodeid for item in self.noticing.items)
            print(f"{module.__name__}: {len(rows)} of its mutants cannot be judged: tests fail on "
                  f"unchanged code: {names}", flush=True)  # fmt: skip
            return
        for row in rows:
            append(self.results, row)

    def items(self, session: pytest.Session, name: str) -> list[pytest.Item]:
        """A module's tests, the nearest first: those of a file with its name, of files that import
        it, others of its room.
        """
        places, own = tuple(tests_of(name)), f"/test_{name.rpartition('.')[2]}.py::"

        def distance(item: pytest.Item) -> int:
            file = item.nodeid.partition("::")[0]
            return 0 if own in item.nodeid else 1 if name in imports().get(file, ()) else 2

        found = [item for item in session.items if item.nodeid.startswith(places)]
        return sorted((i for i in found if not i.nodeid.startswith(LONG)), key=distance)

    def mutate(
        self, mutant: Mutant, module: ModuleType, items: list[pytest.Item]
    ) -> dict[str, Any] | None:
        """The row of a mutant that a test notices; one that passes all tests is stored at once."""
        key = key_of(module.__name__, mutant)
        place = f"{module.__name__}:{mutant.function}"
        reaching = [
            (known.seconds, number, item)
            for number, item in enumerate(items)
            if (known := self.known.get(item.nodeid)) and known.passed and place in known.reached
        ]
        tests, seconds = [], 0.0
        for each, _, item in sorted(reaching, key=lambda entry: entry[:2]):
            if tests and seconds + each > self.options.limit:
                break
            tests.append(item)
            seconds += each
        noticed = bool(tests) and failed(Stage(tests), module, mutant.source, 20 + 5 * seconds)
        row = {"mutant": key, "function": mutant.function, "noticed": noticed,
               "tests": len(tests), "reaching": len(reaching)}  # fmt: skip
        if noticed:
            self.noticing = Stage(tests)
            return row
        append(self.results, row)
        print(f"{key} in {mutant.function}: {len(tests)} of {len(reaching)} tests let it pass",
              flush=True)  # fmt: skip
        return None

    def measure(self, items: list[pytest.Item]) -> None:
        """Run tests on unchanged code for at most --measure seconds; store what they reach."""
        if not items:
            return
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            os.close(ours)
            silence()
            try:
                self.tell(items, theirs)
            finally:
                os._exit(0)
        os.close(theirs)
        end, text = time.monotonic() + self.options.measure, b""
        while select.select([ours], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (more := os.read(ours, 2**16)):
                break
            text += more
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        rows = [json.loads(line) for line in text.split(b"\n")[:-1]]
        if len(rows) < len(items):  # the next one took too long
            name = items[len(rows)].nodeid
            rows.append({"test": name, "seconds": 0.0, "passed": False, "reached": []})
        for row in rows:
            append(self.tests, row)
            found = Known(row["seconds"], row["passed"], frozenset(row["reached"]))
            self.known[row["test"]] = found

    def tell(self, items: list[pytest.Item], place: int) -> None:
        """In the child: write one line for every test that has ended."""
        session, entered = items[0].session, set[int]()

        def entering(frame: FrameType, event: str, argument: Any) -> None:
            entered.add(id(frame.f_code))

        for item, following in zip(items, [*items[1:], None], strict=True):
            entered.clear()
            before, started = session.testsfailed, time.monotonic()
            threading.settrace(entering)
            sys.settrace(entering)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            row = {
                "test": item.nodeid, "seconds": round(time.monotonic() - started, 3),
                "passed": session.testsfailed == before,
                "reached": sorted({self.codes[code] for code in entered & self.codes.keys()}),
            }  # fmt: skip
            os.write(place, (json.dumps(row) + "\n").encode())

    def show(self, rows: list[dict[str, Any]]) -> None:
        """Print how many mutants survive, by room."""
        rooms: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            rooms.setdefault(row["mutant"].split(":")[0].split(".")[1], []).append(row)
        for room, own in sorted(rooms.items()):
            left = [row for row in own if not row["noticed"]]
            alone = sum(not row["reaching"] for row in left)
            print(f"{room}: {len(own)} mutants, {len(left)} survived, {alone} of them unreached")


def reached(row: dict[str, Any] | None) -> bool:
    """Whether the mutant of a result is reached by a test; one without a result is."""
    return row is None or bool(row["reaching"])


def imported(name: str) -> ModuleType | None:
    """A module, or None with a printed note if a library that it needs is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        print(f"{name}: left out: {error}", flush=True)
        return None


def silence() -> None:
    """Discard everything that this process prints."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)


def why_nothing(options: argparse.Namespace) -> str:
    """Why these options would mutate nothing, or less than they name; empty if they do not."""
    try:
        parts = {part.name for part in catalogue.parts(options.folder)}
    except UserError as error:
        return f"--folder: {error}"
    if unknown := sorted({*options.only} - parts):
        return f"--only: no part is named {', '.join(unknown)}"
    if unknown := sorted({*options.module} - {*module_names()}):
        return f"--module: no module outside parts is named {', '.join(unknown)}"
    part, _, of = options.shard.partition("/")
    if not (part.isdecimal() and of.isdecimal() and 1 <= int(part) <= int(of)):
        return f"--shard: {options.shard} is no share such as 1/4"
    return ""


def main() -> int:
    """Run all mutants and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], help="these parts")
    parser.add_argument("--folder", default="", help="one folder of parts, such as loss")
    parser.add_argument("--reach", choices=("part", "recipes", "all"), default="all")
    parser.add_argument("--module", nargs="+", default=[], help="modules outside parts")
    parser.add_argument("--sample", type=int, default=0, help="number of mutants of such modules")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--shard", default="1/1", help="which share of their modules, as 1/4")
    parser.add_argument("--measure", type=float, default=300.0, help="seconds for a module's tests")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of tests for a mutant")
    parser.add_argument("--out", type=Path, help="folder of results, from which a run continues")
    options = parser.parse_args()
    if why := why_nothing(options):
        parser.error(why)
    os.chdir(ROOT)
    torch.set_num_threads = lambda number: None  # it fails in a copy of a copy; there is one thread
    print(f"torch {torch.__version__}, numpy {numpy.__version__}, "
          f"hypothesis {hypothesis.__version__}")  # fmt: skip
    started = time.time()
    with TemporaryDirectory() as place:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = place  # so that failures are not remembered
        runner: Any
        if options.module or options.sample:
            options.out = (options.out or Path(place)).absolute()
            options.out.mkdir(parents=True, exist_ok=True)
            runner = Machinery(options)
            places = runner.places()
        else:
            runner = Parts(options)
            folders = {f"tests/parts/{part.folder}" for part in catalogue.parts(options.folder)}
            places = [name for name in sorted(folders | set(WIDER)) if (ROOT / name).exists()]
        words = [*WORDS, f"--basetemp={place}/tests", *places]
        code = pytest.main(words, plugins=[runner])
    print(f"{runner.total} mutants, {len(runner.survivors)} survived, "
          f"{time.time() - started:.0f} s")  # fmt: skip
    return 1 if runner.survivors or runner.unsteady else int(code)


if __name__ == "__main__":
    sys.exit(main())
