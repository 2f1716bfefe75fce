"""The arguments of a padded call: options, tensors checked by name, and the layout of rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.batch.batch import Batch, from_padded, to_padded
from strop.method import notation, reading
from strop.method.schedule import SCHEDULES
from strop.support.errors import UserError, check_value

TAKEN = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
KINDS = (Tensor, np.ndarray, np.number, np.bool_, list, tuple, int, float)
# Tensors by the names of TRL's and verl's losses, and their names here.
THEIRS = {
    "per_token_logps": "logp", "log_prob": "logp", "log_probs": "logp",
    "old_per_token_logps": "logp_old", "old_log_prob": "logp_old", "old_log_probs": "logp_old",
    "ref_per_token_logps": "logp_ref", "ref_log_prob": "logp_ref", "ref_log_probs": "logp_ref",
    "completion_mask": "mask", "response_mask": "mask",
}  # fmt: skip
LARGEST = 2**53  # the largest whole number accepted as a float
# The dtypes of masks, and of tensors that assign rows and tokens to turns.
DTYPES = {
    "mask": "bool", "denominator_mask": "bool", "turn_ids": "int", "turn_end": "bool",
    "turn_valid": "bool", "trajectories": "int", "turn_index": "int", "steps": "int",
}  # fmt: skip


@dataclass(frozen=True)
class PaddedCall:
    """One call of a function of `strop.functional`, with all its arguments.

    call: the function's name. recipe: its name, or a line `name(parameter=value, ...)` whose
    parameters join params. tensors: by the caller's names, None for one that is left out. params,
    state: empty where the caller gave None. which: the requested column of returns. without: labels
    of advantage parts that do not run, because the caller gave their factors.
    Raises UserError for options of the wrong kind.
    """

    call: str
    recipe: str
    tensors: Mapping[str, Any]
    mask: Any = None
    params: Any = None
    seed: int = 0
    state: Any = None
    denominator_mask: Any = None
    which: str = ""
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for option in ("params", "state"):
            if getattr(self, option) is None:
                object.__setattr__(self, option, {})
        check_call(self.recipe, self.params, self.seed, self.state)
        object.__setattr__(self, "params", {k: _read(v) for k, v in self.params.items()})
        if self.recipe.endswith(")"):
            name, written = notation.named(self.recipe)
            for key in written.keys() & self.params.keys():
                raise UserError(f"{key} is in {self.recipe!r} and in params: give one of the two")
            object.__setattr__(self, "recipe", name)
            object.__setattr__(self, "params", {**written, **self.params})
        for name in self.tensors.keys() & THEIRS.keys():
            raise UserError(f"{self} takes no {name}: it is {THEIRS[name]} here")

    def __str__(self) -> str:
        return f"{self.call}({self.recipe!r})"

    def has(self, name: str) -> bool:
        """Whether a tensor of that name is given."""
        return self.tensors.get(name) is not None

    def having(self, **tensors: Any) -> "PaddedCall":
        """The same call with additional or replaced tensors."""
        return replace(self, tensors={**self.tensors, **tensors})

    def but(self, *names: str) -> "PaddedCall":
        """The same call without the tensors of those names."""
        rest = {name: value for name, value in self.tensors.items() if name not in names}
        return replace(self, tensors=rest)


def check_call(name: Any, params: Any, seed: Any = 0, state: Any = None) -> None:
    """Raises UserError where a call's options are of the wrong kind."""
    if not isinstance(name, str):
        raise UserError(
            "the recipe is given by its name, or a line such as 'grpo(beta=0.04)' or "
            f"'my.py:mine', it is {_kind(name)}"
        )
    if not isinstance(params, Mapping) or not all(isinstance(key, str) for key in params):
        raise UserError(f"params must be a dict from names to values, it is {_kind(params)}")
    for key, value in params.items():
        check_value(value, f"params[{key!r}]")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise UserError("seed must be a whole number from 0 to 2**63 - 1")
    if state is not None and not isinstance(state, Mapping):
        raise UserError(f"state must be what next_state gave, it is {_kind(state)}")


def _read(value: Any) -> Any:
    """A parameter; a schedule may be written as text, as in a recipe's line."""
    if not isinstance(value, str) or value.partition("(")[0] not in SCHEDULES:
        return value
    return reading.value(value)


