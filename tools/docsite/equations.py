"""Equations as docstrings hold them, plain text with mathematics in it, read into a tree.

Read are names with scripts (`A_i`, `logp_old_t`, `sum_{j in group}`, `gamma^(j - k)`, `R'`),
brackets, operators, fractions where they are one beyond doubt, and words between them.
`Unreadable` is raised for the rest, so that nothing is set that does not say what was written.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from docsite.words import FUNCTIONS, GREEK, JOINING, LOGP, PARTICLES, SHORT

PAIRS = {"(": ")", "[": "]", "{": "}"}
RELATIONS = frozenset(("=", "<", ">", "<=", ">=", "!=", "<-", "->", "~", "+=", "-="))
SUMS = frozenset(("+", "-", "+-"))
MARKS = frozenset((",", ";", ":", ".", "...", "..", "%", "?", "!", "&"))
TOKEN = re.compile(
    r"(?P<gap>\s{3,})|(?P<space>\s+)|`(?P<code>[^`]+)`|(?P<quote>\"[^\"]*\")"
    r"|(?P<word>\d+(?:st|nd|rd|th)\b|\d+-[a-z]{2,}|[A-Za-z]{2,}'s\b|[a-z]{2,}s'(?=\s|$)"
    r"|[A-Za-z]+(?:-[A-Za-z]{2,})+|(?<=[A-Za-z])(?:'s\b|-th\b)|(?<=[)`])-[a-z]{2,})"
    r"|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*(?:_(?![{(]))?)"
    r"|(?P<op>\.\.\.|\.\.|<-|->|<=|>=|!=|\*\*|\+-|\+=|-=|//|\|\||[-+*/=<>~,;:.|%^_'!?&\[\](){}])"
)


class Unreadable(Exception):
    """What was not understood, and where."""


@dataclass
class Node:
    """One thing in an equation: spaced is whether white space stands before it."""

    spaced: bool = field(default=False, kw_only=True)


@dataclass
class Word(Node):
    """Prose, a quoted text, code, or a wide gap: kind is "word", "quote", "code" or "gap"."""

    text: str
    kind: str = "word"


@dataclass
class Number(Node):
    text: str


@dataclass
class Name(Node):
    """A name without its scripts: kind is "letter", "function", "upright" or "field"."""

    text: str
    kind: str


@dataclass
class Op(Node):
    text: str
    infix: bool = False


@dataclass
class Group(Node):
    """What stands in brackets."""

    open: str
    items: list[Node]


@dataclass
class Scripted(Node):
    base: Node
    subs: list[list[Node]] = field(default_factory=list)
    sup: list[Node] | None = None
    primes: int = 0
    tilde: bool = False


@dataclass
class Call(Node):
    """A name with the bracket that follows it at once."""

    of: Node
    group: Group


@dataclass
class Fraction(Node):
    above: Node
    below: Node


OPERANDS = (Number, Name, Group, Scripted, Call, Fraction)


def read(text: str, fields: frozenset[str] = frozenset()) -> list[Node]:
    """The tree of an equation. Raises Unreadable."""
    return _Reader(text, fields).items("")


def plain(nodes: Sequence[Node]) -> str:
    """The source of nodes without white space: what `read` was given, if nothing was lost."""
    return "".join(_plain(node) for node in nodes)


def _plain(node: Node) -> str:
    if isinstance(node, Word):
        text = node.text.replace(" ", "")
        return f"`{text}`" if node.kind == "code" else text
    if isinstance(node, Group):
        return node.open + plain(node.items) + PAIRS[node.open]
    if isinstance(node, Scripted):
        subs = "".join("_" + plain(sub) for sub in node.subs)
        sup = "^" + plain(node.sup) if node.sup is not None else ""
        return _plain(node.base) + "~" * node.tilde + subs + sup + "'" * node.primes
    if isinstance(node, Call):
        return _plain(node.of) + _plain(node.group)
    if isinstance(node, Fraction):
        return f"{_plain(node.above)}/{_plain(node.below)}"
    assert isinstance(node, Number | Name | Op)
    return node.text


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """All nodes, also those inside of others."""
    for node in nodes:
        yield node
        if isinstance(node, Group):
            yield from walk(node.items)
        elif isinstance(node, Scripted):
            yield from walk([node.base, *(n for sub in node.subs for n in sub), *(node.sup or ())])
        elif isinstance(node, Call):
            yield from walk([node.of, node.group])
        elif isinstance(node, Fraction):
            yield from walk([node.above, node.below])


class _Reader:
    """Reads tokens from left to right, a bracket at a time."""

    def __init__(self, text: str, fields: frozenset[str]) -> None:
        self.fields = fields
        self.tokens = list(_tokens(text))
        self.at = 0

    def items(self, close: str) -> list[Node]:
        """All up to the closing bracket, or the end."""
        found: list[Node] = []
        while self.at < len(self.tokens):
            kind, text, spaced = self.tokens[self.at]
            if kind == "op" and text in PAIRS.values():
                if text != close:
                    raise Unreadable(f"a {text} that nothing opened")
                self.at += 1
                return self._put_together(found)
            self.at += 1
            if (
                kind == "op"
                and text in ("_", "^", "**", "'", "~", "+")
                and self._script(found, text, spaced)
            ):
                continue
            found.extend(self._nodes(kind, text, spaced))
        if close:
            raise Unreadable(f"a {close} is missing")
        return self._put_together(found)

    def _nodes(self, kind: str, text: str, spaced: bool) -> list[Node]:
        if kind == "gap":
            return [Word("", kind)]
        if kind in ("word", "quote", "code"):
            return [Word(text, kind, spaced=spaced)]
        if kind == "number":
            return [Number(text, spaced=spaced)]
        if kind == "name":
            return [self._name(text, spaced)]
        if text in PAIRS:
            return [Group(text, self.items(PAIRS[text]), spaced=spaced)]
        return [Op(text, spaced=spaced)]

    def _script(self, found: list[Node], mark: str, spaced: bool) -> bool:
        """Whether the mark is a script of what stands before it, which then has it."""
        before = found[-1] if found else None
        if mark in ("~", "+", "'"):
            after = self.tokens[self.at] if self.at < len(self.tokens) else ("op", ")", False)
            ends = after[2] or (
                after[0] == "op" and after[1] in (")", "]", "}", ",", "_", ";", "^")
            )
            if spaced or not isinstance(before, OPERANDS) or (mark != "'" and not ends):
                return False
        elif isinstance(before, Word) and before.kind == "word" and not spaced:
            before = found[-1] = Name(before.text, "upright", spaced=before.spaced)
        elif not (isinstance(before, OPERANDS) or _is_bar(before)) or (spaced and mark != "**"):
            raise Unreadable(f"{mark} with nothing before it")
        assert before is not None
        if not isinstance(before, Scripted):
            found[-1] = before = Scripted(before, spaced=before.spaced)
        if mark == "'":
            before.primes += 1
        elif mark == "~":
            before.tilde = True
        elif mark == "_":
            before.subs.append(self._operand(mark))
        elif before.sup is not None:
            raise Unreadable("two powers of one name")
        else:
            before.sup = [Op("+")] if mark == "+" else self._operand(mark)
        return True

    def _operand(self, mark: str) -> list[Node]:
        """What stands in a script: one name, number or bracket, perhaps with a sign."""
        if self.at == len(self.tokens):
            raise Unreadable(f"{mark} with nothing after it")
        kind, text, _ = self.tokens[self.at]
        self.at += 1
        if (kind, text) == ("op", "-"):
            return [Op("-"), *self._operand(mark)]
        if kind not in ("name", "number") and text not in PAIRS:
            raise Unreadable(f"{mark} before {text}")
        nodes = self._nodes(kind, text, False)
        if kind == "name" and self._next() in ("^", "'"):
            self.at += 1
            self._script(nodes, self.tokens[self.at - 1][1], False)
        return nodes

    def _next(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _name(self, text: str, spaced: bool) -> Node:
        """A name with the subscripts that its underscores are, or one that only has underscores."""
        base, *subs = text.rstrip("_").split("_") if text.rstrip("_") != text else text.split("_")
        digits = re.fullmatch(r"([A-Za-z]+?)(\d+)", base)
        stem = digits[1] if digits else base
        letter = len(stem) == 1 or stem in GREEK or stem in LOGP
        called = stem in FUNCTIONS
        short = any(sign.isupper() for sign in base) or all(
            len(sub) <= 2 or sub in SHORT or sub in GREEK for sub in subs
        )
        if text.endswith("_") and stem in GREEK:
            return Name(text, "letter", spaced=spaced)
        short = short and not (called and len(subs) > 1) and not set(subs) & PARTICLES
        if not letter and (text in self.fields or (subs and not short) or text.endswith("_")):
            return Name(text, "field", spaced=spaced)
        if not letter and not called and not subs:
            return Word(text, spaced=spaced)
        kind = "letter" if letter else "function" if called else "upright"
        if digits and not letter:
            stem, digits = base, None
        name = Name(stem, kind, spaced=spaced)
        if not subs and not digits:
            return name
        scripts: list[list[Node]] = [self._sub(sub) for sub in subs]
        found = Scripted(name, scripts, spaced=spaced)
        if digits:
            name.text = base  # the digits are set below, but stand beside the letter
        return found

    def _sub(self, text: str) -> list[Node]:
        if text.isdigit():
            return [Number(text)]
        if text in GREEK or len(text) == 1:
            return [Name(text, "letter")]
        return [Name(text, "letter" if len(text) == 2 and text.islower() else "upright")]

    def _put_together(self, nodes: list[Node]) -> list[Node]:
        """Calls and fractions made one, and of every sign said whether it stands between two."""
        found: list[Node] = []
        for node in nodes:
            before = found[-1] if found else None
            if (
                isinstance(node, Group)
                and not node.spaced
                and isinstance(before, Name | Scripted | Number)
            ):
                found[-1] = Call(before, node, spaced=before.spaced)
            else:
                found.append(node)
        found = _articles(found)
        for at, node in enumerate(found):
            if isinstance(node, Op):
                _place(found, at, node)
        return _fractions(found)


def _tokens(text: str) -> Iterator[tuple[str, str, bool]]:
    at, spaced = 0, False
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise Unreadable(f"the sign {text[at]!r}")
        at = found.end()
        if found.lastgroup == "space":
            spaced = True
            continue
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup], spaced
        spaced = False


def _is_bar(node: Node | None) -> bool:
    return isinstance(node, Op) and node.text in ("|", "||")


def _articles(nodes: list[Node]) -> list[Node]:
    """The nodes, with "a" a word where it is an article."""
    found = list(nodes)
    for at, node in enumerate(nodes[:-1]):
        after = nodes[at + 1]
        prose = isinstance(after, Word) and after.kind == "word" and after.text not in JOINING
        named = isinstance(after, Name) and after.kind in ("field", "function")
        follows = at == 0 or isinstance(nodes[at - 1], Word)
        if (
            (prose or (named and follows))
            and after.spaced
            and node == Name("a", "letter", spaced=node.spaced)
        ):
            found[at] = Word("a", spaced=node.spaced)
    return found


def _place(nodes: list[Node], at: int, op: Op) -> None:
    """Say whether the operator stands between two. Raises Unreadable where one is missing."""
    before = nodes[at - 1] if at else None
    after = nodes[at + 1] if at + 1 < len(nodes) else None
    if op.text in SUMS:
        signed = op.spaced and after is not None and not after.spaced
        op.infix = (
            before is not None
            and not isinstance(before, Op)
            and not (signed and (isinstance(before, Word) or _is_prefix(before)))
        )
        if after is None:
            raise Unreadable(f"{op.text} with nothing after it")
    elif op.text in RELATIONS or op.text in ("*", "/", "//"):
        op.infix = True
        if before is None or after is None:
            raise Unreadable(f"{op.text} with nothing {'before' if before is None else 'after'} it")
    elif op.text in ("|", "||", "."):
        op.infix = op.spaced and after is not None and after.spaced


def _fractions(nodes: list[Node]) -> list[Node]:
    """The nodes, with a fraction for every slash between two that nothing else can belong to."""
    found: list[Node] = []
    at = 0
    while at < len(nodes):
        node = nodes[at]
        if isinstance(node, Op) and node.text == "/" and _is_clear(found, node, nodes[at + 1 :]):
            above = found.pop()
            found.append(Fraction(above, nodes[at + 1], spaced=above.spaced))
            at += 2
        else:
            found.append(node)
            at += 1
    return found


def _is_clear(before: list[Node], slash: Op, after: list[Node]) -> bool:
    above, below = before[-1], after[0]
    if not isinstance(above, OPERANDS) or not isinstance(below, OPERANDS):
        return False
    if isinstance(above, Fraction) or any(_is_prefix(each) for each in (above, below)):
        return False
    beside = before[-2] if len(before) > 1 else None
    if isinstance(beside, Op) and beside.text == "/" and (slash.spaced or not beside.spaced):
        return False  # a / b / c
    if not slash.spaced and not below.spaced:
        return True
    follows = after[1] if len(after) > 1 else None
    taken = isinstance(beside, (*OPERANDS, Op)) and not (
        isinstance(beside, Op) and (beside.infix or beside.text in MARKS or beside.text in SUMS)
    )
    bar = isinstance(follows, Op) and (follows.text in ("*", "/", "**", "|", "||"))
    factor = isinstance(follows, Word) and follows.kind == "word" and follows.text not in JOINING
    return not taken and not bar and not factor and not isinstance(follows, OPERANDS)


def _is_prefix(node: Node) -> bool:
    """Whether a name wants something after it: `sum_t`, `max`."""
    name = node.base if isinstance(node, Scripted) else node
    return isinstance(name, Name) and name.kind == "function"
