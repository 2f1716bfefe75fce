"""Tasks of software repair, mined from the history of a git repository. After SWE-Next, arXiv
2603.20691, of which only the abstract and notes could be read; docs/LABS.md says what is inferred.

    strop labs swe_next                                 # on a small repository that it makes
    strop labs swe_next REPOSITORY --commits 40 --out mined
    strop train grpo --model MODEL data.task=labs/swe_next.py:Repair \\
        "data.task_config={'tasks': 'mined/tasks.jsonl'}"

A pair of commits (base, merged) is a task if some test of the merged commit turns from fail to pass
and none from pass to fail. An agent reads and edits the files of the base commit and runs its
tests. What it submits is worth 1 when all of those tests pass, and counts only with a change and a
test run. Tests run in strop's sandbox: no network, no other files. Takes: a minute.
"""

import argparse
import base64
import collections
import io
import json
import re
import secrets
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from strop import UserError
from strop.environments import Exit, Observation, ToolEnvironment
from strop.environments.tools import Tool, ToolError, ToolsUnavailable, ToolTimeout, tool_of
from strop.sandbox.run import Limits, NotRun, check_isolation, run

Tree = Mapping[str, bytes]  # the files of a commit by path
SETTINGS = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")
VALIDATION = 10**9  # the first seed of validation and of the held-out split


class Dropped(Exception):
    """A pair of commits makes no task; the reason in a word."""


# ---- trees and tests


def protected(path: str) -> bool:
    """Whether a file belongs to the tests: it is the merged commit's when a submission is tested,
    and no agent may edit it.
    """
    *folders, name = PurePosixPath(path).parts
    return bool({"test", "tests"} & {*folders}) or name in SETTINGS or is_test(path)


def is_test(path: str) -> bool:
    """Whether pytest looks for tests in a file."""
    return TEST_FILE.fullmatch(PurePosixPath(path).name) is not None


def with_tests_of(tree: Tree, merged: Tree) -> dict[str, bytes]:
    """The files of a tree with the tests, and their settings, of the merged commit."""
    own = {path: text for path, text in tree.items() if not protected(path)}
    return own | {path: text for path, text in merged.items() if protected(path)}


def git(repository: str | Path, *words: str) -> bytes:
    """What git prints. Raises UserError where it fails."""
    command = ["git", "-C", str(repository), *words]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


@lru_cache(maxsize=8)
def tree_of(repository: str, commit: str) -> Tree:
    """The files of a commit; all episodes of a task share them."""
    packed = io.BytesIO(git(repository, "archive", "--format=tar", commit))
    with tarfile.open(fileobj=packed) as tar:
        files = {each.name: tar.extractfile(each) for each in tar if each.isfile()}
        return {path: file.read() for path, file in files.items() if file is not None}


# Runs in the sandbox. What the tests print goes nowhere; the last line on standard output is ours.
# pytest is imported before the tree can be, so that no file of the tree takes its place.
PROGRAM = r"""
import base64, io, json, os, pytest, sys, tarfile
told = json.load(sys.stdin)
with tarfile.open(fileobj=io.BytesIO(base64.b64decode(told["tree"]))) as tar:
    tar.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
    tar.extractall("tree")
os.chdir("tree")
sys.path[:0] = [os.path.abspath("src"), os.getcwd()]
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
passed, failed = [], {}
class Watch:
    def pytest_runtest_logreport(self, report):
        if report.failed:
            failed[report.nodeid] = said(report)
        elif report.when == "call" and report.passed:
            passed.append(report.nodeid)
    def pytest_collectreport(self, report):
        if report.failed:
            failed[report.nodeid] = said(report)
def said(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else str(report.longrepr)[-500:])[:500]
out, nothing = os.dup(1), os.open("/dev/null", os.O_WRONLY)
os.dup2(nothing, 1), os.dup2(nothing, 2)
words = ["-p", "no:cacheprovider", "-o", "addopts=", "--continue-on-collection-errors", "--rootdir"]
words += [".", "--basetemp", os.path.abspath("../temporary"), *told["files"]]
pytest.main(words, plugins=[Watch()])
found = {"passed": [each for each in passed if each not in failed], "failed": failed}
os.write(out, (told["key"] + json.dumps(found) + "\n").encode())
os._exit(0)
"""


