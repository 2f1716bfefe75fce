"""The places of parts, found once for all tests of this folder."""

from collections.abc import Iterator

import pytest
from short_runs import make_lab
from staged import Stages

from strop.method.tensors import checked


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    found = Stages(make_lab(tmp_path_factory.mktemp("lab")))
    yield found
    found.close()


@pytest.fixture(scope="module", autouse=True)
def every_tensor_is_checked() -> Iterator[None]:
    """In every call of a part in this process, as `strop train --debug` does."""
    with checked():
        yield
