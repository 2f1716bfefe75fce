"""Tests against a real verifiers: with the Python of an environment that has it.

    export STROP_VERIFIERS_PYTHON=VENV/bin/python
    $STROP_VERIFIERS_PYTHON -m pytest -n 0 tests/verifiers

They are collected where that variable names the Python that runs them.
"""

import os
import sys
from pathlib import Path

NAMED = os.environ.get("STROP_VERIFIERS_PYTHON", "")
HERE = Path(NAMED).parent == Path(sys.executable).parent
collect_ignore_glob = [] if NAMED and HERE else ["test_*.py"]
