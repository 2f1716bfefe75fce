"""Checks how a part's class is written, before it is called: mistakes that Python itself allows."""

import inspect

from strop.support.errors import UserError

# Class attributes that are tuples or sets of names; a lone text would count as its letters.
GROUPS = ("writes", "moves", "follows", "learners", "facts", "unread", "unlogged")


def check_class(where: str, label: str, part: object) -> None:
    """Raise UserError for a part whose call cannot be given columns by name, that keeps state and
    does not say what the first one is, or that names a group by a lone text.
    """
    who, kind = f"{where}: {label}", type(part)
    given = list(inspect.signature(kind.__call__).parameters.values())
    if not given or given[0].name != "self":
        raise UserError(
            f"{who} has a `__call__` without self: write `def __call__(self, ...)`, and after self "
            "the columns that it reads"
        )
    for each in given[1:]:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise UserError(
                f"{who} takes `{each}` in its `__call__`: name each column that it reads as a "
                "parameter of its own, since strop passes columns by name"
            )
        if each.name == "state" and not hasattr(part, "init"):
            raise UserError(
                f"{who} takes state and does not say what the first one is: give its class "
                "`def init(self)`, which returns it"
            )
    for name in GROUPS:
        if isinstance(value := getattr(part, name, ()), str):
            raise UserError(
                f'{who} has {name} = "{value}", a text: write a tuple, {name} = ("{value}",)'
            )