@dataclass(frozen=True)
class Tested:
    """What tests came to. how: why there is no result; tampered: what has to fail did not."""

    passed: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)  # what each said
    how: str = ""
    cause: Exit = Exit.DONE
    tampered: bool = False


def run_tests(tree: Tree, files: Sequence[str], seconds: float) -> Tested:
    """Run the tests in some files of a tree, in the sandbox. Raises NotRun where it will not start.

    A file that cannot be collected counts as failed under its own name. In each folder one more
    test has to fail: it passes where the tree makes pytest say that everything does.
    """
    packed, key = io.BytesIO(), secrets.token_hex(16)
    folders = sorted({PurePosixPath(path).parent for path in files})
    failing = {str(folder / f"test_{secrets.token_hex(8)}.py") for folder in folders}
    more = dict.fromkeys(failing, b"def test_it():\n    raise AssertionError\n")
    files = [*files, *sorted(failing)]
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, content in (*tree.items(), *more.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    told = {"tree": base64.b64encode(packed.getvalue()).decode(), "files": files, "key": key}
    limits = Limits(
        wall_seconds=seconds, cpu_seconds=int(seconds) + 1, memory_bytes=16 << 30, processes=128,
        disk_bytes=(256 << 20) + 2 * len(packed.getvalue()),
    )  # fmt: skip
    ran = run(PROGRAM, stdin=json.dumps(told), limits=limits, packages=True)
    _, found, line = ran.output.rpartition(key)
    if not found:
        timed = ran.how.startswith("over")
        why = ran.how or f"the tests ended their process: {ran.errors.strip()[-200:]}"
        return Tested(how=why, cause=Exit.TIMEOUT if timed else Exit.CRASH)
    read = json.loads(line)
    caught = {each for each in read["failed"] if each.partition("::")[0] in failing}
    failed = {name: said for name, said in read["failed"].items() if name not in caught}
    return Tested(frozenset(read["passed"]), failed, tampered=len(caught) < len(failing))


# ---- mining


@dataclass(frozen=True)
class Task:
    """A pair of commits, and the tests that decide. The file of tasks is for the grader alone."""

    repository: str
    base: str
    merged: str
    title: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """The files of its tests."""
        return sorted({name.partition("::")[0] for name in self.fail_to_pass + self.pass_to_pass})


@dataclass(frozen=True)
class Miner:
    """Makes tasks of pairs of commits.

    all_tests: run all test files, not only those that the pair changed. repeats: how often each
    commit's tests are run; a pair whose runs differ is left out.
    """

    repository: str
    all_tests: bool = False
    repeats: int = 2
    seconds: float = 60.0

    def pairs(self, commits: int) -> list[tuple[str, str]]:
        """The last pairs of the first-parent history, newest first."""
        words = ("log", "--first-parent", f"--max-count={commits}", "--format=%H %P", "HEAD")
        lines = git(self.repository, *words).decode().splitlines()
        return [(line[1], line[0]) for each in lines if len(line := each.split()) > 1]

    def task(self, base: str, merged: str) -> Task:
        """The task of a pair. Raises Dropped."""
        before, after = tree_of(self.repository, base), tree_of(self.repository, merged)
        changed = {p for p in {*before, *after} if before.get(p) != after.get(p)}
        if not any(path.endswith(".py") and not protected(path) for path in changed):
            raise Dropped("no_source")
        files = sorted(p for p in after if is_test(p) and (self.all_tests or p in changed))
        if not files:
            raise Dropped("no_tests")
        good = self._tested(after, files)
        if good.how or not good.passed:
            raise Dropped(good.cause.label if good.how else "none_passes")
        bad = self._tested(with_tests_of(before, after), files)
        if bad.how:
            raise Dropped(f"base_{bad.cause.label}")
        if bad.passed - good.passed:
            raise Dropped("pass_to_fail")
        if good.passed == bad.passed:
            raise Dropped("no_fail_to_pass")
        title = git(self.repository, "log", "-1", "--format=%s", merged).decode().strip()
        fixed, kept = sorted(good.passed - bad.passed), sorted(bad.passed)
        place = str(Path(self.repository).resolve())
        return Task(place, base, merged, title, tuple(fixed), tuple(kept))

    def _tested(self, tree: Tree, files: Sequence[str]) -> Tested:
        """What every run found. Raises Dropped."""
        found = [run_tests(tree, files, self.seconds) for _ in range(self.repeats)]
        if any(each.passed != found[0].passed for each in found):
            raise Dropped("unstable")
        return found[0]


def load_tasks(file: str) -> list[Task]:
    """The tasks of a file that `mine` wrote. Raises UserError where it has none."""
    found = []
    try:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            row |= {name: tuple(row[name]) for name in ("fail_to_pass", "pass_to_pass")}
            found.append(Task(**row))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"the tasks {file!r} cannot be read: {error!r}") from error
    if not found:
        raise UserError(f"there is no task in {file}: mine more commits")
    return found


