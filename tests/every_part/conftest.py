"""The places of parts, found once for all tests of this folder."""

from collections.abc import Iterator

import pytest
from short_runs import make_lab
from staged import Stages


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    found = Stages(make_lab(tmp_path_factory.mktemp("lab")))
    yield found
    found.close()
