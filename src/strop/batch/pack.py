"""The one place that converts between flat tables and padded tensors [rollouts, positions].

Flat columns lie rollout after rollout without padding; padded rows are filled on the right.
Everything is indexing, so gradient flows through and nothing loops over rollouts.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, level_of


def position_of(rollout_T: Tensor, num: int) -> Tensor:
    """Position [T] of every token in its rollout, from 0; `rollout_T` is sorted."""
    row_T = torch.arange(rollout_T.shape[0], device=rollout_T.device)
    return row_T - segments.first(rollout_T, num)[rollout_T]


def to_padded(
    values_T: Tensor, rollout_T: Tensor, num: int, width: int | None = None, fill: float = 0
) -> Tensor:
    """`values_T` [T, ...] as rows [num, width, ...]; `fill` right of each rollout's last token.

    width: default the longest rollout. Raises ValueError when a rollout does not fit into it.
    """
    position_T = position_of(rollout_T, num)
    longest = segments.count_of(position_T)
    if width is not None and width < longest:
        raise ValueError(f"a rollout of {longest} tokens does not fit into {width} positions")
    shape = (num, longest if width is None else width, *values_T.shape[1:])
    return values_T.new_full(shape, fill).index_put((rollout_T, position_T), values_T)


def pad_rollouts(
    batch: Batch, index_B: Tensor | None = None, fill: int = 0
) -> tuple[Tensor, Tensor]:
    """Token ids and validity [rollouts, longest of them] of the rollouts `index_B`, in order.

    index_B: default all of the batch.

    `values_BL[valid_BL]` is flat again; its tokens are the rows
    `segments.rows_of(batch["rollout_T"], index_B, batch.size("B"))` of the token table.
    """
    index_B = batch["index_B"] if index_B is None else index_B
    row_T = segments.rows_of(batch["rollout_T"], index_B, batch.size("B"))
    new_B = torch.arange(index_B.shape[0], device=index_B.device)
    rollout_T = torch.repeat_interleave(new_B, batch["size_B"][index_B])
    ids_BL = to_padded(batch["id_T"][row_T], rollout_T, index_B.shape[0], fill=fill)
    ones_T = torch.ones_like(rollout_T, dtype=torch.bool)
    return ids_BL, to_padded(ones_T, rollout_T, index_B.shape[0])


def from_padded(columns: Mapping[str, Tensor], mask_BL: Tensor) -> Batch:
    """A batch from padded columns; each row is a rollout of one turn, cut after its last mask.

    columns: named as in the batch; token columns are [B, L, ...], the others as they are. Without
    `group_B` each rollout is its own group. Float values outside the mask become 0, so nothing
    that stands there matters. Raises ValueError when a column's shape does not fit the mask.
    """
    mask_BL = mask_BL.bool()
    num, device = mask_BL.shape[0], mask_BL.device
    valid_BL = mask_BL.flip(1).cumsum(1).flip(1) > 0
    mask_T = mask_BL[valid_BL]
    row_B = torch.arange(num, device=device)
    flat = {"turn_T": row_B[:, None].expand_as(mask_BL)[valid_BL], "mask_T": mask_T}
    for name, column in columns.items():
        if level_of(name) != "T":
            flat[name] = column
            continue
        if column.shape[:2] != mask_BL.shape:
            raise ValueError(
                f"column {name} has shape {tuple(column.shape)}, the mask {tuple(mask_BL.shape)}"
            )
        values_T = column[valid_BL]
        if values_T.is_floating_point():
            inside_T = mask_T.reshape(-1, *[1] * (values_T.dim() - 1))
            values_T = torch.where(inside_T, values_T, values_T.new_zeros(()))
        flat[name] = values_T
    flat.setdefault("group_B", row_B)
    uid_P = torch.arange(segments.count_of(flat["group_B"]), device=device)
    tables = {"rollout_K": row_B, "index_K": torch.zeros_like(row_B)}
    return Batch({**tables, "uid_P": uid_P, "draw_P": torch.zeros_like(uid_P), **flat})
