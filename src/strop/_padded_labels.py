"""Labels at the padded door: with logits they stand for log-probabilities, entropies and a mask."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strop._padded_given import of_dtype
from strop.errors import UserError

NONE = -100  # a position that has no label, as elsewhere


def labelled(given: Mapping[str, Any], taken: Mapping[str, bool]) -> dict[str, Any]:
    """`given` with what `logits` [B, T, V] and `labels` [B, T] say of the names that are `taken`.

    labels[b, t] is the token that logits[b, t] predict, -100 where there is none. `logp_old` is the
    same as `logp`: labels are of a first update. Raises UserError for shapes that do not fit.
    """
    rest = dict(given)
    value = rest.pop("labels", None)
    if value is None:
        return rest
    if rest.get("logits") is None:
        raise UserError("labels need logits [B, T, V]")
    labels, logits = of_dtype("labels", value, "int"), of_dtype("logits", rest["logits"], "float")
    mask = labels != NONE
    ids = ids_of("labels", torch.where(mask, labels, 0), logits.shape[:-1], logits.shape[-1])
    logq = torch.log_softmax(torch.where(mask[..., None], logits, 0), dim=-1)
    logp = logq.gather(2, ids[..., None]).squeeze(2)
    said = {"logp": logp, "logp_old": logp.detach(), "token_ids": ids,
            "entropy": -(logq.exp() * logq).sum(-1)}  # fmt: skip
    if "logits" not in taken:
        del rest["logits"]
    if rest.get("mask") is None:
        rest["mask"] = mask
    for name, tensor in said.items():
        if name in taken and rest.get(name) is None:
            rest[name] = tensor
    return rest


def ids_of(name: str, value: Any, shape: tuple[int, ...], num: int) -> Tensor:
    """Token ids of that shape, below `num`. Raises UserError."""
    ids = of_dtype(name, value, "int")
    if len(shape) != 2 or ids.shape != shape:
        raise UserError(f"{name} must be [B, T] to logits [B, T, V]; it is {[*ids.shape]} to "
                        f"{[*shape, num]}")  # fmt: skip
    if bool(((ids < 0) | (ids >= num)).any()):
        raise UserError(f"{name} must lie from 0 to {num - 1}")
    return ids


def distributions_of(logits: Any) -> tuple[Tensor, tuple[int, ...]]:
    """Log-probabilities [B T, V] of logits [B, T, V], and their shape [B, T]. Raises UserError."""
    tensor = of_dtype("logits", logits, "float")
    if tensor.dim() != 3 or tensor.shape[2] == 0:
        raise UserError(f"logits must be [B, T, V]; they are {[*tensor.shape]}")
    return torch.log_softmax(tensor.flatten(0, 1), dim=-1), tuple(tensor.shape[:2])
