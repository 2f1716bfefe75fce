"""Several methods as a script gives them: in a list or by label, each with options of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from strop.catalogue import model_of as needed_model
from strop.door.options import combined, from_keywords, method_of
from strop.errors import UserError
from strop.training.config import RunConfig

Labelled = Sequence[tuple[str, Any]]  # label; a method, or one with options of its own


def labelled(methods: Any, what: str) -> list[tuple[str, Any]]:
    """Label and method of each. what: becomes of them. Raises UserError."""
    if isinstance(methods, Mapping):
        found = [(str(label), each) for label, each in methods.items()]
    elif _is_one(methods) or not isinstance(methods, Iterable):
        found = [(label_of(methods), methods)]
    else:
        found = [(label_of(each), each) for each in methods]
    if not found:
        raise UserError(f"name the methods to {what}, such as ['grpo', 'rloo']")
    return found


def label_of(method: Any) -> str:
    """What a method is called where no label is given. Raises UserError for one without a name."""
    if isinstance(method, str):
        return method
    if _is_one(method):
        return " ".join([method[0], *(f"{k}={v}" for k, v in method[1].items())])
    if isinstance(method, Callable) and hasattr(method, "__name__"):  # type: ignore[arg-type]
        return str(method.__name__)
    raise UserError("a method that is no line has no name: give a dict, {'mine': method}")


def settings_of_all(
    named: Labelled, given: Mapping[str, Any], options: Mapping[str, Any]
) -> list[tuple[str, RunConfig]]:
    """The configuration of every method; one that needs a shipped model has all train it.

    given: sections that all have. options: keywords that all have. Raises UserError.
    """
    pairs = [(label, each if isinstance(each, tuple) else (each, {})) for label, each in named]
    lines = [method for _, (method, _) in pairs if isinstance(method, str)]
    if not given.get("model") and (needed := next(filter(None, map(needed_model, lines)), "")):
        given = {**given, "model": {"name": needed}}
    return [
        (label, combined(method_of(method), from_keywords({**options, **own}), dict(given)))
        for label, (method, own) in pairs
    ]


def _is_one(method: Any) -> bool:
    """Whether it is a line, or a line with options of its own."""
    if isinstance(method, tuple) and len(method) == 2:
        return isinstance(method[0], str) and isinstance(method[1], Mapping)
    return isinstance(method, str)
