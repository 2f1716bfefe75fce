"""Tests against a real OpenEnv server, in the Python of an environment that has it.

    export STROP_OPENENV_PYTHON=VENV/bin/python
    pytest -n 0 tests/openenv

They are collected where that variable is set; the client is strop's own and runs here.
"""

import os

collect_ignore_glob = [] if os.environ.get("STROP_OPENENV_PYTHON") else ["test_*.py"]
