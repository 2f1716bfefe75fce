"""Converts equations of docstrings, plain text with mathematics in it, to TeX.

Tokens become items (words, operands with their scripts, signs). Items, also brackets, are printed
one after the other, so that a long line may break between them. Text that cannot be parsed raises
`Unreadable`, so that no typeset equation says something else than its source.
"""

import re
from dataclasses import dataclass, field

PAIRS = {"(": ")", "[": "]", "{": "}"}
LETTERS = {name: f"\\{name} " for name in re.findall(r"\w+", """alpha beta gamma delta epsilon zeta
    eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega Delta Gamma Lambda Omega Phi
    Psi Sigma Theta""")}  # fmt: skip
LETTERS |= {"eps": r"\epsilon ", "lam": r"\lambda ", "logp": r"\log p", "logq": r"\log q"}
FUNCTIONS = {name: rf"\operatorname{{{name}}}" for name in re.findall(r"\w+", """agg argmax ceil
    clamp clip cos dev exp floor ln log max mean med median min norm relu round sg sigmoid sign sim
    sin softmax softplus sqrt std tanh var KL MSE Var MAD""")}  # fmt: skip
FUNCTIONS |= {"sum": r"\sum ", "grad": r"\nabla "}
# Words that follow an operand: before these, "a" is a variable, not an article, and "mean" a word.
JOINING = re.findall(r"\w+", """if else for over of in and or is are to from with where within at by
    as on than the after before until while""")  # fmt: skip
SHORT = ("old", "ref", "ij", "im", "ab", "tv")  # subscripts of words; longer ones make it code
INFIX = {sign: sign for sign in "=<>+-/"} | {
    "<-": r"\leftarrow ", "->": r"\to ", "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ",
    "+=": r"\mathrel{+}=", "-=": r"\mathrel{-}=", "*": r"\cdot ",
    "~": r"\sim ", "+-": r"\pm ", "//": "//",
}  # fmt: skip
MARKS = {"%": r"\%", "&": r"\&", "...": r"\dots", "||": r"\Vert", "|": r"\vert"}
TOKEN = re.compile(
    r"(?P<gap>\s{3,})|(?P<space>\s+)|`(?P<code>[^`]+)`|(?P<quote>\"[^\"]*\")"
    r"|(?P<word>\d+-?[a-z]{2,}|[A-Za-z]{2,}'s\b|[a-z]{2,}s'(?=\s|$)"
    r"|[A-Za-z]+(?:-[A-Za-z]{2,})+|(?<=[A-Za-z])(?:'s\b|-th\b)|(?<=[)`])-[a-z]{2,})"
    r"|(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*(?:_(?=[\s),]))?)"
    r"|(?P<mark>(?<=[A-Za-z0-9)])(?:['~]|\+(?=[\s)]|$)))"  # R', a~, x+
    r"|(?P<op>\.\.\.|\.\.|<-|->|<=|>=|!=|\*\*|\+-|\+=|-=|//|\|\||[-+*/=<>~,;:.|%^_'!?&\[\](){}])"
)
WIDE = 34  # most characters of text that cannot break: in a fraction or in a high bracket


class Unreadable(Exception):
    """The text could not be parsed; the message says what and where."""


@dataclass
class Item:
    """Kind: "word", "mark", "operand", "function" (wants an operand), "infix" or "sign"."""

    kind: str
    tex: str
    spaced: bool = False  # after white space
    text: str = ""
    subs: list[str] = field(default_factory=list)
    sup: str = ""
    inside: str = ""  # the content of a bracket

    def printed(self) -> str:
        sub, sup = f"_{{{','.join(self.subs)}}}", f"^{{{self.sup}}}"
        beside = r"\nolimits" if self.text == "sum" and _width(sub) > 12 else ""
        return self.tex + (beside + sub) * bool(self.subs) + sup * bool(self.sup)


def statements(text: str) -> list[str]:
    """The statements of an equation on one line, which semicolons separate."""
    return [each.strip() for each in re.split(r";(?![^(\[{]*[)\]}])", text) if each.strip()]


