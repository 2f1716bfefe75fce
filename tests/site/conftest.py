"""The documentation site. What needs its generator is collected where that can be imported.

pip install -e '.[docs]' && pytest -n 0 tests/site
"""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from docsite.known import Known

collect_ignore = ["test_built.py"] if importlib.util.find_spec("material") is None else []


@pytest.fixture(scope="session")
def known() -> Known:
    return Known.make()
