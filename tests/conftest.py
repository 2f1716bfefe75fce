"""Whole-suite settings: one thread per worker, no network or disk, repeatable property tests."""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import every
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from commands import Strop
    from models import Lab
    from runs import Runner

    from strop.engines.base import Source

# No test cuts the power, and waiting for the disk is a tenth of the suite. Tests of a disk that
# fails put their own in its place.
os.fsync = lambda _: None
atexit.register(gc.freeze)  # no garbage is searched for while the process ends
LONGEST = (
    "tests/training/test_ranks.py", "tests/ray/", "tests/every_recipe/test_training.py",
    "tests/training/test_asynchronous.py", "tests/comparison/", "tests/api/test_notebooks.py",
    "tests/api/test_compare_in_python.py", "tests/trl/test_trl_processes.py",
)  # fmt: skip
LAST = "tests/test_metrics_page.py"  # reads what every_recipe/test_training.py logged
settings.register_profile(
    "strop", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("strop")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest -n 0 tests/every_part --case divide_by_group_std`: the tests of all parts for one."""
    parser.addoption("--case", action="append", default=[], help="only this part, recipe or other")


def pytest_configure(config: pytest.Config) -> None:
    """Before tests are found."""
    every.ONLY.update(config.getoption("case"))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Find the tests where they run: without looking for garbage, a third of the time, among what
    stays.

    What is imported by then is compiled once, and not in each of a thousand processes that tests
    begin, also where PYTHONDONTWRITEBYTECODE is set.
    """
    if session.config.getoption("numprocesses", None):  # in others, and torch only there
        return (yield)
    import torch

    torch.set_num_threads(1)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 12)  # looking for garbage by default takes a twentieth of all
        gc.enable()
        sys.dont_write_bytecode = writes_none


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest begin first, so that no worker is left with one of them at the end; what reads
    the others' runs comes last.
    """
    if unknown := every.ONLY - every.KNOWN:
        raise pytest.UsageError(f"no test has the case {', '.join(sorted(unknown))}")
    if others := [item for item in items if every.is_of_another(item)]:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if not every.is_of_another(item)]
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    items.sort(key=lambda item: item.nodeid.startswith(LAST))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> "Lab":
    """A tiny model with data and rewards."""
    from models import Lab  # which needs transformers, as some tests alone do

    return Lab.make(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def runner() -> "Iterator[Runner]":
    """Runs in this process; their graders end with the test."""
    from runs import Runner

    found = Runner()
    yield found
    for run in found.open:
        run.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def find_caches(monkeypatch: pytest.MonkeyPatch) -> "Callable[[bool], list[Source]]":
    """Let requests go on from caches that are held, also for a single token, or never do.

    Called with which; the list that it returns is given what is found for each request.
    """
    from strop.engines import prefixes
    from strop.engines.prefixes import Prefixes

    plain = Prefixes.find
    monkeypatch.setattr(prefixes, "BLOCK", 1)

    def finding(whether: bool) -> "list[Source]":
        found: list[Source] = []

        def find(self: Prefixes, tokens: tuple[int, ...]) -> "Source":
            found.append(plain(self, tokens) if whether else None)
            return found[-1]

        monkeypatch.setattr(Prefixes, "find", find)
        return found

    return finding


@pytest.fixture
def strop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Strop":
    """The command line in this process."""
    from commands import Strop

    return Strop(monkeypatch, capsys)
