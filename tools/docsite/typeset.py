"""Equations as HTML: words as words, mathematics as MathML that breaks between its terms."""

import re
from collections.abc import Sequence
from html import escape

from docsite.equations import (
    MARKS,
    OPERANDS,
    PAIRS,
    RELATIONS,
    SUMS,
    Call,
    Fraction,
    Group,
    Name,
    Node,
    Number,
    Op,
    Scripted,
    Unreadable,
    Word,
    plain,
    read,
    walk,
)
from docsite.words import GREEK, LOGP

SIGNS = {
    "<-": "←", "->": "→", "<=": "≤", ">=": "≥", "!=": "≠", "*": "·", "+-": "±", "-": "−",
    "~": "∼", "||": "‖", "...": "…", "..": "‥", "+=": "+=", "-=": "−=",
}  # fmt: skip
WIDE = 34  # letters above or below a line that a narrow screen has room for
THIN = '<mspace width="0.17em"/>'


def lines_of(text: str) -> list[tuple[int, str]]:
    """A block of a docstring as (indent, statement): lines that go on are put together."""
    found: list[tuple[int, str]] = []
    for raw in text.splitlines():
        indent, line = len(raw) - len(raw.lstrip()), raw.strip()
        if not line:
            continue
        last = found[-1][1] if found else ""
        joins = re.match(r"[-+*/=<>|]\s", line) and indent > found[-1][0] if found else False
        if joins or re.search(r"(\s[-+*/=<>]|<-|,)$", last) or _open(last):
            found[-1] = (found[-1][0], f"{last} {line}")
        else:
            found.append((indent, line))
    return found


def _open(line: str) -> bool:
    return any(line.count(left) > line.count(right) for left, right in PAIRS.items())


def statements(text: str) -> list[str]:
    """The statements of an equation on one line: what stands between semicolons."""
    found, depth = [""], 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == ";" and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    return [each.strip() for each in found if each.strip()]


def line(text: str, fields: frozenset[str] = frozenset()) -> str:
    """One statement as HTML. Raises Unreadable."""
    nodes = read(text, fields)
    if _signs(plain(nodes)) != _signs(text):
        raise Unreadable("something was lost on the way")
    flow = _Flow()
    flow.add(nodes)
    return flow.html()


def _signs(text: str) -> tuple[str, int]:
    """What may not be lost; a prime may stand before or after a subscript."""
    return re.sub(r"\s|\*\*|\^|'", "", text), text.count("'")


class _Flow:
    """Words and mathematics one after the other, with places where a line may end."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.math: list[str] = []

    def html(self) -> str:
        self._end()
        return "".join(self.pieces).strip()

    def _end(self) -> None:
        if self.math:
            self.pieces.append(f'<math displaystyle="true">{"".join(self.math)}</math>')
            self.math = []

    def _text(self, html: str, spaced: bool) -> None:
        apart = not (self.math and self.math[-1].startswith('<mo form="infix"'))  # has its own room
        self._end()
        self.pieces.append(" " * (spaced and apart) + html)

    def add(self, nodes: Sequence[Node]) -> None:
        before: Node | None = None
        for at, node in enumerate(nodes):
            after = nodes[at + 1] if at + 1 < len(nodes) else None
            self._one(node, before, after)
            before = node

    def _one(self, node: Node, before: Node | None, after: Node | None) -> None:
        if isinstance(node, Word) and _is_quantity(node, before, after):
            self._mathematics(Name(node.text, "upright", spaced=node.spaced), before)
        elif isinstance(node, Word):
            self._text(_word(node), node.spaced)
        elif isinstance(node, Op) and node.text in MARKS and not _is_dot(node, before):
            self._text(escape(SIGNS.get(node.text, node.text)), node.spaced)
        elif isinstance(node, Name) and _is_word(node, before, after):
            self._text(escape(node.text), node.spaced)
        elif isinstance(node, Op) and node.infix and node.text in RELATIONS | SUMS:
            self._end()
            self.pieces.append("<wbr>")
            self.math.append(_op(node))
        else:
            self._mathematics(node, before)

    def _mathematics(self, node: Node, before: Node | None) -> None:
        if node.spaced and not self.math:
            self.pieces.append(" ")
        elif node.spaced and isinstance(before, OPERANDS) and isinstance(node, OPERANDS):
            if isinstance(node, Group) and _has_words(node):
                self._text("", True)
            else:
                self.math.append(THIN)
        call = node if isinstance(node, Call) else None
        group = call.group if call else node if isinstance(node, Group) else None
        if group is None or _is_one(group) or (call and _root(call)):
            self.math.append(_math(node))
            return
        left, right = group.open, PAIRS[group.open]
        if call and _edges(call):
            left, right = _edges(call)
        elif call:
            self.math.append(_math(call.of, calls=group.open))
        self.math.append(f'<mo stretchy="false" form="prefix">{left}</mo>')
        self.add(group.items)
        self.math.append(f'<mo stretchy="false" form="postfix">{right}</mo>')


def _is_one(group: Group) -> bool:
    """Whether a bracket is set as one piece, as high as what it holds, on one line."""
    parted = any(isinstance(node, Fraction) for node in walk(group.items))
    return parted and _fits(group) and not _has_words(group)


def _has_words(group: Group) -> bool:
    return any(isinstance(node, Word) for node in walk(group.items))


def _is_dot(node: Op, before: Node | None) -> bool:
    return node.text == "." and (before is None or (node.infix and isinstance(before, OPERANDS)))


def _is_word(node: Name, before: Node | None, after: Node | None) -> bool:
    """Whether a function's name is but a word here: "the sum of", "mean length", "dual clip"."""
    bar = isinstance(after, Op) and after.text in ("|", "||") and not after.infix
    alone = after is None or (isinstance(after, Word | Op) and not bar)
    wanted = ("sum", "mean", "max", "min", "median", "round", "sign", "int", "sim", "grad")
    return node.kind == "function" and alone and (node.text in wanted or isinstance(before, Word))


