"""Tests against the real TRL: short runs of its trainer on the CPU."""

import gc
from pathlib import Path
from typing import Any

import pytest
from models import Lab
from trainers import make


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """With two layers: the tests' bounds are of such a model."""
    return Lab.make(tmp_path_factory.mktemp("lab"), layers=2)


@pytest.fixture(scope="module", autouse=True)
def nothing_older_is_garbage() -> None:
    """Its trainers look for garbage at each step of their setup, also among what earlier tests
    left in this process: seconds each time, which is most of such a test.
    """
    gc.freeze()


@pytest.fixture
def build(lab: Lab, tmp_path: Path) -> Any:
    """Builds trainers on the lab's model: a recipe's, or TRL's own where there is none."""

    def built(recipe: Any = None, **options: Any) -> Any:
        return make(lab.model, tmp_path / "output", recipe, **options)

    return built