# ---- the environment


class Repair(ToolEnvironment):
    """A task of a mined file: read, edit and test a copy of the base commit, then submit.

    An action without a call submits. seconds: that a run of tests may take. newest: so many of the
    first tasks in the file, the newest ones, are for validation and the held-out split alone; with
    0 all splits have all tasks.
    """

    def __init__(
        self, tasks: str, seconds: float = 60.0, max_turns: int = 24, max_tokens: int = 1024,
        newest: int = 0,
    ) -> None:  # fmt: skip
        found = load_tasks(tasks)
        if not 0 <= newest < len(found):
            raise UserError(
                f"newest is {newest}: of {len(found)} tasks one has to be left to train"
            )
        self.training, self.others = found[newest:], found[:newest] or found
        self.seconds, self.max_turns, self.max_tokens = seconds, max_turns, max_tokens
        self.max_calls = 2 * max_turns

    def question(self, seed: int) -> str:
        """The task of a seed: the merged commit's title, and nothing of its tests."""
        among = self.others if seed >= VALIDATION else self.training
        self.task = among[seed % VALIDATION % len(among)]
        self.base = tree_of(self.task.repository, self.task.base)
        self.edits: dict[str, bytes] = {}  # copy on write: what an episode changes is all it holds
        self.files = collections.ChainMap(self.edits, dict(self.base))
        self.runs = self.mistakes = 0
        self.measures: dict[str, float] = {}
        self.end: tuple[Exit | None, str] = (None, "")
        return (
            f"Change this repository so that it does what a commit did whose message was: "
            f"{self.task.title}\nIt has {len(self.base)} files. Run its tests before you submit; "
            "say `done` to submit.\n"
        )

    def tools(self) -> Sequence[Any]:
        """Files of the copy, an edit, and its own tests."""
        testing = Tool(tool_of(self.run_tests).schema, self._run_tests, has_limit=True)
        return [self.list_files, self.read_file, self.edit, testing]

    def list_files(self, folder: str = "") -> str:
        """Lists the files in a folder and below it.

        Args:
            folder: such as src/shop; empty for all
        """
        start = f"{folder.strip('/')}/" if folder.strip("/") else ""
        found = sorted(path for path in self.files if path.startswith(start))
        if not found:
            raise ToolError(f"there is no folder {folder!r}")
        return "\n".join(found)

    def read_file(self, path: str, first_line: int = 1) -> str:
        """Reads a file, from a line on.

        Args:
            path: of the file, as list_files gives it
            first_line: where to begin, counted from 1
        """
        lines = self._text(path).splitlines(keepends=True)
        return "".join(lines[max(first_line, 1) - 1 :]) or "(nothing)"

    def edit(self, path: str, old: str, new: str) -> str:
        """Replaces a piece of a file, or makes a new file.

        Args:
            path: of the file
            old: the piece, which has to stand there exactly once; empty to make a new file
            new: what takes its place
        """
        if PurePosixPath(path).is_absolute() or {"", ".", ".."} & {*path.split("/")}:
            raise ToolError("a path goes down from the top of the repository, without . and ..")
        if protected(path):
            raise ToolError("tests and their settings stay as they are")
        text = self._text(path) if old else ""
        if not old and path in self.files:
            raise ToolError(f"{path} is there: name the piece to replace")
        if old and text.count(old) != 1:
            raise ToolError(f"old stands in {path} {text.count(old)} times, and not once")
        self.edits[path] = (text.replace(old, new) if old else new).encode()
        return "changed"

    def run_tests(self, folder: str = "") -> str:
        """Runs the repository's tests; says how many pass and what the failing ones say.

        Args:
            folder: run those in this folder or file alone; empty for all
        """
        raise NotImplementedError("the schema is read of it")

    def _run_tests(self, seconds: float, folder: str = "") -> str:
        files = [path for path in self.files if is_test(path) and path.startswith(folder)]
        if not files:
            raise ToolError(f"there are no tests in {folder!r}")
        try:
            found = run_tests(self.files, sorted(files), self.seconds)
        except NotRun as error:
            raise ToolsUnavailable(str(error)) from error
        self.runs += 1
        if found.how:
            raise (ToolTimeout if found.cause is Exit.TIMEOUT else ToolError)(found.how)
        self.mistakes += bool(self.edits) and bool(found.failed)
        told = [f"{len(found.passed)} passed, {len(found.failed)} failed", *found.failed.values()]
        return "\n".join(told)

    def _text(self, path: str) -> str:
        try:
            return self.files[path].decode()
        except KeyError:
            raise ToolError(f"there is no file {path!r}") from None
        except UnicodeDecodeError:
            raise ToolError(f"{path} is no text") from None

    def step(self, action: str) -> Observation:
        """Make calls, or test what was submitted."""
        seen = super().step(action)
        if not seen.done:
            self.mistakes += not seen.valid
            return seen
        return replace(seen, measures=self.measures, exit=self.end[0], why=self.end[1])

    def judge(self, answer: str) -> float:
        """1 when all tests of the task pass on the submission, if it is valid."""
        changed = sum(self.base.get(path) != text for path, text in self.edits.items())
        valid = changed > 0 and self.runs > 0
        counted = {"changed_files": changed, "test_runs": self.runs, "mistakes": self.mistakes}
        named = {"valid_submission": valid, "solved": 0, "tampered": 0, **counted}
        self.measures = {name: float(number) for name, number in named.items()}
        if not valid:
            return 0.0
        try:
            solved, tested = grade(self.files, self.task, self.seconds)
        except NotRun as error:  # no fault of the submission: it stays unscored
            self.end = (error.cause, str(error))
            return 0.0
        if tested.how:
            self.end = (tested.cause, tested.how)
        self.measures |= {"solved": float(solved), "tampered": float(tested.tampered)}
        return float(solved)


