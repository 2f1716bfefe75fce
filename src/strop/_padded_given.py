"""What is given at the padded door, checked by its name before anything reads it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.errors import UserError, check_value

TAKEN = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
KINDS = (Tensor, np.ndarray, np.number, np.bool_, list, tuple, int, float)
LARGEST = 2**53  # of whole numbers that came as floats
# Of the names that say how rows and tokens make up turns.
DTYPES = {
    "mask": "bool", "denominator_mask": "bool", "turn_ids": "int", "turn_end": "bool",
    "turn_valid": "bool", "trajectories": "int", "turn_index": "int", "steps": "int",
}  # fmt: skip


def check_call(name: Any, params: Any, seed: Any = 0, state: Any = None) -> None:
    """Raise UserError where a call's words are of the wrong kind."""
    if not isinstance(name, str):
        raise UserError(f"the recipe is given by its name, not by {_kind(name)}")
    if not isinstance(params, Mapping) or not all(isinstance(key, str) for key in params):
        raise UserError(f"params must be a dict from names to values, it is {_kind(params)}")
    for key, value in params.items():
        check_value(value, f"params[{key!r}]")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise UserError("seed must be a whole number from 0 to 2**63 - 1")
    if state is not None and not isinstance(state, Mapping):
        raise UserError(f"state must be what next_state gave, it is {_kind(state)}")


def tensor_of(name: str, value: Any) -> Tensor:
    """The value as a dense tensor of real numbers. Raises UserError."""
    if not isinstance(value, KINDS):
        raise UserError(f"{name} must be a tensor, it is {_kind(value)}")
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
    """The value as one number. Raises UserError."""
    tensor = tensor_of(name, value)
    if tensor.numel() != 1:
        raise UserError(f"{name} must be one number, it is {list(tensor.shape)}")
    return float(tensor)


def of_dtype(name: str, value: Any, dtype: str) -> Tensor:
    """The value as a tensor of the column's dtype ("float", "int" or "bool").

    Any numbers may stand for floats and for bools; for ints, whole numbers. Raises UserError.
    """
    tensor = tensor_of(name, value)
    if dtype == "bool":
        return tensor.bool()
    if dtype == "float":
        return tensor if tensor.is_floating_point() else tensor.float()
    if tensor.is_floating_point():
        whole = (tensor == tensor.round()) & (tensor.abs() <= LARGEST)
        if not bool(whole.all()):
            raise UserError(f"{name} must hold whole numbers")
    return tensor.long()


def mask_of(name: str, value: Any) -> Tensor | None:
    """A mask [B, T] that is given, as bools. Raises UserError."""
    if value is None:
        return None
    mask_BT = of_dtype(name, value, "bool")
    if mask_BT.dim() != 2:
        raise UserError(f"{name} must be a tensor [B, T], it is {list(mask_BT.shape)}")
    return mask_BT


def rows_of(mask: Any, **columns: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The mask and float tensors of its shape. Raises UserError, also for a mask of None."""
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


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
