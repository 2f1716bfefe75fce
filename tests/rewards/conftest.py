import pytest
from grading import REWARDS


@pytest.fixture
def reward_file(tmp_path, monkeypatch):
    """The working folder holds the rewards of `grading` as rewards.py."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
