"""Data, rewards and runs for the tests of whole models."""

from collections.abc import Iterator

import pytest
from models import Lab
from runs import Runner


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab.make(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def runner() -> Iterator[Runner]:
    found = Runner()
    yield found
    for run in found.open:
        run.close()
