"""Runs from a script, in a folder of their own."""

from pathlib import Path

import pytest
from commands import Strop


@pytest.fixture
def strop_command(strop: Strop) -> Strop:
    """Where `strop` is the package."""
    return strop


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
