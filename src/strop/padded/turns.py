"""Converts rows with several turns to rollouts and turns, and token values back to rows.

In `Layout` a row is a rollout of one turn. Two more layouts are here: a row is a rollout, and
`turn_ids` assign each token to a turn; or a row is one turn of a trajectory (`trajectories`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, from_padded, level_of, to_padded
from strop.padded.given import Layout
from strop.support.errors import UserError

MOST_TURNS = 2**31  # of a rollout


@dataclass(frozen=True)
class TurnsInRows(Layout):
    """Rows are rollouts; `turn_BT` names each token's turn from 0, -1 outside turns.

    Tokens outside turns belong to the next turn, as an observation does. `valid_BK`: the turns
    that exist; without it, those that some token names. num_columns: the turns [B, K] of tensors.
    """

    turn_BT: Tensor
    valid_BK: Tensor | None
    num_columns: int = 0

    def shape(self, level: str) -> tuple[int, ...]:
        return self.mask_BT.shape[:1] if level == "K" else super().shape(level)

    def axes(self, level: str) -> int:
        return 2 if level == "K" else super().axes(level)

    def batch(self, columns: Mapping[str, Tensor], kept_BT: Tensor) -> Batch:
        tokens = {name: column for name, column in columns.items() if level_of(name) != "K"}
        flat = from_padded({**tokens, "asked_T": self.turn_BT}, kept_BT)
        rollout_T, asked_T = flat["rollout_T"], flat["asked_T"]
        if bool((flat["mask_T"] & (asked_T < 0)).any()):
            raise UserError("turn_ids is -1 on a token that the mask says the policy generated")
        width = segments.count_of(self.turn_BT)
        width = max(width, self.valid_BK.shape[1] if self.valid_BK is not None else 0)
        last = asked_T.new_full((), (int(self.mask_BT.shape[0]) + 1) * (width + 1))
        key_T = torch.where(asked_T >= 0, rollout_T * width + asked_T, last)
        key_T = key_T.flip(0).cummin(0).values.flip(0)  # outside a turn: the next one
        if bool((key_T < rollout_T * width + asked_T).any()):
            raise UserError("turn_ids must not fall along a row")
        key_K = torch.unique(key_T)
        if self.valid_BK is not None:
            row_K, index_K = self.valid_BK.nonzero(as_tuple=True)
            if not bool(torch.isin(key_K, row_K * width + index_K).all()):
                raise UserError("turn_valid leaves out a turn that turn_ids names")
            key_K = torch.unique(row_K * width + index_K)
        rollout_K, index_K = key_K // max(width, 1), key_K % max(width, 1)
        whole = {name: column for name, column in flat.columns.items() if name != "asked_T"}
        for name, column in columns.items():
            if level_of(name) == "K":
                if column.shape[1] < width:
                    raise UserError(f"turn_ids names turn {width - 1}; {name[:-2]} has only "
                                    f"{column.shape[1]} turns")  # fmt: skip
                whole[name] = column[rollout_K, index_K]
        turns = {"turn_T": torch.searchsorted(key_K, key_T), "rollout_K": rollout_K}
        return Batch({**whole, **turns, "index_K": index_K})

    def back_K(self, batch: Batch, values_K: Tensor) -> Tensor:
        row_K, index_K = batch["rollout_K"], batch["index_K"]
        width = max(segments.count_of(index_K), self.num_columns)
        return values_K.new_zeros(batch.size("B"), width).index_put((row_K, index_K), values_K)


@dataclass(frozen=True)
class RowsAreTurns(Layout):
    """Rows are turns: `trajectory_R` names the rollout of each, `index_R` its turn in it."""

    trajectory_R: Tensor
    index_R: Tensor

    def shape(self, level: str) -> tuple[int, ...]:
        return self.mask_BT.shape[:1] if level == "K" else super().shape(level)

    def order(self) -> Tensor:
        """Sorts rows by trajectory, then turn."""
        by_turn = torch.argsort(self.index_R, stable=True)
        return by_turn[torch.argsort(self.trajectory_R[by_turn], stable=True)]

    def batch(self, columns: Mapping[str, Tensor], kept_BT: Tensor) -> Batch:
        order = self.order()
        placed = {n: c[order] if level_of(n) else c for n, c in columns.items()}
        flat = from_padded(placed, kept_BT[order])
        _, rollout_K = torch.unique(self.trajectory_R[order], return_inverse=True)
        first_B = rollout_K.diff(prepend=rollout_K.new_full((1,), -1)).nonzero().squeeze(1)
        whole = {n: c[first_B] if level_of(n) == "B" else c for n, c in flat.columns.items()}
        for name in (n for n in columns if level_of(n) == "B"):
            if not torch.equal(whole[name][rollout_K], placed[name]):
                raise UserError(f"{name[:-2]} differs between the turns of a trajectory: it is of "
                                "the whole one; what a turn earned is turn_rewards")  # fmt: skip
        return Batch({**whole, "rollout_K": rollout_K, "index_K": self.index_R[order]})

    def back(self, batch: Batch, values_T: Tensor) -> Tensor:
        num, width = self.mask_BT.shape
        rows = to_padded(values_T, batch["turn_T"], num, width)
        return torch.empty_like(rows).index_copy(0, self.order(), rows)

    def back_B(self, batch: Batch, values_B: Tensor) -> Tensor:
        return self.back_K(batch, values_B[batch["rollout_K"]])

    def back_K(self, batch: Batch, values_K: Tensor) -> Tensor:
        return torch.empty_like(values_K).index_copy(0, self.order(), values_K)


def _turns_that_end(end_BT: Tensor, turn_ids: Tensor | None) -> Tensor:
    """Finds each token's turn from the ends of turns; tokens after the last are one more turn.

    Raises UserError where `turn_ids`, given too, has other ends.
    """
    if end_BT.dim() != 2:
        raise UserError(f"turn_end must be [B, T]; it is {list(end_BT.shape)}")
    if turn_ids is None:
        return end_BT.long().cumsum(1) - end_BT.long()
    given_BT = turn_ids
    if given_BT.shape != end_BT.shape:
        raise UserError(f"turn_end must be {list(given_BT.shape)} like turn_ids")
    inside_BT = given_BT >= 0
    before_BT, after_BT = given_BT[:, :-1], given_BT[:, 1:]
    splits = end_BT[:, :-1] & inside_BT[:, :-1] & (before_BT == after_BT)
    if bool((end_BT & ~inside_BT).any() | splits.any()):
        raise UserError("turn_end ends a turn of turn_ids before its last token")
    return given_BT


def layout_of(
    mask_BT: Tensor | None, given: Mapping[str, Tensor]
) -> tuple[Layout, dict[str, Tensor]]:
    """Finds the layout of the rows, and the remaining tensors, which are columns.

    Without a mask: one token per turn where `turn_rewards` or `turn_updates` is [B, K], else one
    per row.
    Raises UserError for tensors of the wrong shape.
    """
    rest = dict(given)
    trajectories, index = rest.pop("trajectories", None), rest.pop("turn_index", None)
    turn_ids, turn_end = rest.pop("turn_ids", None), rest.pop("turn_end", None)
    valid, turns = rest.pop("turn_valid", None), rest.get("turn_rewards", rest.get("turn_updates"))
    if turn_end is not None:
        turn_ids = _turns_that_end(turn_end, turn_ids)
    if mask_BT is None and trajectories is None and turns is not None and turns.dim() == 2:
        mask_BT = torch.ones_like(turns, dtype=torch.bool) if valid is None else valid
        turn_ids = torch.arange(turns.shape[1], device=turns.device).expand(turns.shape)
        valid = mask_BT
    if mask_BT is None:
        mask_BT = _one_a_row(trajectories, rest)
    if trajectories is not None:
        _check_shape("trajectories", trajectories, mask_BT, 1)
        trajectories = trajectories.to(mask_BT.device)
        index = rest.pop("steps", None) if index is None else index
        index = _in_order_of_rows(trajectories) if index is None else index.to(mask_BT.device)
        _check_shape("turn_index", index, mask_BT, 1)
        _check_once(trajectories[mask_BT.any(1)], index[mask_BT.any(1)])
        return RowsAreTurns(mask_BT, trajectories, index), rest
    if turn_ids is None:
        return Layout(mask_BT), rest
    _check_shape("turn_ids", turn_ids, mask_BT, 2)
    if turn_ids.numel() and not -1 <= int(turn_ids.min()) <= int(turn_ids.max()) < MOST_TURNS:
        raise UserError(f"turn_ids must lie from -1 to {MOST_TURNS - 1}")
    if valid is not None and (valid.dim() != 2 or valid.shape[0] != mask_BT.shape[0]):
        raise UserError(f"turn_valid must be [{mask_BT.shape[0]}, K]; it is {list(valid.shape)}")
    valid = None if valid is None else valid.to(mask_BT.device)
    widths = [each.shape[1] for each in (valid, turns) if each is not None and each.dim() == 2]
    return TurnsInRows(mask_BT, turn_ids.to(mask_BT.device), valid, max(widths, default=0)), rest


def _in_order_of_rows(trajectory_R: Tensor) -> Tensor:
    """Numbers the turns of each trajectory from 0, in the order of its rows."""
    _, rollout_R = torch.unique(trajectory_R, return_inverse=True)
    return segments.order_within(rollout_R, segments.count_of(rollout_R))


def _check_once(trajectory_R: Tensor, turn_R: Tensor) -> None:
    """Raise UserError where two rows are the same turn of a trajectory."""
    pairs, num = torch.stack([trajectory_R, turn_R], 1).unique(dim=0, return_counts=True)
    if bool((num > 1).any()):
        trajectory, turn = pairs[num > 1][0].tolist()
        raise UserError(f"turn_index has turn {turn} of trajectory {trajectory} twice")


def _one_a_row(trajectories: Tensor | None, given: Mapping[str, Tensor]) -> Tensor:
    """Makes a mask [B, 1] with one row for each row of trajectories, groups or players."""
    rows = trajectories
    for name in ("groups", "players"):
        rows = given.get(name) if rows is None else rows
    if rows is None:
        raise UserError("give mask [B, T], or groups [B]: nothing says how many rows there are")
    if rows.dim() != 1:
        raise UserError(f"what stands for the rows must be [B]; it is {list(rows.shape)}")
    return torch.ones_like(rows, dtype=torch.bool)[:, None]


def _check_shape(name: str, tensor: Tensor, mask_BT: Tensor, axes: int) -> None:
    wanted = mask_BT.shape[:axes]
    if tensor.shape != wanted:
        raise UserError(f"{name} must be {list(wanted)} like the mask; it is {list(tensor.shape)}")
