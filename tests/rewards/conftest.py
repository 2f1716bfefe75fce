import sys

import pytest
from grading import REWARDS


@pytest.fixture
def loads_here(tmp_path, monkeypatch):
    """An empty working folder; what a test loads from it is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


@pytest.fixture
def reward_file(tmp_path, monkeypatch):
    """The working folder holds the rewards of `grading` as rewards.py."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
