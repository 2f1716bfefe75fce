"""A program of labs/ as a module."""

import importlib.util
import sys
from typing import Any

from strop.support.about import SOURCE

LABS = SOURCE.parents[1] / "labs"


def opened(name: str) -> Any:
    """The module of labs/NAME.py, imported once."""
    own = f"labs_{name}"
    if own not in sys.modules:
        spec = importlib.util.spec_from_file_location(own, LABS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[own] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[own])
    return sys.modules[own]
