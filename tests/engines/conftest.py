"""Both engines of this process, for tests that must pass on each."""

import pytest
from fakes.coroutines import local, table

from strop.engines.base import Engine


@pytest.fixture(params=["table", "local"])
def engine(request) -> Engine:
    return table() if request.param == "table" else local()
