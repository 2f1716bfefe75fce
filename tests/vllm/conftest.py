"""Tests against a real vLLM: they run where STROP_VLLM_PYTHON names the Python of one.

    STROP_VLLM_PYTHON=VENV/bin/python pytest -n 0 tests/vllm

One server starts for all of them, which takes a minute of processor time.
"""

import os

import pytest

from strop.engines.open import read
from strop.training.learner import models

PYTHON = os.environ.get("STROP_VLLM_PYTHON", "")
collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@pytest.fixture(scope="session")
def loaded():
    return models.load("tiny")


@pytest.fixture(scope="session")
def engine(loaded):
    """An engine over a server of its own, with the weights of `loaded`."""
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the other tests need the cores, too
    args = "--enforce-eager --kv-cache-memory-bytes 256M"
    settings = read({"kind": "vllm", "python": PYTHON, "args": args, "start_seconds": 900})
    found = settings.open(
        loaded.model, loaded.tokenizer, num_slots=8, context_length=loaded.context
    )
    yield found
    found.close()
    assert found.server.dead()
    assert not found.folder.path.exists()
    assert not found.server.log.exists()
