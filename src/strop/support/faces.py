"""What a package hands on of its modules, each loaded when its name is asked for (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from strop.support.garbage_collection import imported


def face(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """`__getattr__` and `__dir__` of a package; places: names, and the modules that have them.

    So who imports one small module of the package does not load what all its names need.
    """

    def get(name: str) -> Any:
        """What is asked for the first time. Raises AttributeError."""
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(imported(places[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, names
