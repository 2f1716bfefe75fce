"""Runs from a script, in a folder of their own."""

from collections.abc import Iterator

import pytest
from commands import Strop, graders_copied


@pytest.fixture
def strop_command(strop: Strop) -> Strop:
    """Where `strop` is the package."""
    return strop


@pytest.fixture(autouse=True)
def graders_start_at_once() -> Iterator[None]:
    """As in other runs of tests; those of notebooks and commands start as anywhere."""
    with graders_copied():
        yield
