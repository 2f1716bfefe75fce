"""How a recipe inherits the parameters of its parent."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from strop.method.algorithm import Algorithm, Method
from strop.recipes._door import One, Own, Recipe, words_of
from strop.support.errors import UserError, nearest


def inherits(
    parent: Recipe, *, without: Sequence[str] = (), **changed: Any
) -> Callable[[One], One]:
    """Give a recipe the parameters of `parent` that it does not name itself.

        @inherits(grpo, without=CLIP, num_rollouts=8)
        def some_recipe(*, width: float = 0.3, **parent: Any) -> Algorithm:
            algorithm = grpo(**parent)

    without: parameters of the parent that would have no effect here; changed: other defaults. The
    values, given or default, arrive in `**parent`; a parameter that the body needs is declared by
    the recipe itself and passed on. The parent's names in the padded calls are inherited as well.
    Raises UserError for a name that the parent does not have or the recipe does not inherit.
    """
    theirs, words = inspect.signature(parent).parameters, words_of(parent)

    def decorate(recipe: One) -> One:
        declared = inspect.signature(recipe)
        own = [p for p in declared.parameters.values() if p.kind != p.VAR_KEYWORD]
        left_out = {*without, *(p.name for p in own)}
        taken = [p for name, p in theirs.items() if name not in left_out]
        for name in sorted({*without} - {*theirs} | {*changed} - {p.name for p in taken}):
            raise UserError(_not_inherited(recipe.__name__, name, parent.__name__, theirs))
        taken = [p.replace(default=changed.get(p.name, p.default)) for p in taken]
        unsaid = declared.return_annotation is declared.empty
        returned = Algorithm if unsaid else declared.return_annotation
        signature = inspect.Signature([*own, *taken], return_annotation=returned)

        @functools.wraps(recipe)
        def complete(**given: Any) -> Method:
            try:
                bound = signature.bind(**given)
            except TypeError as error:
                raise TypeError(f"{recipe.__name__}() {error}") from None
            bound.apply_defaults()
            return recipe(**bound.arguments)

        complete.__signature__ = signature  # type: ignore[attr-defined]
        kept = {k: v for k, v in words.parameters.items() if _has(signature, v)}
        own_words, taken_over = words_of(recipe), dataclasses.replace(words, parameters=kept)
        complete.door = own_words.beside(taken_over)  # type: ignore[attr-defined]
        return cast(One, complete)

    return decorate


def _not_inherited(recipe: str, name: str, parent: str, theirs: Iterable[str]) -> str:
    """Why a name in `@inherits` of a recipe is no parameter that it inherits."""
    why = f", since {recipe} names it itself or leaves it out: give it a default in one place"
    why = why if name in theirs else nearest(name, theirs)
    return f"@inherits({parent}): {recipe} inherits no {name} from {parent}{why}"


def refuse_unused(where: str, given: Mapping[str, Any], parent: Recipe, *names: str) -> None:
    """Raise UserError where a parameter of `parent` without effect here is not its default."""
    theirs = inspect.signature(parent).parameters
    for name in names:
        if given[name] != theirs[name].default:
            raise UserError(f"{where}: {name}={given[name]!r} would have no effect; leave it out")


def _has(signature: inspect.Signature, own: Own) -> bool:
    """Whether a recipe has the parameter that a name of its parent's stands for."""
    name = own if isinstance(own, str) or own is None else own[0]
    return name is None or name in signature.parameters
