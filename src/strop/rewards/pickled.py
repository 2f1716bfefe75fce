"""Reward functions that are in no file: a lambda, or one defined in a notebook or a shell.

They are pickled together with the objects that they refer to, so that the process of the rewards,
which has imported nothing of the notebook, can load them. Reading one runs code.
"""

import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from strop.support.errors import UserError, in_words

KIND = "pickled"  # a source is written pickled:PATH


def names_of(functions: Sequence[Any]) -> list[str]:
    """Unique names of functions for metrics: a lambda is `reward`, a second one `reward_2`."""
    found: list[str] = []
    for function in functions:
        name = str(getattr(function, "__name__", type(function).__name__))
        name = name if re.fullmatch(r"[A-Za-z_]\w*", name) else "reward"
        number, free = 1, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found


def write(function: Callable[..., Any], path: Path) -> str:
    """Write a function to a file and return its source. Raises UserError where that fails."""
    import cloudpickle

    try:
        content = cloudpickle.dumps(function, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # the objects that it refers to may raise anything
        raise UserError(
            f"the reward {path.stem} cannot be sent to the process of the rewards "
            f"({in_words(error)}): it refers to something that lives in this process "
            "alone; make that inside the function, or write the function into a file and give "
            "file.py:function"
        ) from error
    path.write_bytes(content)
    return f"{KIND}:{path}"


def read(place: str) -> Callable[..., Any]:
    """The function in a file that `write` wrote. Raises UserError."""
    try:
        function = pickle.loads(Path(place).read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no reward function in {place}: the file is gone") from None
    except Exception as error:  # reading and its imports may raise anything
        raise UserError(
            f"the reward function in {place} cannot be read here: {in_words(error)}"
        ) from error
    if not callable(function):
        raise UserError(f"{place} holds {type(function).__name__}, which is no function")
    return function
