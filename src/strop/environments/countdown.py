"""Countdown puzzles: combine all the given numbers, once each, to reach a target.

A prompt is `3,5,7:22=`, an answer `3*5+7`; brackets and the four operations are allowed, values
are exact fractions. The puzzles are two numbers of 1 to 36 or three of 1 to 10 (a number may be
given twice) with each whole target of 1 to 99 that they reach: 1,563 easy and 2,905 hard ones.
A fixed seed assigns them to the splits, which are disjoint and the same on every machine. A random
answer is right for about 20% of the easy puzzles and 4% of the hard ones.
"""

import ast
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, combinations_with_replacement
from typing import Any, TypeVar

MAX_NUMBER = {2: 36, 3: 10}  # by how many numbers a puzzle has
MAX_TARGET = 99
NUM_HELD_OUT = 512
NUM_VALIDATION = 256
SPLITS = ("train", "validation", "held_out")
MAX_TOKENS = 12  # one a character: 10 for the longest answer without needless brackets, the end
MAX_ANSWER_CHARACTERS = 100  # longer text is no answer; this bounds the parser's work

_SPLIT_SEED = 20250601
_SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_SUMS = ("+", "-")
_ALLOWED_CHARACTERS = frozenset("0123456789+-*/() ")
# An expression: text, value as (numerator, denominator), which is quicker than a Fraction, and
# outermost operation.
Joined = tuple[str, tuple[int, int], str]
Row = TypeVar("Row")


def puzzles(split: str) -> list[dict[str, Any]]:
    """Rows of a split, each with `prompt` (text), `numbers` (rising), `target` and `completion`.

    The completion is the shortest right answer, of several the first in the alphabet; methods that
    imitate answers read it. Raises ValueError for an unknown split.
    """
    return [
        {
            "prompt": prompt_text(numbers, target),
            "numbers": list(numbers),
            "target": target,
            "completion": _shortest(numbers)[target],
        }
        for numbers, target in of_split(split, _shuffled_puzzles())
    ]


