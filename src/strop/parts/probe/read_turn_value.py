"""Read the critic's value of a turn at the token where it is predicted."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, present, require_one_of
from strop.support.errors import UserError

PLACES = ("first", "last", "action", "segment", "next", "begin")


@dataclass(frozen=True)
class ReadTurnValue:
    """A turn has one value, which the critic predicts, and learns, at one of its tokens.

        value_k = value at the place of turn k,   at_t = t is that place

    By `place`: the turn's "first" or "last" policy token; "action": the token after the subgoal
    block, without one that after the switch block, else the first (the last where the turn ends
    with the block); "segment": the first, marked only where the turn begins a segment (the first
    of its rollout, or a switch); "next": the first of the turn after it in its rollout, 0 after the
    last, never marked; "begin": the first of its rollout's first turn, marked only in that turn.

    Reads: value_T [T] float, mask_T [T] bool, turn_T [T] int, rollout_K [K] int; span_T [T] int for
    "action", switch_K [K] bool for "segment", origin_T [T] int where `origins` are given.
    Writes: value_K [K] float, at_T [T] bool.
    Source: arXiv 2602.16165; code JonP07/HiPER-agent (positions of the values).
    Differs from the source: no.
    Nearest part: none.
    Edges: a turn without policy tokens -> 0, not marked.
    """

    writes: ClassVar[tuple[str, ...]] = ("value_K", "at_T")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("at_T", "bool", "the token at which the value was read", random="flag:0.8"),
    )
    # Where a turn's value is read. Default: ours (before the turn).
    place: str = "first"
    # Only turns of these origins are marked; none: all. Default: ours (all).
    origins: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_one_of(self, "place", PLACES)

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """The columns that say where a turn's action or subgoal begins."""
        return {"action": (("span_T",),), "segment": (("switch_K",),)}.get(self.place, ())

    def __call__(
        self,
        value_T: Tensor,
        mask_T: Tensor,
        turn_T: Tensor,
        rollout_K: Tensor,
        span_T: Tensor | None = None,
        switch_K: Tensor | None = None,
        origin_T: Tensor | None = None,
    ) -> Result:
        num = rollout_K.shape[0]
        row_N = mask_T.nonzero().squeeze(1)
        key_N = turn_T[row_N]
        first_K, size_K = segments.first(key_N, num), segments.count(key_N, num)
        place_K = first_K
        if self.place == "last":
            place_K = first_K + size_K - 1
        elif self.place == "action":
            place_K = torch.minimum(first_K + _after_blocks(present(span_T)[row_N], key_N, num),
                                    first_K + size_K - 1)  # fmt: skip
        row_K = row_N[place_K[size_K > 0]]
        value_K = value_T.new_zeros(num)
        value_K[size_K > 0] = value_T.detach()[row_K]
        marked_T = torch.zeros_like(mask_T)
        marked_T[row_K] = True
        if self.place == "segment":
            first_K = segments.begins(rollout_K)
            marked_T &= (present(switch_K) | first_K)[turn_T]
        elif self.place == "begin":
            first_K = segments.begins(rollout_K)
            row_K = torch.arange(num, device=rollout_K.device)
            value_K = value_K[torch.where(first_K, row_K, 0).cummax(0).values]
            marked_T &= first_K[turn_T]
        elif self.place == "next":
            value_K = torch.where(segments.ends(rollout_K), 0, value_K.roll(-1))
            marked_T = torch.zeros_like(mask_T)
        if self.origins:
            if origin_T is None:
                raise UserError("read_turn_value.origins needs origin_T")
            marked_T &= torch.isin(origin_T, origin_T.new_tensor(self.origins))
        return Result((value_K, marked_T))


def _after_blocks(span_N: Tensor, key_N: Tensor, num: int) -> Tensor:
    """Policy tokens [K] of a turn up to the end of its subgoal block, or of its switch block."""
    place_N = segments.place_in_run(key_N, num) + 1
    end_K = segments.extreme(place_N, key_N, num, (span_N & 2) > 0)
    switch_K = segments.extreme(place_N, key_N, num, (span_N & 1) > 0)
    return torch.where(end_K > 0, end_K, switch_K)
