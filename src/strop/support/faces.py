"""Re-exports names of a package's modules, each loaded at its first access (PEP 562)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from strop.support.garbage_collection import imported


def face(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """`__getattr__` and `__dir__` for a package. modules: each with the names that it exports.

    So importing one small module of the package does not load the others.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        """Load a name at its first access. Raises AttributeError."""
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(imported(places[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, names
