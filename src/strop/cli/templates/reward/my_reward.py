"""Rewards: every argument is a list with an entry for each answer; columns come by their name."""

import ast


def reaches_target(completions, numbers, target, log_metric, **columns):
    """1 for an expression of exactly these numbers that gives the target, else 0."""
    scores = [
        float(_used(text) == sorted(wanted) and _value(text) == goal)
        for text, wanted, goal in zip(completions, numbers, target, strict=True)
    ]
    log_metric("puzzles/not_read", sum(_used(text) is None for text in completions) / len(scores))
    return scores


def short(completions, **columns):
    """1 for an empty answer, 0 from 12 characters on. None would mean: does not apply."""
    return [max(0.0, 1 - len(text) / 12) for text in completions]


def _used(text):
    """The numbers of an expression, rising; None for what is no expression."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return None
    plain = (ast.Expression, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Constant)
    if not all(isinstance(node, plain) for node in ast.walk(tree)):
        return None
    return sorted(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))


def _value(text):
    try:
        return eval(text)  # of numbers and operators alone
    except (ArithmeticError, SyntaxError):
        return None
