"""What a package hands on of its modules, each loaded when its name is asked for (PEP 562)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strop.support.garbage_collection import imported


def face(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """`__getattr__` and `__dir__` of a package; modules: each with the names that it has.

    So who imports one small module of the package does not load what all its names need.
    """
    places = {name: module for module, names in modules.items() for name in names}

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