def lines_of(text: str) -> list[tuple[int, str]]:
    """A block of a docstring as (indent, statement): continued lines are joined."""
    found: list[tuple[int, str]] = []
    for raw in filter(str.strip, text.splitlines()):
        indent, line = len(raw) - len(raw.lstrip()), raw.strip()
        start, last = found[-1] if found else (indent, "")
        unclosed = any(last.count(left) > last.count(right) for left, right in PAIRS.items())
        goes_on = re.search(r"(\s[-+*/=<>]|<-|,)$", last) or unclosed
        if goes_on or (re.match(r"[-+*/=<>|]\s", line) and indent > start):
            found[-1] = (start, f"{last} {line}")
        else:
            found.append((indent, line))
    return found


def to_tex(text: str, fields: frozenset[str] = frozenset()) -> str:
    """One statement as TeX, with field names as code. Raises Unreadable."""
    return r"\displaystyle " + _Reader(text, fields).until("")


class _Reader:
    """Reads tokens (kind, text, whether white space precedes) from left to right."""

    def __init__(self, text: str, fields: frozenset[str]) -> None:
        self.tokens: list[tuple[str, str, bool]] = []
        self.fields, end, spaced = fields, 0, False
        while end < len(text):
            if not (found := TOKEN.match(text, end)):
                raise Unreadable(f"the sign {text[end]!r}")
            kind, end = str(found.lastgroup), found.end()
            self.tokens += [(kind, found[kind], spaced)] * (kind != "space")
            spaced = kind in ("space", "gap")
        self.tokens = [("end", "", True), *self.tokens[::-1]]

    def until(self, close: str) -> str:
        """Everything up to the closing bracket, or the end, as TeX."""
        found: list[Item] = []
        while True:
            kind, text, spaced = self.tokens.pop()
            if kind == "end" or (kind == "op" and text in PAIRS.values()):
                if text != close:
                    raise Unreadable(f"a {close} is missing" if close else f"no bracket for {text}")
                return _joined(_fractions(found), r"\in " if close == "}" else r"\text{in}")
            if kind == "mark" and text == "~":
                found[-1].tex = rf"\tilde{{{found[-1].tex}}}"
            elif kind == "mark":
                found[-1].sup += text.replace("'", r"\prime ")
            elif text in PAIRS:
                found.append(self._bracket(text, spaced, found))
            elif text in ("_", "^", "**"):
                self._add_script(text, found)
            elif kind == "op":
                found.append(self._sign(text, spaced, found))
            else:
                found.append(self._operand(kind, text, spaced))

    def _operand(self, kind: str, text: str, spaced: bool) -> Item:
        if kind == "name":
            return self._name(text, spaced)
        if kind == "number":
            tex = re.sub(r"e(-?\d+)", r" \\cdot 10^{\1}", text).removeprefix(r"1 \cdot ")
            return Item("operand", tex, spaced, text)
        if kind == "gap":
            return Item("mark", r"\qquad ")
        return Item("word", _set("tt" if kind == "code" else "", text), spaced, text)

    def _bracket(self, text: str, spaced: bool, before: list[Item]) -> Item:
        """A bracket with its content, and the name directly before it."""
        inside = self.until(PAIRS[text])
        left, right = (r"\{", r"\}") if text == "{" else (text, PAIRS[text])
        high = r"\frac" in inside and _width(inside) < WIDE
        tex = rf"\left{left} {inside}\right{right}" if high else f"{left}{inside}{right}"
        if spaced or not before or before[-1].kind not in ("operand", "function"):
            return Item("operand", tex, spaced, inside=inside)
        of = before.pop()
        if of.tex in ("1", "E") and text != "(":
            of.tex = r"\mathbf{1}" if of.tex == "1" else r"\mathbb{E}"
        root = of.text == "sqrt" and _width(inside) < WIDE
        return Item("operand", rf"\sqrt{{{inside}}}" if root else of.printed() + tex, of.spaced)

    def _sign(self, text: str, spaced: bool, before: list[Item]) -> Item:
        apart = self.tokens[-1][2]  # whether white space follows
        alone = not before or before[-1].kind in ("infix", "sign")
        kind, tex = ("infix", INFIX[text]) if text in INFIX else ("mark", MARKS.get(text, text))
        if text == "." and (not before or (spaced and apart)):
            kind, tex = "infix", r"\cdot "
        elif text in ("|", "||"):
            kind, tex = ("infix", r"\mid ") if spaced and apart else ("sign", tex)
        elif text in ("-", "+", "+-") and (alone or (spaced and not apart)):
            kind = "sign"
        elif text == "/" and spaced:
            tex = r"\,/\,"
        return Item(kind, tex if kind == "infix" else f"{{{tex}}}", spaced, text)

    def _add_script(self, mark: str, before: list[Item]) -> None:
        """Give the item before its script: a name, number or bracket, perhaps signed."""
        of = before[-1] if before else Item("mark", "")
        if of.kind in ("mark", "infix") or (mark != "_" and of.sup.replace(r"\prime ", "")):
            raise Unreadable(f"{mark} with no name before it")
        of.kind = "operand" if of.kind == "word" else of.kind
        kind, text, _ = self.tokens.pop()
        minus = "-" * (text == "-")
        if minus:
            kind, text, _ = self.tokens.pop()
        if kind not in ("name", "number") and text not in PAIRS:
            raise Unreadable(f"a script that is {text!r}")
        item = self._bracket(text, False, []) if text in PAIRS else self._operand(kind, text, False)
        tex = minus + (item.printed() if text + mark == "(_" else item.inside or item.printed())
        if mark == "_":
            of.subs.append(tex)
        else:
            of.sup += tex

    def _name(self, text: str, spaced: bool) -> Item:
        """A name whose underscores begin subscripts, or one in code that only contains them."""
        _, after, apart = self.tokens[-1]
        base, *subs = text.rstrip("_").split("_")
        if digits := re.fullmatch(r"([A-Za-z]|beta|lam|lambda)(\d+)", base):
            base, subs = digits[1], [digits[2], *subs]
        tex = LETTERS.get(base) or (base if len(base) == 1 else "")
        coded = base.islower() and any(len(sub) > 1 and sub not in SHORT for sub in subs)
        if not tex and (coded or text in self.fields):
            return Item("operand", _set("tt", text), spaced, text)
        word = re.fullmatch("[a-z'-]{2,}", after) and after not in (*LETTERS, *FUNCTIONS, *JOINING)
        if text == "a" and apart and word:  # an article
            return Item("word", _set("", text), spaced, text)
        kind = "operand" if tex or subs else "word"
        taken_of = after and (after[0].isalnum() or after in "([{_|") and after not in JOINING
        if base in FUNCTIONS and (taken_of or (subs and base == "sum")):
            kind, tex = "function", FUNCTIONS[base]
        subs = [LETTERS.get(sub) or (sub if len(sub) < 3 else _set("", sub)) for sub in subs]
        return Item(kind, tex or _set("", base), spaced, base, subs)