def tensor_of(name: str, value: Any) -> Tensor:
    """Converts a value to a dense tensor of real numbers. Raises UserError."""
    if not isinstance(value, KINDS):
        raise UserError(f"{name} must be a tensor, it is {_kind(value)}")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        raise UserError(
            f"{name} holds texts or objects: number them, such as by "
            f"np.unique({name}, return_inverse=True)[1]"
        )
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"{name} cannot be made a tensor: {first}") from error
    if tensor.layout != torch.strided or tensor.is_nested:
        raise UserError(f"{name} is {tensor.layout}: give a dense tensor (.to_dense())")
    if tensor.is_meta:
        raise UserError(f"{name} is on the device meta and holds no numbers")
    if tensor.dtype not in TAKEN:
        raise UserError(f"{name} is {tensor.dtype}: give real numbers, whole numbers or bools")
    return tensor


def number_of(name: str, value: Any) -> float:
    """Converts a value to one number. Raises UserError."""
    tensor = tensor_of(name, value)
    if tensor.numel() != 1:
        raise UserError(f"{name} must be one number, it is {list(tensor.shape)}")
    return float(tensor)


def of_dtype(name: str, value: Any, dtype: str) -> Tensor:
    """Converts a value to a tensor of the column's dtype ("float", "int" or "bool").

    Any numbers may stand for floats and for bools; for ints, whole numbers. Floats of 16 bits
    become float32, for their ratios are coarser than a clip. Raises UserError.
    """
    tensor = tensor_of(name, value)
    if dtype == "bool":
        return tensor.bool()
    if dtype == "float":
        return tensor if tensor.dtype is torch.float64 else tensor.float()
    if tensor.is_floating_point():
        whole = (tensor == tensor.round()) & (tensor.abs() <= LARGEST)
        if not bool(whole.all()):
            raise UserError(f"{name} must hold whole numbers")
    return tensor.long()


def mask_of(name: str, value: Any) -> Tensor | None:
    """Converts a mask [B, T] to bools; None stays None. Raises UserError."""
    if value is None:
        return None
    tensor = tensor_of(name, value)
    if tensor.dtype is not torch.bool and not bool(((tensor == 0) | (tensor == 1)).all()):
        raise UserError(f"{name} must hold 0 and 1 alone: weights of tokens go into advantages")
    mask_BT = tensor.bool()
    if mask_BT.dim() != 2:
        raise UserError(f"{name} must be a tensor [B, T], it is {list(mask_BT.shape)}")
    return mask_BT


def rows_of(mask: Any, **columns: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Converts a mask and float tensors of its shape. Raises UserError, also for no mask."""
    mask_BT = mask_of("mask", mask)
    if mask_BT is None:
        raise UserError("mask must be a tensor [B, T], it is None")
    found = {}
    for name, value in columns.items():
        found[name] = of_dtype(name, value, "float").to(mask_BT.device)
        if found[name].shape != mask_BT.shape:
            raise UserError(
                f"{name} must be {list(mask_BT.shape)} like the mask; it is "
                f"{list(found[name].shape)}"
            )
    return mask_BT, found


@dataclass(frozen=True)
class Layout:
    """The layout of rows. Here every row is a rollout of one turn; `turns.py` has other layouts."""

    mask_BT: Tensor

    def shape(self, level: str) -> tuple[int, ...]:
        """Returns the leading axes of tensors of this level. Raises UserError for no such level."""
        num, width = self.mask_BT.shape
        shapes = {"T": (num, width), "B": (num,), "": ()}
        if level not in shapes:
            raise UserError("columns of turns need turn_ids or trajectories; prompts have no place")
        return shapes[level]

    def axes(self, level: str) -> int:
        """Returns how many axes a tensor of this level has, before those of its own."""
        return len(self.shape(level))

    def batch(self, columns: Mapping[str, Tensor], kept_BT: Tensor) -> Batch:
        """Makes the flat batch of the columns; each row is cut after its last kept token."""
        return from_padded(columns, kept_BT)

    def back(self, batch: Batch, values_T: Tensor) -> Tensor:
        """Lays token values out as padded rows."""
        num, width = self.mask_BT.shape
        return to_padded(values_T, batch["rollout_T"], num, width)

    def back_B(self, batch: Batch, values_B: Tensor) -> Tensor:
        """Lays values of rollouts out, one a row."""
        return values_B

    def back_K(self, batch: Batch, values_K: Tensor) -> Tensor:
        """Lays values of turns out in the shape of `turn_rewards`."""
        return values_K


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
