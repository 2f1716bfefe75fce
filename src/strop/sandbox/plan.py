"""Plans how a test runs, from the test alone, so that no answer can change it.

Usually it runs outside: in a process of its own, which requests the results of the answer's
functions from the answer's process. It runs inside where it names things that only the answer's own
process has (`INSIDE`): then the operands of its assertions are sent out and judged outside.
"""

import ast
import builtins
import copy
import sys
import warnings
from functools import lru_cache
from types import CodeType
from typing import Any

# Names that reach into their own process, run data of the answer as code, or make objects that
# cannot be sent to it.
INSIDE = frozenset((
    "BytesIO", "Random", "SimpleNamespace", "__import__", "builtins", "compile", "ctypes", "eval",
    "exec", "gc", "globals", "importlib", "input", "inspect", "logging", "marshal", "mock",
    "monkeypatch", "multiprocessing", "namedtuple", "patch", "pickle", "queue", "resource", "runpy",
    "seed", "signal", "socket", "sqlite3", "subprocess", "sys", "threading", "tracemalloc", "types",
    "weakref",
))  # fmt: skip
_REDIRECTING = frozenset(("redirect_stdout", "redirect_stderr", "stdout", "stderr"))
_OF_SYS = frozenset(("stdout", "stderr", "maxsize", "version_info", "float_info"))

# Modules that a test uses as `math.isclose` without importing them: always the real ones.
_MODULES = {name: (name, "") for name in (
    "bisect", "cmath", "collections", "contextlib", "copy", "datetime", "decimal", "fractions",
    "functools", "heapq", "io", "itertools", "json", "math", "numpy", "operator", "os", "random",
    "re", "statistics", "string", "time", "typing", "unittest",
)} | {"np": ("numpy", "")}  # fmt: skip
# Names in these modules that are real where the test uses another name that can be the answer's.
_PARTS = {
    name: (module, name)
    for module, names in {
        "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
        "decimal": ("Decimal",),
        "fractions": ("Fraction",),
        "math": ("inf", "isclose", "pi"),
        "numpy": ("allclose", "array_equal"),
    }.items()
    for name in names
}

_NAME = "<test>"
# A compiler's warnings about a test (`f(2) is 4`) are for its author, not for each run.
warnings.filterwarnings("ignore", category=SyntaxWarning, module=_NAME)


@lru_cache(maxsize=256)
def plan_of(test: str) -> dict[str, Any]:
    """The plan of a test for the sandbox, compiled for this interpreter.

    code: the compiled test, or source where it cannot be parsed; inside: where it runs. define:
    classes of the test, which are defined in the answer's process. shadowed: builtins whose names
    may be the answer's. helpers: name -> module and name in it. checks, needed: the comparisons of
    the assertions of a test inside, and those that must not be skipped.
    """
    plan: dict[str, Any] = {
        "source": "", "code": None, "inside": False, "define": None, "shadowed": [], "helpers": {},
        "checks": [], "needed": [],
    }  # fmt: skip
    try:
        tree = ast.parse(test, _NAME)
        words = _Words(tree)
        plan |= {"inside": words.inside, "helpers": words.helpers()}
        if words.inside:
            checks = _Checks(tree, words)
            codes = [_compiled(check) for check in checks.found]
            return plan | {"code": _compiled(tree), "checks": codes, "needed": checks.needed}
        plan["shadowed"] = words.shadowed()
        plan["define"] = _taken_out(tree)
        return plan | {"code": _compiled(_Settles().visit(tree))}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return plan | {"source": test, "inside": False}  # running it will report the error


def _compiled(tree: ast.Module | ast.Expression) -> CodeType:
    mode = "exec" if isinstance(tree, ast.Module) else "eval"
    return compile(tree, _NAME, mode, dont_inherit=True)


def _called(name: str, args: list[ast.expr], at: ast.AST) -> ast.Call:
    """A call of a function of the sandbox, in place of the node `at`."""
    function = ast.copy_location(ast.Name(name, ast.Load()), at)
    return ast.copy_location(ast.Call(function, args, []), at)


def _is_flat(node: ast.AST) -> bool:
    """Whether the node is a list of constants, which need no visit and fill most long tests."""
    return type(node) is ast.List and all(type(part) is ast.Constant for part in node.elts)


