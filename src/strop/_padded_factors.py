"""Factors on advantages that are known at the padded door, in place of the part that finds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop._padded_given import of_dtype
from strop.errors import UserError


@dataclass(frozen=True)
class Known:
    """Factors [B, T] or [B] by their names, and the labels of the parts in whose place they are."""

    factors: Mapping[str, Tensor]
    parts: frozenset[str]

    def times(self, advantages: Tensor) -> Tensor:
        """Advantages times the factors; 0 stays 0. Raises UserError for a wrong shape."""
        found = advantages
        for name, factor in self.factors.items():
            axes = factor.dim()
            if axes not in (1, 2) or factor.shape != found.shape[:axes]:
                raise UserError(f"{name} must be [B] or {[*found.shape]}; it is {[*factor.shape]}")
            wide = factor.to(found) if axes == 2 else factor.to(found)[:, None]
            found = torch.where(found == 0, found, found * wide)
        return found


def known_factors(words: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], Known]:
    """`given` without the tensors that the recipe's `words` call factors, and those.

    Raises UserError for one that stands beside another that is missing.
    """
    there = {name: given[name] for name in words.factors if given.get(name) is not None}
    parts = frozenset(words.factors[name][0] for name in there) - {""}
    if there and not parts:
        others = " or ".join(name for name, (part, _) in words.factors.items() if part)
        raise UserError(f"{' and '.join(there)} stands beside {others}, which is missing")
    factors = {}
    for name, value in there.items():
        make, tensor = words.factors[name][1], of_dtype(name, value, "float").detach()
        factors[name] = make(tensor) if make else tensor
    rest = {name: value for name, value in given.items() if name not in words.factors}
    return rest, Known(factors, parts)
