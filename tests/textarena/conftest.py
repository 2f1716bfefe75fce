"""Tests against a real TextArena: with the Python of an environment that has it.

    export STROP_TEXTARENA_PYTHON=VENV/bin/python
    $STROP_TEXTARENA_PYTHON -m pytest -n 0 tests/textarena

They are collected where that variable names the Python that runs them.
"""

import os
import sys
from pathlib import Path

NAMED = os.environ.get("STROP_TEXTARENA_PYTHON", "")
HERE = Path(NAMED).parent == Path(sys.executable).parent
collect_ignore_glob = [] if NAMED and HERE else ["test_*.py"]
