"""What the forward passes of several processes measured, put together in each of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strop.batch import Batch
from strop.training.policy import AdjointsOf
from strop.training.ranks import Ranks


@dataclass
class Heard:
    """The columns that the passes of all processes have measured on the policy tokens of a batch.

    Every process then works out the same losses and metrics from them.
    """

    batch: Batch
    columns: dict[str, Tensor] = field(default_factory=dict)

    def put(self, columns: Mapping[str, Tensor], rows: Tensor, counts: bool) -> None:
        """Keep what an own pass has measured at these rows of tokens."""
        for name, value in columns.items():
            if name not in self.columns:
                self.columns[name] = value.new_zeros(self.batch.size("T"))
            if counts:
                self.columns[name][rows] = value.detach()

    def all(self, ranks: Ranks) -> tuple[Batch, dict[str, Tensor]]:
        """The policy tokens and their columns, of all processes."""
        mask_T = self.batch["mask_T"]
        found = ranks.total(self.columns)
        return self.batch.narrow(mask_T), {name: found[name][mask_T] for name in found}


def silenced(adjoints_of: AdjointsOf) -> AdjointsOf:
    """The same adjoints, all 0: of a pass that counts for nothing."""

    def silent(rows: slice, columns: dict[str, Tensor]) -> Mapping[str, Tensor]:
        found = adjoints_of(rows, columns)
        return {name: torch.zeros_like(adjoint) for name, adjoint in found.items()}

    return silent
