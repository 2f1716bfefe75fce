"""Other forms in which a call takes tensors: preference pairs, labels with logits, factors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.padded.given import mask_of, of_dtype
from strop.support.errors import UserError

SIDES = ("chosen", "rejected")
OF_PAIRS = ("logp", "logp_ref", "mask")
PAIRS = frozenset(f"{name}_{side}" for name in OF_PAIRS for side in SIDES)
NO_LABEL = -100  # of a position, as in transformers


def pairs_as_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Makes `logp` ... [2 N, T], groups and preferred from `logp_chosen`, `logp_rejected` ... [N,
    T].

    The chosen answers come first. The two widths may differ. Without such names nothing changes.
    Raises UserError for a missing side, or names of both forms.
    """
    named = PAIRS & given.keys()
    if not named:
        return dict(given)
    found = {name: value for name, value in given.items() if name not in named}
    clash = [n for n in (*OF_PAIRS, "groups", "preferred") if found.get(n) is not None]
    if clash:
        raise UserError(f"give pairs ({', '.join(sorted(named))}) or rows ({clash[0]}), not both")
    for name in OF_PAIRS:
        sides = [f"{name}_{side}" for side in SIDES]
        missing = [side for side in sides if given.get(side) is None]
        if len(missing) == 1 or (missing and name != "logp_ref"):
            raise UserError(f"pairs need {missing[0]}")
        if not missing:
            dtype = "bool" if name == "mask" else "float"
            one, other = (of_dtype(side, given[side], dtype) for side in sides)
            found[name] = _stacked(one, other, *sides)
    for side in SIDES:
        mask_of(f"mask_{side}", given[f"mask_{side}"])
    num = found["mask"].shape[0] // 2
    device = found["mask"].device
    found["groups"] = torch.arange(num, device=device).repeat(2)
    found["preferred"] = torch.tensor([1, -1], device=device).repeat_interleave(num)
    return found


def _stacked(chosen: Tensor, rejected: Tensor, one: str, other: str) -> Tensor:
    if chosen.dim() != 2 or rejected.dim() != 2 or chosen.shape[0] != rejected.shape[0]:
        raise UserError(
            f"{one} and {other} must be [N, T] with the same N; they are {list(chosen.shape)} and "
            f"{list(rejected.shape)}"
        )
    width = max(chosen.shape[1], rejected.shape[1])
    wide = [torch.nn.functional.pad(x, (0, width - x.shape[1])) for x in (chosen, rejected)]
    return torch.cat(wide)


def labelled(given: Mapping[str, Any], taken: Mapping[str, bool]) -> dict[str, Any]:
    """Adds the `taken` tensors that follow from `logits` [B, T, V] and `labels` [B, T].

    labels[b, t] is the token that logits[b, t] predict, -100 where there is none. `logp_old` is the
    same as `logp`: labels belong to a first update. Raises UserError for shapes that do not fit and
    for a mask that has tokens without a label.
    """
    rest = dict(given)
    value = rest.pop("labels", None)
    if value is None:
        return rest
    if rest.get("logits") is None:
        raise UserError("labels need logits [B, T, V]")
    labels, logits = of_dtype("labels", value, "int"), of_dtype("logits", rest["logits"], "float")
    mask = labels != NO_LABEL
    ids = ids_of("labels", torch.where(mask, labels, 0), logits.shape[:-1], logits.shape[-1])
    logq = torch.log_softmax(torch.where(mask[..., None], logits, 0), dim=-1)
    logp = logq.gather(2, ids[..., None]).squeeze(2)
    finite = torch.where(logq.isneginf(), 0, logq)  # a token that is ruled out adds 0, not NaN
    checked = {"logp": logp, "logp_old": logp.detach(), "token_ids": ids,
            "entropy": -(logq.exp() * finite).sum(-1)}  # fmt: skip
    if "logits" not in taken:
        del rest["logits"]
    if (own := mask_of("mask", rest.get("mask"))) is None:
        rest["mask"] = mask
    elif own.shape == mask.shape and bool((own.to(mask.device) & ~mask).any()):
        raise UserError(
            f"mask has tokens whose label is {NO_LABEL}, none: leave it out, or clear it there"
        )
    for name, tensor in checked.items():
        if name in taken and rest.get(name) is None:
            rest[name] = tensor
    return rest


def ids_of(name: str, value: Any, shape: tuple[int, ...], num: int) -> Tensor:
    """Converts token ids and checks their shape and that they are below `num`. Raises UserError."""
    ids = of_dtype(name, value, "int")
    if len(shape) != 2 or ids.shape != shape:
        raise UserError(f"{name} must be [B, T] to logits [B, T, V]; it is {[*ids.shape]} to "
                        f"{[*shape, num]}")  # fmt: skip
    if bool(((ids < 0) | (ids >= num)).any()):
        raise UserError(f"{name} must lie from 0 to {num - 1}")
    return ids


def distributions_of(logits: Any) -> tuple[Tensor, tuple[int, ...]]:
    """Returns log-probabilities [B T, V] of logits [B, T, V], and the shape [B, T]."""
    tensor = of_dtype("logits", logits, "float")
    if tensor.dim() != 3 or tensor.shape[2] == 0:
        raise UserError(f"logits must be [B, T, V]; they are {[*tensor.shape]}")
    return torch.log_softmax(tensor.flatten(0, 1), dim=-1), tuple(tensor.shape[:2])


@dataclass(frozen=True)
class Factors:
    """Factors [B, T] or [B] of advantages, and the labels of the parts that they replace."""

    by_name: Mapping[str, Tensor]
    parts: frozenset[str]

    def times(self, advantages: Tensor) -> Tensor:
        """Multiplies advantages by the factors; 0 stays 0. Raises UserError for a wrong shape."""
        found = advantages
        for name, factor in self.by_name.items():
            axes = factor.dim()
            if axes not in (1, 2) or factor.shape != found.shape[:axes]:
                raise UserError(f"{name} must be [B] or {[*found.shape]}; it is {[*factor.shape]}")
            wide = factor.to(found) if axes == 2 else factor.to(found)[:, None]
            found = torch.where(found == 0, found, found * wide)
        return found


def known_factors(words: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], Factors]:
    """Separates the tensors that the recipe's `words` declare as factors from the others.

    Raises UserError for a factor that needs another one, which is missing.
    """
    there = {name: given[name] for name in words.factors if given.get(name) is not None}
    parts = frozenset(words.factors[name][0] for name in there) - {""}
    if there and not parts:
        others = " or ".join(name for name, (part, _) in words.factors.items() if part)
        raise UserError(f"{' and '.join(there)} goes with {others}, which is missing")
    factors = {}
    for name, value in there.items():
        make, tensor = words.factors[name][1], of_dtype(name, value, "float").detach()
        factors[name] = make(tensor) if make else tensor
    rest = {name: value for name, value in given.items() if name not in words.factors}
    return rest, Factors(factors, parts)
