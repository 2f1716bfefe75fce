"""Loads classes and functions by their names, from packages and from users' own files.

Definitions of a notebook have no file. They are pickled, with the objects that they refer to, and
are then named FILE.pickle:NAME.

Modules beside a user's file are found as when the file itself is run: while it loads, they come
first. Afterwards they come after all installed modules, for imports inside its functions, so that
no other import finds a module in the user's folder. Two modules of the same name are refused.
"""

import importlib
import importlib.machinery
import importlib.util
import inspect
import io
import pickle
import re
import sys
import sysconfig
import traceback
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from strop.support.about import SOURCE
from strop.support.errors import UserError, in_words, nearest

PICKLED = ".pickle"  # the suffix of a file that holds one class or function
importers: set[str] = set()  # files of this process that wrap Python's import
_IDENTITY = re.compile("[0-9a-f]{32}")
_ADDRESS = re.compile(rb"X.\0\0\0\d+q", re.DOTALL)  # after its length in digits, any byte
# Number of values from which Python makes code, and which of them are its file name, its first line
# and its table of lines.
_CODE, _CODE_PLACE = 18, (10, 13, 14)
# Also a user's own packages (`pip install --user`) and Debian's, which lie in other folders.
_INSTALLED = (
    sysconfig.get_path("stdlib"),
    *(path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")),
)
_unpickled: dict[tuple[str, int, int], Any] = {}  # by path, time and size of the file
_places: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
_neighbours: dict[str, Path] = {}  # top-level modules beside users' files -> their folder
_appended: set[str] = set()  # folders at the end of sys.path that were not there before


def attribute(name: str) -> Any:
    """Load the object at `package.module:name`, `file.py:name` or `file.pickle:name`.

    Raises UserError.
    """
    place, _, attribute = name.rpartition(":")
    if place.endswith(PICKLED):
        return _read_pickled(Path(place), attribute)
    module = module_at(place)
    if "<locals>" in attribute:
        raise UserError(
            f"{name} is defined inside a function: define it at the top of the script or notebook, "
            "or write it into a file and give FILE.py:NAME"
        )
    if not hasattr(module, attribute):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise UserError(f"{place} has no {attribute}{nearest(attribute, public)}")
    return getattr(module, attribute)


def module_at(place: str) -> ModuleType:
    """The module `package.module` or `file.py`.

    A file is run again when it has changed. Raises UserError for a file that does not exist, that
    fails to import, or that imports a neighbour with another module's name.
    """
    return _load_file(Path(place)) if place.endswith(".py") else _load_module(place)


def spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """The spec of a module, which need not be imported yet; None where there is none."""
    _search_last(Path.cwd())
    return importlib.util.find_spec(name)


def search_path() -> list[str]:
    """The search path for modules, without the folders of users' files."""
    return [place for place in sys.path if place not in _appended]


def name_to_load(thing: Any) -> str:
    """The name by which `catalogue.load` finds a part's class or a recipe's function again."""
    module, name = thing.__module__, thing.__qualname__
    if module.startswith("strop."):
        return module.rpartition(".")[2] if inspect.isclass(thing) else name
    if (place := _places.get(thing)) is None or not Path(place).exists():
        place = getattr(sys.modules.get(module), "__strop_place__", module)
    return f"{place}:{name}"


def write_pickled(thing: Any, path: Path) -> str:
    """Pickle a class or function to a file and return the name by which it is loaded again.

    Raises UserError for one that cannot be pickled.
    """
    import cloudpickle

    name = thing.__qualname__
    try:
        content = cloudpickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # the objects that it refers to may raise anything
        raise UserError(
            f"{name} cannot be kept with the run ({in_words(error)}): it refers to "
            "something that lives in this process alone; make that inside it, or write it into a "
            f"file and give FILE.py:{name}"
        ) from error
    path.write_bytes(content)
    return f"{path}:{name}"


def same_pickled(one: bytes, other: bytes) -> bool:
    """Whether two pickles of classes or functions mean the same, wherever their code stood.

    Neither is loaded. Their bytes differ also with the file and the line of equal code.
    """
    return one == other or _meaning(one) == _meaning(other)


class _Made:
    """Stands for what a pickle would make by a call, and for what it names."""

    place: ClassVar[str]
    steps: ClassVar[list[tuple["_Made", str, Any]]]

    def __new__(cls, *values: Any, **named: Any) -> "_Made":
        made = super().__new__(cls)
        made._number = len(cls.steps)
        if cls.place.startswith("cloudpickle"):  # a class has another identity in each process
            values = tuple(v for v in values if not (isinstance(v, str) and _IDENTITY.fullmatch(v)))
        elif cls.place.startswith("torch.storage"):  # a tensor has another address
            values = tuple(_ADDRESS.sub(b"", v) if isinstance(v, bytes) else v for v in values)
        return made._step(cls.place, (values, named))

    def __init__(self, *values: Any, **named: Any) -> None:
        pass

    def _step(self, name: str, given: Any) -> "_Made":
        self.steps.append((self, name, given))
        return self

    def __call__(self, *values: Any) -> "_Made":
        if len(values) == _CODE:
            values = tuple(value for at, value in enumerate(values) if at not in _CODE_PLACE)
        return type(self)(self, values)

    def __setstate__(self, state: Any) -> None:
        self._step("state", state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._step("item", (key, value))

    def append(self, value: Any) -> None:
        self._step("append", value)

    def add(self, value: Any) -> None:
        self._step("add", value)

    def __repr__(self) -> str:
        return f"<{self._number}>"

    _number: int


class _Reading(pickle.Unpickler):
    """Collects the steps by which a pickle would be loaded, without taking any."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self.steps: list[tuple[_Made, str, Any]] = []

    def find_class(self, module: str, name: str) -> Any:
        return type("Made", (_Made,), {"place": f"{module}.{name}", "steps": self.steps})


def _meaning(content: bytes) -> list[str]:
    reading = _Reading(content)
    whole = reading.load()
    return [_text(each, ()) for each in (*reading.steps, whole)]


def _text(value: Any, around: tuple[int, ...]) -> str:
    """A value that a pickle holds as text, sets in the order of their texts."""
    if id(value) in around:
        return "..."
    inside = (*around, id(value))
    if isinstance(value, dict):  # since Python 3.13 a class holds its line
        pairs = [(k, v) for k, v in value.items() if k != "__firstlineno__"]
        return f"{{{', '.join(f'{_text(k, inside)}: {_text(v, inside)}' for k, v in pairs)}}}"
    if isinstance(value, list | tuple | set | frozenset):
        texts = [_text(each, inside) for each in value]
        texts = sorted(texts) if isinstance(value, set | frozenset) else texts
        return f"{type(value).__name__}({', '.join(texts)})"
    return value.place if isinstance(value, type) and issubclass(value, _Made) else repr(value)


def where_raised(error: BaseException) -> str:
    """`file:line` of the innermost frame outside the import machinery and, where there are such
    frames, outside Python's own and installed packages, and outside strop.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in importers
        if (frame.filename, frame.name) != ("<string>", "__init__")  # of a dataclass
    ]
    for places in (_INSTALLED, (str(SOURCE),)):
        frames = [frame for frame in frames if not frame.filename.startswith(places)] or frames
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown place"


def _read_pickled(path: Path, name: str) -> Any:
    """Load what `write_pickled` wrote; the same object as long as the file does not change.

    Raises UserError.
    """
    try:
        state = path.stat()
        key = str(path.resolve()), state.st_mtime_ns, state.st_size
        if key not in _unpickled:
            _unpickled[key] = pickle.loads(path.read_bytes())
        found = _unpickled[key]
    except (Exception, SystemExit) as error:  # reading and its imports may raise anything
        raise _not_loaded(str(path), error) from error
    if getattr(found, "__qualname__", "") != name:
        raise UserError(f"{path} has no {name}")
    _places[found] = str(path)
    return found


def _load_file(given: Path) -> ModuleType:
    path = given.resolve()
    if not path.is_file():
        raise UserError(f"no file {given}: it does not exist, seen from {Path.cwd()}")
    name = f"strop_user_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    state = (path.stat().st_mtime_ns, path.stat().st_size)
    module = sys.modules.get(name)
    if module is None or module.__strop_state__ != state:
        module = _run_file(path, name, given)
        module.__strop_state__ = state  # type: ignore[attr-defined]
    module.__strop_place__ = str(given)  # type: ignore[attr-defined]  # as it was given
    return module


def _run_file(path: Path, name: str, given: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    importlib.invalidate_caches()
    sys.modules[name] = module
    try:
        with _neighbours_first(path.parent) as twice:
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _not_loaded(str(given), error) from error
    for neighbour, other in twice.items():
        del sys.modules[name]
        raise UserError(
            f"{given} imports {neighbour} from its folder, and there is another {neighbour}, "
            f"{other}: rename one, for a process has one module of a name"
        )
    return module


def _load_module(name: str) -> ModuleType:
    if not name.startswith("strop."):
        _search_last(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"cannot import {name}: no module {error.name!r} was found; write FILE.py:NAME for "
                "a file, or install the module"
            ) from error
        raise _not_loaded(name, error) from error
    except (Exception, SystemExit) as error:
        raise _not_loaded(name, error) from error


@contextmanager
def _neighbours_first(folder: Path) -> Iterator[dict[str, str]]:
    """While a file loads: search its folder first, and hide the modules of other files' folders.

    Yields a table that afterwards holds the modules that exist twice, with the other one's place.
    """
    aside = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if _neighbours.get(name.partition(".")[0], folder) != folder
    }
    before, twice = set(sys.modules), dict[str, str]()
    sys.path.insert(0, str(folder))
    try:
        yield twice
    finally:
        sys.path.remove(str(folder))
        _search_last(folder)
        for name in sorted(set(sys.modules) - before):
            if _home(sys.modules[name]) == folder:
                place = f"in {_neighbours[name]}" if name in aside else _installed(name, folder)
                if place:
                    del sys.modules[name]
                    twice[name] = place
                else:
                    _neighbours[name] = folder
        sys.modules.update(aside)


def _home(module: ModuleType) -> Path | None:
    """The folder of a top-level module or package; None for all others."""
    spec = getattr(module, "__spec__", None)
    if not isinstance(spec, importlib.machinery.ModuleSpec) or "." in spec.name:
        return None
    file = spec.origin if spec.has_location else None  # "frozen" for some modules
    place = next(iter(spec.submodule_search_locations or ()), file)
    return Path(place).resolve().parent if place else None


def _installed(name: str, folder: Path) -> str:
    """The place of a module of this name outside users' folders; empty where there is none."""
    places = [place for place in search_path() if Path(place).resolve() != folder]
    spec = importlib.machinery.PathFinder.find_spec(name, places)
    return f"at {spec.origin}" if spec is not None and spec.origin is not None else ""


def _search_last(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        _appended.add(str(folder))


def _not_loaded(place: str, error: BaseException) -> UserError:
    where, why = where_raised(error), in_words(error)
    if isinstance(error, SyntaxError):
        where, why = f"{error.filename}:{error.lineno}", f"{type(error).__name__}: {error.msg}"
    return UserError(f"{place} cannot be loaded: {where}: {why}")


def camel(name: str) -> str:
    """The class name of a file name: `divide_by_group_std` -> `DivideByGroupStd`."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))
