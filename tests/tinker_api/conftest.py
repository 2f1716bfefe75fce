"""Tests of Tinker's API with the real package `tinker`, collected where it can be imported.

pip install -c constraints.txt -e '.[tinker]' && pytest -n 0 tests/tinker_api
"""

import gc
import importlib.util
import warnings
from collections.abc import Iterator

import pytest
from models import Lab

collect_ignore_glob = [] if importlib.util.find_spec("tinker") else ["test_*.py"]


@pytest.fixture(autouse=True)
def unclosed() -> Iterator[None]:
    """The client leaves a connection open that it has asked for its settings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client tells its maker nothing of these tests."""
    monkeypatch.setenv("TINKER_TELEMETRY", "0")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Two layers, as the teacher has, and draws that leave one update without a gradient."""
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)