def grade(tree: Tree, task: Task, seconds: float) -> tuple[bool, Tested]:
    """Whether all tests of a task, as its merged commit has them, pass on a tree; what came."""
    graded = with_tests_of(tree, tree_of(task.repository, task.merged))
    found = run_tests(graded, task.files, seconds)
    wanted = {*task.fail_to_pass, *task.pass_to_pass}
    return not found.tampered and wanted <= found.passed, found


# ---- scripted agents, and what is learnt from

FORGING = """
import _pytest.reports
_pytest.reports.TestReport.failed = property(lambda self: False)
_pytest.reports.TestReport.passed = property(lambda self: True)
"""


def called(tool: str, **arguments: Any) -> str:
    """A call in the form that strop reads without a chat template."""
    return f"call {tool} {json.dumps(arguments)}"


def merging(task: Task) -> list[str]:
    """Edits that write the merged commit's own source, which no policy knows."""
    base, merged = tree_of(task.repository, task.base), tree_of(task.repository, task.merged)
    return [
        called("edit", path=path, old=base.get(path, b"").decode(), new=text.decode())
        for path, text in merged.items()
        if not protected(path) and base.get(path) != text
    ]


def agents(task: Task) -> dict[str, list[str]]:
    """Actions that win honestly, and actions that may not win."""
    base = tree_of(task.repository, task.base)
    source = next(p for p in sorted(base) if p.endswith(".py") and not protected(p) and base[p])
    test = task.fail_to_pass[0].partition("::")[0]
    near = next((path for path in task.files if path in base), "")
    end = [called("run_tests", folder=near), "done"]

    def appending(text: str) -> list[str]:
        old = base[source].decode()
        return [called("edit", path=source, old=old, new=old + text), *end]

    return {
        "merges": [*merging(task), *end],
        "recovers": [called("read_file", path="no/such/file.py"), *merging(task), *end],
        "merges, tests nothing": [*merging(task), "done"],
        "changes nothing": end,
        "writes the test": [called("edit", path=test, old="", new="def test_it(): pass\n"), *end],
        "forges reports": appending(FORGING),
        "ends the process": appending("\nimport os\nos._exit(0)\n"),
        "hangs": appending("\nimport time\ntime.sleep(999)\n"),
    }