def _is_quantity(node: Word, before: Node | None, after: Node | None) -> bool:
    """Whether a word is what is reckoned with: "loss = ...", "1 - done"."""
    if node.kind != "word" or not node.text.isalpha():
        return False
    ends = after is None or (isinstance(after, Op) and after.text != ".")
    begins = before is None or isinstance(before, Op)
    stands = any(isinstance(each, Op) and each.infix for each in (before, after))
    return begins and ends and stands


def _root(call: Call) -> bool:
    return call.of == Name("sqrt", "function", spaced=call.of.spaced) and _fits(call.group)


def _edges(call: Call) -> tuple[str, str] | tuple[()]:
    name = call.of.text if isinstance(call.of, Name) else ""
    return {"floor": ("⌊", "⌋"), "ceil": ("⌈", "⌉")}.get(name, ())


def _fits(node: Node) -> bool:
    return len(plain([node])) < WIDE


def _word(node: Word) -> str:
    if node.kind == "gap":
        return "\u2003 "
    if node.kind == "code":
        return f"<code>{escape(node.text)}</code>"
    return escape(node.text.replace("'", "’"), quote=False)


def _op(node: Op) -> str:
    form = "infix" if node.infix else "prefix"
    if node.text in ("|", "||") and not node.infix:
        return f'<mo stretchy="false" lspace="0" rspace="0">{SIGNS.get(node.text, "|")}</mo>'
    if node.text in ("/", "//"):
        gap = "0.2em" if node.spaced else "0"
        return f'<mo stretchy="false" lspace="{gap}" rspace="{gap}">{node.text}</mo>'
    return f'<mo form="{form}" stretchy="false">{escape(SIGNS.get(node.text, node.text))}</mo>'


def _row(nodes: Sequence[Node]) -> str:
    """Nodes as one piece of mathematics, words among them."""
    found: list[str] = []
    for at, node in enumerate(nodes):
        if isinstance(node, Word):
            text = "∈" if node.text == "in" else _word(node).replace("<code>", "")
            text = text.replace("</code>", "")
            before = nodes[at - 1] if at else None
            after = nodes[at + 1] if at + 1 < len(nodes) else None
            begins = before is None or isinstance(before, Word) or _roomy(before)
            left = "\u00a0" if node.spaced and not begins else ""
            right = "\u00a0" if after and after.spaced and not _roomy(after) else ""
            found.append(f"<mtext>{left}{text}{right}</mtext>")
            continue
        if isinstance(node, Op) and node.text in MARKS:
            found.append(f"<mo>{SIGNS.get(node.text, node.text)}</mo>")
            continue
        beside = at and isinstance(nodes[at - 1], OPERANDS) and isinstance(node, OPERANDS)
        found.append((THIN if node.spaced and beside else "") + _math(node))
    return "".join(found) if len(found) == 1 else f"<mrow>{''.join(found)}</mrow>"


def _roomy(node: Node) -> bool:
    """Whether a node brings its own room, so that a word before or after it needs none."""
    return isinstance(node, Op) and node.infix


