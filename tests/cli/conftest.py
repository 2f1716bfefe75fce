"""The command line in this process, on a tiny model of its own."""

import pytest
from commands import Strop
from models import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab.make(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def strop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Strop:
    return Strop(monkeypatch, capsys)
