"""Collecting processes, forked from one that has imported what they need."""

from collections.abc import Iterator

import pytest
from commands import collectors_copied


@pytest.fixture(autouse=True)
def collectors_start_at_once() -> Iterator[None]:
    """Processes that collect start at once; those of module-scoped runs, and of commands in
    processes of their own, start as anywhere.
    """
    with collectors_copied():
        yield