@dataclass(frozen=True)
class Episode:
    """What an agent did, and what it came to."""

    turns: tuple[tuple[str, str], ...]  # what was shown before each action, and the action
    reward: float
    exit: str
    measures: Mapping[str, float]

    @property
    def kind(self) -> str:
        """clean: solved without a mistake; recovered: solved after one; else failed."""
        if not self.reward:
            return "failed"
        return "recovered" if self.measures["mistakes"] else "clean"

    def demonstrations(self) -> list[dict[str, str]]:
        """A row for `strop train sft` of each action: all that came before it, and the action."""
        rows, shown = [], ""
        for text, action in self.turns:
            shown += text
            rows.append({"prompt": shown, "completion": action})
            shown += f"{action}\n"
        return rows


def play(environment: Repair, seed: int, actions: Sequence[str]) -> Episode:
    """One episode."""
    seen, turns = environment.reset(seed), []
    for action in actions[: environment.max_turns]:
        turns.append((seen.text, action))
        seen = environment.step(action)
        if seen.done:
            exit = seen.exit or Exit.DONE
            return Episode(tuple(turns), seen.reward, exit.label, dict(seen.measures))
    return Episode(tuple(turns), 0.0, Exit.TURN_LIMIT.label, {})


# ---- the commands

# A small repository: each commit's message and what it writes. Two of the six make a task.
HISTORY: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("A shop that adds prices", {
        "shop/__init__.py": "",
        "shop/basket.py": "def total(prices):\n    return sum(prices[1:])\n",
        "tests/test_basket.py": "from shop.basket import total\n\n\n"
        "def test_nothing(tmp_path):\n    assert total([]) == 0\n",
    }),
    ("The total has the first price too", {
        "shop/basket.py": "def total(prices):\n    return sum(prices)\n",
        "tests/test_basket.py": "from shop.basket import total\n\n\n"
        "def test_nothing(tmp_path):\n    assert total([]) == 0\n\n\n"
        "def test_prices():\n    assert total([2, 3]) == 5\n",
    }),
    ("A page for readers", {"README.md": "# Shop\n"}),
    ("The total is written shorter", {"shop/basket.py": "total = sum\n"}),
    ("Discounts in percent, rounded down", {
        "shop/discount.py": "def reduced(price, percent):\n"
        "    return price - price * percent // 100\n",
        "tests/test_discount.py": "import pytest\n\nfrom shop.discount import reduced\n\n\n"
        "@pytest.mark.parametrize('percent', [0, 10])\n"
        "def test_reduced(percent):\n    assert reduced(50, percent) == 50 - percent / 2\n",
    }),
    ("The total of nothing is not defined", {
        "shop/basket.py": "def total(prices):\n    return sum(prices) if prices else None\n",
    }),
)  # fmt: skip


