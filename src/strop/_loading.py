"""Classes and functions by their written names, from packages and from users' own files."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from strop.errors import UserError, nearest


def attribute(name: str) -> Any:
    """What stands at `package.module:name` or `file.py:name`. Raises UserError."""
    place, _, attribute = name.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UserError(f"{place} has no {attribute}{nearest(attribute, public)}")
    return getattr(module, attribute)


def name_to_load(thing: Any) -> str:
    """The name by which `load` finds a part's class or a recipe's function again."""
    module, name = thing.__module__, thing.__qualname__
    if module.startswith("strop."):
        return module.rpartition(".")[2] if inspect.isclass(thing) else name
    place = getattr(sys.modules.get(module), "__strop_place__", module)
    return f"{place}:{name}"


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"no file {path}")
    spec = importlib.util.spec_from_file_location(f"strop_user_{path.stem}", path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__strop_place__ = str(path)  # type: ignore[attr-defined]  # as it was given
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"cannot import {name}: {error}") from error
