"""What a call of the language-model head is given and gives back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from strop.head.subset import KINDS, WITHOUT_GRADIENT, kind_of
from strop.support.errors import UserError

# Of one [chunk, vocabulary] buffer. On two CPU cores (V 151,936, D 1,024) the three products took
# 7% longer with half of it and 9% less with twice.
CHUNK_BYTES = 128 * 2**20
NAMES = ("logp_T", "entropy_T", "mean_logp_T", "sum_pi_squared_T")


def has_gradient(name: str) -> bool:
    """Whether a column of the head can be given an adjoint."""
    kind = kind_of(name)
    return name != "sum_pi_squared_T" and (kind is None or kind[0] not in WITHOUT_GRADIENT)


Columns = dict[str, Tensor]
AdjointsOf = Callable[[slice, Columns], Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Head:
    """The last layer of a language model and how its logits are scaled (see `strop.head.head`)."""

    weight: Tensor  # [V, D]
    bias: Tensor | None = None  # [V]
    temperature: float = 1.0  # of the sampler, above 0
    softcap: float | None = None  # bound of the raw logits, above 0
    scale: float = 1.0  # factor of the raw logits
    chunk_tokens: int | None = None  # None: as many as CHUNK_BYTES hold
    onednn: bool = True  # where it can make the products; see `strop.support.linear`

    def __post_init__(self) -> None:
        if self.weight.ndim != 2 or self.weight.shape[0] == 0:
            raise UserError(f"Head.weight must be [V, D], V > 0; got {list(self.weight.shape)}.")
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise UserError(
                f"Head.bias must be [V] = [{self.weight.shape[0]}]; got {list(self.bias.shape)}."
            )
        for name in ("temperature", "softcap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"Head.{name} must be above 0; got {value}.")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise UserError(f"Head.chunk_tokens must be at least 1; got {self.chunk_tokens}.")


@dataclass(frozen=True)
class Distribution:
    """A per-token column made from whole next-token distributions, inside one chunk.

    `objective(rows, logq_TV, **reads) -> objective_T` gets the chunk's rows (a slice of the
    tokens), the current log-probabilities [chunk, V] and, by name, those of the other policies
    that it reads. Gradient flows through `logq_TV` alone. What multiplies the column in the loss
    is its adjoint and stays outside.
    """

    objective: Callable[..., Tensor]
    reads: tuple[str, ...] = ()  # names in `others`, such as "logq_ref_TV"


Distributions = Mapping[str, Distribution]
Others = Mapping[str, tuple[Head, Tensor]]  # another policy's head and its hidden states [T, D]


class Pushed(NamedTuple):
    """What `push` returns; a gradient that was not asked for is None."""

    loss: Tensor  # sum over tokens of adjoint * column; its gradient is right, its value is not
    columns: Columns
    grad_hidden_TD: Tensor | None
    grad_weight_VD: Tensor | None  # float32 at least
    grad_bias_V: Tensor | None


@dataclass(frozen=True, eq=False)
class HeadCall:
    """Which columns of which head; checked when made."""

    head: Head
    names: tuple[str, ...]
    distributions: Distributions
    others: Others

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in NAMES and kind_of(name) is None:
                numbered = (f"{kind}_0.5_T" for kind in KINDS)
                known = ", ".join((*NAMES, *numbered))
                raise UserError(f"The head has no column {name!r}; it has {known}.")
        for name, distribution in self.distributions.items():
            if name in NAMES or kind_of(name) is not None:
                raise UserError(f"A distribution may not be called {name!r}: a column of the head.")
            for read in distribution.reads:
                if read not in self.others:
                    raise UserError(f"Distribution {name!r} reads {read!r}; add it to `others`.")

    @property
    def all_names(self) -> tuple[str, ...]:
        """The columns of the result, in order."""
        return (*self.names, *self.distributions)

    def only(self, names: Collection[str]) -> HeadCall:
        """The same call for these columns alone."""
        kept = {name: each for name, each in self.distributions.items() if name in names}
        return replace(
            self, names=tuple(name for name in self.names if name in names), distributions=kept
        )

    def check(self, hidden_TD: Tensor, id_T: Tensor) -> None:
        """Raises UserError unless the tensors fit the heads."""
        vocabulary, width = self.head.weight.shape
        if id_T.ndim != 1 or id_T.dtype != torch.int64:
            raise UserError(f"id_T must be int64 [T]; got {id_T.dtype} {list(id_T.shape)}.")
        if hidden_TD.shape != (id_T.shape[0], width):
            raise UserError(
                f"hidden_TD must be [T, D] = {[id_T.shape[0], width]}; got {list(hidden_TD.shape)}."
            )
        for name, (other, states_TD) in self.others.items():
            expected = (id_T.shape[0], other.weight.shape[1])
            if other.weight.shape[0] != vocabulary or states_TD.shape != expected:
                raise UserError(
                    f"{name} must have {vocabulary} tokens in its vocabulary and hidden states "
                    f"{list(expected)}; got {other.weight.shape[0]} and {list(states_TD.shape)}."
                )
