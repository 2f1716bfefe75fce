"""Calls of the padded door that are made of other calls."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from strop._padded_compose import series_words
from strop._padded_given import check_call, of_dtype, tensor_of
from strop._padded_state import METRICS, split
from strop.errors import UserError

SEQ = "advantages_seq"


def after_series(
    next_state: Callable[..., dict[str, Any]], name: str, params: Any, seed: int, mask: Any,
    given: dict[str, Any], state: Any,
) -> tuple[dict[str, Any], Any]:  # fmt: skip
    """The tensors of this step, and the state after the earlier ones that a series tells of."""
    check_call(name, {} if params is None else params, seed, state)
    given, earlier = split(series_words(name), given)
    for what, number in earlier:
        step = {"state": state, "params": params, "seed": seed}
        if what.startswith(METRICS):
            state = next_state(name, metrics={what.removeprefix(METRICS): number}, **step)
        else:
            state = next_state(name, mask=mask, **{**given, what: number}, **step)
    return given, state


def step_rows(mask: Any, given: Mapping[str, Any]) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """The rows [n] of each training step that `steps` [B] names, in order, and their tensors.

    Raises UserError for a tensor that has other rows.
    """
    steps = of_dtype("steps", given["steps"], "int")
    if steps.dim() != 1:
        raise UserError(f"steps must be [B], the training step of each row; it is {[*steps.shape]}")
    tensors = {
        name: tensor_of(name, value)
        for name, value in {**given, "mask": mask}.items()
        if value is not None and name != "steps"
    }
    for name, tensor in tensors.items():
        if tensor.dim() and len(tensor) != len(steps):
            raise UserError(f"{name} has {len(tensor)} rows, steps has {len(steps)}")
    for number in steps.unique().tolist() or [0]:
        row = (steps == number).nonzero().squeeze(1)
        yield row, {n: t[row.to(t.device)] if t.dim() else t for n, t in tensors.items()}


def over_steps(
    advantages: Callable[..., Tensor], next_state: Callable[..., dict[str, Any]], mask: Any,
    given: Mapping[str, Any], state: Any,
) -> Tensor:  # fmt: skip
    """Advantages of rows of several training steps, each after what the steps before it taught.

    advantages, next_state: those calls of a recipe.
    """
    found: list[Tensor] = []
    order: list[Tensor] = []
    for row, own in step_rows(mask, given):
        found.append(advantages(state=state, **own))
        state = next_state(state=state, **own)
        order.append(row)
    whole = torch.cat(found)
    return torch.empty_like(whole).index_copy(0, torch.cat(order).to(whole.device), whole)


def from_rollouts(
    advantages: Callable[..., Tensor], selection: Callable[..., tuple[Tensor, Tensor]],
    takes: Mapping[str, Collection[str]], mask: Any, given: Mapping[str, Any],
) -> tuple[dict[str, Any], Tensor, Tensor]:  # fmt: skip
    """What a loss takes where advantages of rollouts are given: those of tokens, and two masks.

    advantages, selection: those calls of the recipe. takes: the names that each call takes. A
    tensor goes to every call that takes it. Raises UserError for advantages of both kinds.
    """
    if given.get("advantages") is not None:
        raise UserError(f"give advantages or {SEQ}, not both")
    rest = {name: value for name, value in given.items() if name not in (SEQ, "advantages")}

    def of(call: str) -> dict[str, Any]:
        return {name: value for name, value in rest.items() if name in takes[call]}

    found = advantages(mask=mask, advantages_seq=given[SEQ], **of("advantages"))
    kept, counted = selection(advantages=found, mask=mask, **of("selection"))
    elsewhere = {*takes["advantages"], *takes["selection"]} - {*takes["policy_loss"]}
    loss = {name: value for name, value in rest.items() if name not in elsewhere}
    return {**loss, "advantages": found}, kept, counted