def of_split(split: str, shuffled: Sequence[Row]) -> Sequence[Row]:
    """The part of shuffled puzzles that is a split. Raises ValueError for an unknown one."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    last = NUM_HELD_OUT + NUM_VALIDATION
    bounds = {"held_out": (0, NUM_HELD_OUT), "validation": (NUM_HELD_OUT, last)}
    return shuffled[slice(*bounds.get(split, (last, len(shuffled))))]


def prompt_text(numbers: Sequence[int], target: int) -> str:
    """The puzzle as the model sees it: `3,5,7:22=`."""
    return f"{','.join(map(str, numbers))}:{target}="


def correct(
    prompts: Sequence[Any],
    completions: Sequence[str],
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    **columns: Any,
) -> list[float]:
    """1.0 for each completion that uses exactly its numbers and equals its target, else 0.0."""
    return [
        float(is_well_formed(text, given) and evaluate(text) == wanted)
        for text, given, wanted in zip(completions, numbers, target, strict=True)
    ]


def is_well_formed(completion: str, numbers: Sequence[int]) -> bool:
    """Whether the text is one expression that uses each given number exactly once."""
    tree = _parse(completion)
    if tree is None:
        return False
    return sorted(_numbers(tree)) == sorted(numbers)


def evaluate(completion: str) -> Fraction | None:
    """Exact value of the expression; None when it is malformed or divides by zero."""
    tree = _parse(completion)
    return None if tree is None else _value(tree)


def extract_answer(completion: str) -> str | None:
    """Canonical text of the expression, or None when there is none.

    Spaces, needless brackets and the order of terms and factors do not matter: `(7+5)*3` and
    `3*(5+7)` have the same canonical text, so votes and counts treat them as one answer.
    """
    tree = _parse(completion)
    return None if tree is None else _canonical(tree)


def solutions(numbers: Sequence[int], target: int) -> list[str]:
    """Every right answer without needless brackets, sorted."""
    return [text for text, value in expressions(tuple(sorted(numbers))) if value == target]


@cache
def expressions(numbers: tuple[int, ...]) -> tuple[tuple[str, Fraction], ...]:
    """Every expression of all the numbers without needless brackets, with its value, by text."""
    found = {text: Fraction(*value) for text, value, _ in _combinations(numbers)}
    return tuple(sorted(found.items()))


@cache
def _shortest(numbers: tuple[int, ...]) -> dict[int, str]:
    """The shortest answer of every target that the numbers reach, of several the first in the
    alphabet.
    """
    found: dict[int, str] = {}
    for text, (top, bottom), _ in _combinations(numbers):
        target, rest = divmod(top, bottom)
        if rest == 0 and 1 <= target <= MAX_TARGET:
            found[target] = min(found.get(target, text), text, key=lambda each: (len(each), each))
    return found


@cache
def _shuffled_puzzles() -> tuple[tuple[tuple[int, ...], int], ...]:
    pairs = []
    for count, highest in MAX_NUMBER.items():
        for numbers in combinations_with_replacement(range(1, highest + 1), count):
            pairs += [(numbers, target) for target in sorted(_shortest(numbers))]
    random.Random(_SPLIT_SEED).shuffle(pairs)
    return tuple(pairs)


@cache
def _combinations(numbers: tuple[int, ...]) -> tuple[Joined, ...]:
    """Every expression of all the numbers."""
    if len(numbers) == 1:
        return ((str(numbers[0]), (numbers[0], 1), ""),)
    places = range(len(numbers))
    found: list[Joined] = []
    for size in range(1, len(numbers)):
        for chosen in combinations(places, size):
            rest = tuple(numbers[i] for i in places if i not in chosen)
            for left in _combinations(tuple(numbers[i] for i in chosen)):
                for right in _combinations(rest):
                    found += _joined(left, right)
    return tuple(found)


def _joined(left: Joined, right: Joined) -> Iterator[Joined]:
    """Both expressions joined by each operation; brackets only where they change the value."""
    (a_text, (a, c), a_symbol), (b_text, (b, d), b_symbol) = left, right
    values = {"+": (a * d + b * c, c * d), "-": (a * d - b * c, c * d), "*": (a * b, c * d)}
    if b:
        values["/"] = (a * d, c * b)
    for symbol, value in values.items():
        yield joined((a_text, a_symbol), symbol, (b_text, b_symbol)), value, symbol


def joined(left: tuple[str, str], symbol: str, right: tuple[str, str]) -> str:
    """Two expressions (text, outermost operation) joined; brackets only where they are needed."""
    (a, a_symbol), (b, b_symbol) = left, right
    if symbol in "*/" and a_symbol in _SUMS:
        a = f"({a})"
    if b_symbol and symbol != "+" and (symbol == "/" or b_symbol in _SUMS):
        b = f"({b})"
    return f"{a}{symbol}{b}"


def _parse(completion: str) -> ast.expr | None:
    """The expression's tree, or None unless it is whole numbers joined by the four operations."""
    text = completion.strip()
    if len(text) > MAX_ANSWER_CHARACTERS or not _ALLOWED_CHARACTERS.issuperset(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:  # the bounded length rules out the parser's other failures
        return None
    return tree if _is_allowed(tree) else None


def _is_allowed(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in _SYMBOLS and _is_allowed(node.left) and _is_allowed(node.right)
    return isinstance(node, ast.Constant) and type(node.value) is int


def _numbers(node: ast.expr) -> list[int]:
    if isinstance(node, ast.BinOp):
        return _numbers(node.left) + _numbers(node.right)
    assert isinstance(node, ast.Constant)
    assert isinstance(node.value, int)
    return [node.value]


def _value(node: ast.expr) -> Fraction | None:
    if not isinstance(node, ast.BinOp):
        return Fraction(_numbers(node)[0])
    left, right = _value(node.left), _value(node.right)
    if left is None or right is None:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
    return left / right if right else None


def _canonical(node: ast.expr) -> str:
    """The text with sums and products flattened and members sorted, the inverted ones last."""
    if not isinstance(node, ast.BinOp):
        return str(_numbers(node)[0])
    symbols = "+-" if isinstance(node.op, ast.Add | ast.Sub) else "*/"
    members = sorted(_members(node, symbols, symbols[0]), key=lambda m: (m[0] == symbols[1], m[1]))
    return "".join(symbol + text for symbol, text in members)[1:]


def _members(node: ast.expr, symbols: str, sign: str) -> Iterator[tuple[str, str]]:
    """(symbol, canonical text) of each member of a flattened sum ("+-") or product ("*/")."""
    symbol = _SYMBOLS[type(node.op)] if isinstance(node, ast.BinOp) else ""
    if isinstance(node, ast.BinOp) and symbol in symbols:
        other = symbols[1] if sign == symbols[0] else symbols[0]
        yield from _members(node.left, symbols, sign)
        yield from _members(node.right, symbols, sign if symbol == symbols[0] else other)
    else:
        text = _canonical(node)
        needs_brackets = symbols == "*/" and symbol in _SUMS
        yield sign, f"({text})" if needs_brackets else text
