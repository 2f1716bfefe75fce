"""Tests against the real package `renderers`, collected where it can be imported.

pip install -c constraints.txt -e '.[renderers]' && pytest -n 0 tests/model_renderers
"""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("renderers") else ["test_renderers.py"]
