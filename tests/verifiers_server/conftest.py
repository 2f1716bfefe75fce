"""Tests against verifiers' own EnvServer, in the Python of an environment that has it.

    python -m venv VENV && VENV/bin/pip install verifiers==0.4.0 uv
    export STROP_VERIFIERS_PYTHON=VENV/bin/python
    pytest -n 0 tests/verifiers_server

They are collected where that variable is set; the client is strop's own and runs here.
"""

import os

collect_ignore_glob = [] if os.environ.get("STROP_VERIFIERS_PYTHON") else ["test_*.py"]