def _math(node: Node, calls: str = "") -> str:
    """One node as MathML; calls: the bracket that follows it."""
    if isinstance(node, Number):
        return _number(node.text, calls)
    if isinstance(node, Name):
        return _name(node, calls)
    if isinstance(node, Op):
        if node.text == ".":
            return "<mo>·</mo>"
        return _op(node)
    if isinstance(node, Scripted):
        return _scripted(node, calls)
    if isinstance(node, Group):
        left, right = node.open, PAIRS[node.open]
        high = any(isinstance(each, Fraction) for each in walk(node.items))
        fence = f'<mo stretchy="{str(high).lower()}">'
        return f"<mrow>{fence}{left}</mo>{_row(node.items)}{fence}{right}</mo></mrow>"
    if isinstance(node, Fraction):
        if not (_fits(node.above) and _fits(node.below)):
            return f"<mrow>{_math(node.above)}<mo>/</mo>{_math(node.below)}</mrow>"
        return f"<mfrac>{_bare(node.above)}{_bare(node.below)}</mfrac>"
    assert isinstance(node, Call), node
    if _root(node):
        return f"<msqrt>{_row(node.group.items)}</msqrt>"
    if edges := _edges(node):
        return f"<mrow><mo>{edges[0]}</mo>{_row(node.group.items)}<mo>{edges[1]}</mo></mrow>"
    return f"<mrow>{_math(node.of, calls=node.group.open)}{_math(node.group)}</mrow>"


def _bare(node: Node) -> str:
    """Without its brackets, which a line or a script stands for."""
    return _row(node.items) if isinstance(node, Group) and node.open == "(" else _math(node)


def _number(text: str, calls: str) -> str:
    if text == "1" and calls in ("[", "{"):
        return "<mn>𝟏</mn>"  # 1 where what follows is so, else 0
    digits, _, power = text.partition("e")
    if not power:
        return f"<mn>{text}</mn>"
    sign = "<mo>−</mo>" if power.startswith("-") else ""
    ten = f"<msup><mn>10</mn><mrow>{sign}<mn>{power.lstrip('-')}</mn></mrow></msup>"
    return ten if digits == "1" else f"<mrow><mn>{digits}</mn><mo>·</mo>{ten}</mrow>"


def _name(node: Name, calls: str = "") -> str:
    if node.kind == "field":
        return f'<mtext class="field">{escape(node.text)}</mtext>'
    if node.text in LOGP:
        return f"<mrow><mi>log</mi>{THIN}<mi>{LOGP[node.text]}</mi></mrow>"
    if node.text == "E" and calls == "[":
        return "<mi>𝔼</mi>"
    if node.text == "grad":
        return "<mo>∇</mo>"
    if node.text == "sum":
        return '<mo movablelimits="false" largeop="true">∑</mo>'
    text = GREEK.get(node.text.rstrip("_"), node.text)
    if node.kind == "letter" and len(text) > 1:
        digits = re.fullmatch(r"([A-Za-z]+?)(\d+)", text)
        if digits:
            letter = GREEK.get(digits[1], digits[1])
            return f"<msub><mi>{letter}</mi><mn>{digits[2]}</mn></msub>"
        return f"<mrow>{''.join(f'<mi>{letter}</mi>' for letter in text)}</mrow>"
    return f"<mi>{escape(text)}</mi>"


def _scripted(node: Scripted, calls: str) -> str:
    base, of = _math(node.base, calls), node.base
    digits = isinstance(of, Name) and of.kind == "letter" and re.search(r"\d+$", of.text)
    subs = [_script(sub) for sub in node.subs]
    if digits and isinstance(of, Name):
        stem = of.text[: digits.start()]
        base = _name(Name(stem, "letter"), calls)
        subs.insert(0, f"<mn>{digits[0]}</mn>")
    if node.tilde:
        base = f'<mover accent="true">{base}<mo>~</mo></mover>'
    prime = "<mo>′</mo>" * node.primes
    sup = prime + (_script(node.sup, "({") if node.sup is not None else "")
    sup = f"<mrow>{sup}</mrow>" if (prime and node.sup is not None) or node.primes > 1 else sup
    sub = "<mo>,</mo>".join(subs)
    sub = f"<mrow>{sub}</mrow>" if len(subs) > 1 else sub
    if isinstance(of, Name) and of.text == "sum" and sub and not sup:
        short = len(plain(node.subs[0])) < 16
        return f"<munder>{base}{sub}</munder>" if short else f"<msub>{base}{sub}</msub>"
    if isinstance(of, Name) and of.text in LOGP:
        letter = f"<mi>{LOGP[of.text]}</mi>"
        inside = _with(letter, sub, sup)
        return f"<mrow><mi>log</mi>{THIN}{inside}</mrow>"
    return _with(base, sub, sup)


def _with(base: str, sub: str, sup: str) -> str:
    if sub and sup:
        return f"<msubsup>{base}{sub}{sup}</msubsup>"
    if sub:
        return f"<msub>{base}{sub}</msub>"
    return f"<msup>{base}{sup}</msup>" if sup else base


def _script(nodes: Sequence[Node], braces: str = "{") -> str:
    """A script, without the brackets that only hold it together."""
    if len(nodes) == 1 and isinstance(nodes[0], Group) and nodes[0].open in braces:
        return _row(nodes[0].items)
    return _row(nodes)