def _fractions(items: list[Item]) -> list[Item]:
    """The items, with a fraction for every slash whose two operands are unambiguous."""
    edge, at = Item("mark", ""), 1
    while at < len(items) - 1:
        taken, above, slash, below, follows = [edge, *items, edge][at - 1 : at + 4]
        if slash.text == "/" and _is_clear(taken, above, slash, below, follows):
            over, under = (each.inside or each.printed() for each in (above, below))
            tex = rf"\frac{{{over}}}{{{under}}}"
            items[at - 1 : at + 2] = [Item("operand", tex, above.spaced)]
        else:
            at += 1
    return items


def _is_clear(taken: Item, above: Item, slash: Item, below: Item, follows: Item) -> bool:
    if (above.kind, below.kind) != ("operand", "operand") or above.tex.startswith(r"\frac"):
        return False
    if taken.text == "/" or max(_width(above.printed()), _width(below.printed())) > WIDE:
        return False
    ends = follows.kind == "mark" or follows.text in JOINING
    ends |= follows.kind == "infix" and follows.text not in ("*", "/", "|")
    return not slash.spaced or (ends and taken.kind in ("infix", "mark", "word"))


def _joined(items: list[Item], element: str) -> str:
    tex, last = "", Item("infix", "")
    for item in items:
        if item.spaced and "infix" not in (item.kind, last.kind):
            words = item.kind == "word" or last.kind in ("word", "mark")
            room = "" if last.kind in ("function", "sign") else r"\,"
            tex += r"\allowbreak\ " if words else room
        tex += element if item.text == "in" else item.printed()
        last = item
    return tex


def _set(style: str, text: str) -> str:
    """Text that is not mathematics: words, or code ("tt")."""
    return rf"\text{style}{{" + re.sub(r"([_%&#$])", r"\\\1", text) + "}"


def _width(tex: str) -> int:
    return len(re.sub(r"\\[a-z]+|[{}\\ ]", "", tex))
