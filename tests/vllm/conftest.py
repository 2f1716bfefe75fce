"""Tests against a real vLLM: they run if STROP_VLLM_PYTHON names a Python that has it.

    STROP_VLLM_PYTHON=VENV/bin/python pytest -n 0 tests/vllm

One server starts for all of them, which takes a minute of processor time.
"""

import pytest
from servers import PYTHON, served

from strop.training.learner import models

collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@pytest.fixture(scope="session")
def loaded():
    return models.load("tiny")


@pytest.fixture(scope="session")
def engine(loaded):
    """An engine over a server of its own, with the weights of `loaded`."""
    yield from served(loaded)