class _Words(ast.NodeVisitor):
    """Collects the names of a test: bound by it, or defined elsewhere."""

    def __init__(self, tree: ast.Module) -> None:
        self.loaded: set[str] = set()
        self.bare: set[str] = set()  # not only as `name.attribute`
        self.bound: set[str] = set()
        self.imported: set[str] = set()
        self.answers: set[str] = set()  # imported from the answer
        self.attributes: set[str] = set()
        self._reaching: set[str] = set()
        self.visit(tree)
        words = self.loaded | self.imported | self.attributes
        if "StringIO" in words and not words & _REDIRECTING:
            self._reaching.add("StringIO")  # for the answer to read
        self.inside = bool(self._reaching - self.bound)
        self.free = self.loaded - self.bound - self.imported

    def visit(self, node: ast.AST) -> None:
        if not _is_flat(node):
            super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        (self.loaded if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)
        self.bare.add(node.id)
        self._reaching |= {node.id} & INSIDE

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.attributes.add(node.attr)
        self._reaching |= {node.attr} & {"seed"}
        if not isinstance(node.value, ast.Name):
            self.visit(node.value)
            return
        name = node.value.id
        self.loaded.add(name)
        if name != "sys" or node.attr not in _OF_SYS:
            self._reaching |= {name} & INSIDE

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top, *rest = alias.name.split(".")
            name = alias.asname or top
            self.imported.add(name)
            self._reaching |= {top, *rest} & INSIDE - {"sys"}
            self._known(top, name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parts = (node.module or "").split(".")
        names = {alias.asname or alias.name for alias in node.names}
        self.imported |= names
        self._reaching |= {*parts, *(alias.name for alias in node.names)} & INSIDE
        self._known(parts[0], *names)

    def _known(self, module: str, *names: str) -> None:
        if module == "answer":
            self.answers |= set(names)
        elif module not in sys.stdlib_module_names and module not in ("numpy", "pytest"):
            self._reaching.add(module)  # whose objects cannot be sent

    def _defined(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bound.add(node.name)
        self.generic_visit(node)

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _defined

    def visit_arg(self, node: ast.arg) -> None:
        self.bound.add(node.arg)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.bound |= {node.name} if node.name else set()
        self.generic_visit(node)

    def _others(self) -> set[str]:
        """Names that can only be the answer's."""
        free = self.free - set(vars(builtins)) - set(self._modules()) - set(_PARTS)
        return free | self.answers

    def _modules(self) -> set[str]:
        known = (self.free | self.imported) - self.bound - self.bare
        return {name for name in known if name in _MODULES}

    def shadowed(self) -> list[str]:
        return [] if self._others() else sorted(self.free & set(vars(builtins)))

    def real(self) -> set[str]:
        """Names whose meaning is not the answer's to choose."""
        known = self.free & set(vars(builtins)) - set(self.shadowed())
        return known | set(self.helpers())

    def helpers(self) -> dict[str, tuple[str, str]]:
        found = {name: _MODULES[name] for name in self._modules()}
        if self._others():
            found |= {name: _PARTS[name] for name in self.free & set(_PARTS)}
        return found


def _taken_out(tree: ast.Module) -> CodeType | None:
    """Remove the classes of a test that are no test cases; returns their code, with imports."""
    taken = [node for node in tree.body if isinstance(node, ast.ClassDef) and not _asserts(node)]
    if not taken:
        return None
    tree.body = [node for node in tree.body if node not in taken]
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    return _compiled(ast.Module([*imports, *taken], []))


def _asserts(node: ast.ClassDef) -> bool:
    return any(
        isinstance(part, ast.Assert)
        or (isinstance(part, ast.Name) and part.id == "TestCase")
        or (isinstance(part, ast.Attribute) and part.attr == "TestCase")
        for part in ast.walk(node)
    )


_OF_IDENTITY = {"assertIs": "assertTrue", "assertIsNot": "assertFalse"}


class _Settles(ast.NodeTransformer):
    """Inserts a call before each statement that updates the test's lists as earlier calls changed
    them.

    `assert a and b` becomes two assertions.
    """

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                setattr(node, field, [part for found in body for part in _settled(found)])
        return node

    def visit(self, node: ast.AST) -> Any:
        return node if _is_flat(node) else super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1:
            node.func.id = "__class_of__"
        if ast.unparse(node.func) == "unittest.main":
            return _called("__run_cases__", [], node)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in _OF_IDENTITY and isinstance(node.func, ast.Attribute) and node.args[1:]:
            node.func.attr = _OF_IDENTITY[method]
            node.args[:2] = [_called("__same__", node.args[:2], node)]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        found = _called("__same__", [node.left, *node.comparators], node)
        if isinstance(node.ops[0], ast.Is):
            return found
        return ast.copy_location(ast.UnaryOp(ast.Not(), found), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "__class__" and isinstance(node.ctx, ast.Load):
            return _called("__class_of__", [node.value], node)
        return node


def _settled(found: ast.stmt) -> list[ast.stmt]:
    if isinstance(found, ast.ImportFrom) and found.module == "__future__":
        return [found]
    msg = found.msg if isinstance(found, ast.Assert) else None
    statements: list[ast.stmt] = [
        ast.copy_location(ast.Assert(part, msg), found) for part in _parts(found)
    ]
    settle = ast.copy_location(ast.Expr(_called("__settle__", [], found)), found)
    return [part for statement in statements or [found] for part in (settle, statement)]


class _Checks(ast.NodeTransformer):
    """Turns `assert f(2) == 4` into `__check__(0, f(2))` and `lambda a: a == 4`.

    The literals stay out of the answer's process. Assertions at the test's top level, not within a
    function or a loop, are needed: without them a test has not passed.
    """

    def __init__(self, tree: ast.Module, words: _Words) -> None:
        self.real = words.real()
        self.found: list[ast.Expression] = []
        self.needed: list[int] = []
        body: list[ast.stmt] = []
        for node in tree.body:
            parts = _parts(node)
            self.needed += range(len(self.found), len(self.found) + len(parts))
            body += [self._check(part) for part in parts] or [self.visit(node)]
        tree.body = body

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        return [self._check(part) for part in _parts(node)]

    def _check(self, test: ast.expr) -> ast.stmt:
        operands: list[ast.expr] = []
        judged = self._near(test, operands)
        number = ast.copy_location(ast.Constant(len(self.found)), test)
        names = ", ".join(map(_operand, range(len(operands))))
        check = ast.parse(f"lambda {names}: 0", mode="eval")
        assert isinstance(check.body, ast.Lambda)
        check.body.body = judged
        self.found.append(check)
        call = _called("__check__", [number, *operands], test)
        return ast.copy_location(ast.Expr(call), test)

    def _near(self, node: ast.expr, operands: list[ast.expr]) -> ast.expr:
        """The expression computed outside; its other parts become the answer's operands."""
        if _is_data(node) or (isinstance(node, ast.Name) and node.id in self.real):
            return node
        fields: tuple[str, ...] = _OUTSIDE.get(type(node), ())
        if isinstance(node, ast.Call) and self._is_real(node.func):
            fields = ("args", "keywords")
        if not fields:
            operands.append(node)
            return ast.copy_location(ast.Name(_operand(len(operands) - 1), ast.Load()), node)
        near = copy.copy(node)
        for field in fields:
            setattr(near, field, self._each(getattr(node, field), operands))
        return near

    def _each(self, value: Any, operands: list[ast.expr]) -> Any:
        if isinstance(value, list):
            return [self._each(part, operands) for part in value]
        if isinstance(value, ast.keyword):
            near = ast.keyword(value.arg, self._near(value.value, operands))
            return ast.copy_location(near, value)
        return value and self._near(value, operands)

    def _is_real(self, function: ast.expr) -> bool:
        found = function.value if isinstance(function, ast.Attribute) else function
        return isinstance(found, ast.Name) and found.id in self.real


# Expressions that are computed outside from their parts.
_OUTSIDE: dict[type[ast.expr], tuple[str, ...]] = {
    ast.BinOp: ("left", "right"), ast.UnaryOp: ("operand",), ast.Compare: ("left", "comparators"),
    ast.Tuple: ("elts",), ast.List: ("elts",), ast.Set: ("elts",), ast.Dict: ("keys", "values"),
    ast.Starred: ("value",),
}  # fmt: skip


def _operand(number: int) -> str:
    return f"_{number}"


def _parts(node: ast.stmt) -> list[ast.expr]:
    """The conditions of an assertion, one by one; none for other statements."""
    if not isinstance(node, ast.Assert):
        return []
    if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
        return node.test.values
    return [node.test]


def _is_data(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