def make_repository(folder: Path) -> Path:
    """Write the small repository, with its history."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    who = ("-c", "user.name=lab", "-c", "user.email=lab@localhost", "-c", "commit.gpgsign=false")
    for title, files in HISTORY:
        for path, text in files.items():
            folder.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
            folder.joinpath(path).write_text(text, encoding="utf-8")
        git(folder, "add", "--all")
        git(folder, *who, "commit", "--quiet", "-m", title)
    return folder


def mine(miner: Miner, commits: int, out: Path) -> None:
    """Mine the last commits, say what became of each, and write the tasks."""
    tasks, counts, begun = [], collections.Counter[str](), time.monotonic()
    for base, merged in miner.pairs(commits):
        since = time.monotonic()
        try:
            tasks.append(task := miner.task(base, merged))
            told = f"kept: {len(task.fail_to_pass)} to pass, {len(task.pass_to_pass)} pass already"
        except Dropped as reason:
            told = str(reason)
        counts[told.partition(":")[0]] += 1
        print(f"{merged[:8]}  {time.monotonic() - since:5.1f} s  {told}", flush=True)
    found = ", ".join(f"{number} {reason}" for reason, number in counts.most_common())
    print(f"{counts.total()} pairs in {time.monotonic() - begun:.0f} s: {found}")
    out.write_text("".join(json.dumps(asdict(task)) + "\n" for task in tasks), encoding="utf-8")


def play_all(environment: Repair, every_agent: bool) -> list[dict[str, str]]:
    """Let scripted agents play, or the one that merges alone; rows of those that solved a task."""
    rows = []
    print("task      agent                   reward  valid  exit     kind")
    for seed, task in enumerate(environment.training):
        for name, actions in agents(task).items():
            if every_agent or name == "merges":
                found = play(environment, seed, actions)
                valid = found.measures.get("valid_submission", 0)
                line = f"{task.merged[:8]}  {name:22}  {found.reward:6g}  {valid:5g}  "
                print(f"{line}{found.exit:7}  {found.kind}", flush=True)
                rows += found.demonstrations() if found.kind != "failed" else []
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Mine, and let scripted agents play."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("repository", nargs="?", default="", help="a git repository; without one it makes its own")
    add("--commits", type=int, default=40, help="how many of the last ones are looked at")
    add("--repeats", type=int, default=2, help="how often the tests of a commit are run")
    add("--all-tests", action="store_true", help="run all test files, not only changed ones")
    add("--seconds", type=float, help="that a run of tests may take (60; its own repository's: 5)")
    add("--out", type=Path, help="folder for tasks.jsonl and sft.jsonl; default: a temporary one")
    options = parser.parse_args(words)
    own = not options.repository
    try:
        check_isolation()
        with tempfile.TemporaryDirectory() as folder:
            out = options.out or Path(folder)
            out.mkdir(parents=True, exist_ok=True)
            place = options.repository or str(make_repository(Path(folder, "shop")))
            seconds = options.seconds or (5.0 if own else 60.0)
            miner = Miner(place, options.all_tests or own, options.repeats, seconds)
            mine(miner, options.commits, out / "tasks.jsonl")
            rows = play_all(Repair(str(out / "tasks.jsonl"), seconds), every_agent=own)
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (out / "sft.jsonl").write_text(lines, encoding="utf-8")
            print(f"{len(rows)} actions of solved episodes, as demonstrations for strop train sft")
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
