"""The rollouts of a step as four aligned tables without padding.

    token [T]  ->  turn [K]  ->  rollout [B]  ->  prompt group [P]

Each row of a table points at its parent in the next one (`turn_T`, `rollout_K`, `group_B`); the
tokens of a rollout lie together, in order, and so do its turns. A column's suffix names its table;
a column without a suffix is one number per run. Column t describes token t: `logp_T[t]` is the
log-probability of token t given everything before it in its sequence.

Below it is the one place that converts between these tables and padded tensors [rollouts,
positions], filled on the right. Everything is indexing, so gradient flows through and nothing loops
over rollouts.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor

from strop.batch import segments
from strop.support.devices import to_device

LEVELS = {"T": "token", "K": "turn", "B": "rollout", "P": "prompt group"}
SizeName = Literal["num_turns", "num_rollouts", "num_groups"]
SIZED_BY = {"T": "turn_T", "K": "rollout_K", "B": "group_B", "P": "uid_P"}
# The tables whose sizes parts read under these names: ints, known without a wait for the device.
SIZES = {"num_turns": "K", "num_rollouts": "B", "num_groups": "P"}
# The kept sets of tokens (`strop.batch.kept`): where a token's ids begin, how many, and all ids.
KEPT_AT, NUM_KEPT, KEPT_IDS = "kept_at_T", "num_kept_T", "kept_ids"
EXPERTS = "experts_behavior_T"  # void where no engine that reports them drew the rollout
DERIVED = ("rollout_T", "group_T", "group_K", "length_B", "size_B", "index_B", *SIZES)


@functools.cache
def level_of(name: str) -> str:
    """The letter of the table that a column belongs to; empty for one value per run.

    `reward_BM` -> "B", `logq_TV` -> "T", `step` -> "".
    """
    suffix = name.rpartition("_")[2] if "_" in name else ""
    return suffix[0] if suffix in ("T", "K", "B", "P", "BM", "TV", "PL") else ""


@dataclass(frozen=True, eq=False)
class Batch:
    """The columns by name. Methods return new batches; nothing is changed in place.

    Raises ValueError when a column's length does not fit its table or parents are out of order.
    """

    columns: Mapping[str, Tensor]
    _derived: dict[str, Tensor] = field(default_factory=dict, repr=False)
    _in_order: bool = field(default=False, repr=False)  # rows are known to lie together

    def __post_init__(self) -> None:
        missing = [name for name in SIZED_BY.values() if name not in self.columns]
        if missing:
            raise ValueError(f"a batch needs the columns {', '.join(missing)}")
        size_of = {level: self.size(level) for level in SIZED_BY}
        for name, column in self.columns.items():
            level = level_of(name)
            if level and (column.dim() == 0 or column.shape[0] != size_of[level]):
                raise ValueError(
                    f"column {name} has shape {tuple(column.shape)}, "
                    f"its table has {size_of[level]} rows"
                )
        for name in () if self._in_order else ("turn_T", "rollout_K"):
            parent = self.columns[name]
            if bool((parent[1:] < parent[:-1]).any()):
                raise ValueError(f"column {name} is not in order: rows of a rollout lie together")

    def size(self, level: str) -> int:
        """Rows of a table: `level` is T, K, B or P."""
        return self.columns[SIZED_BY[level]].shape[0]

    def __contains__(self, name: str) -> bool:
        return name in self.columns or name in DERIVED

    @overload
    def __getitem__(self, name: SizeName) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, name: str) -> Tensor: ...
    def __getitem__(self, name: str) -> Tensor | int:
        if name in SIZES:
            return self.size(SIZES[name])
        if name in self.columns:
            return self.columns[name]
        if name not in self._derived:
            self._derived[name] = self._derive(name)
        return self._derived[name]

    def _derive(self, name: str) -> Tensor:
        if name == "rollout_T":
            return self["rollout_K"][self["turn_T"]]
        if name == "group_T":
            return self["group_B"][self["rollout_T"]]
        if name == "group_K":
            return self["group_B"][self["rollout_K"]]
        if name == "size_B":
            edges = torch.arange(self.size("K") + 1, device=self["turn_T"].device)
            size_K = torch.searchsorted(self["turn_T"], edges).diff()
            return segments.total(size_K, self["rollout_K"], self.size("B"))
        if name == "length_B":
            return segments.count(self["rollout_T"], self.size("B"), self["mask_T"])
        if name == "index_B":
            return torch.arange(self.size("B"), device=self["group_B"].device)
        raise KeyError(f"no column {name}; there are {', '.join(sorted(self.columns))}")

    def contexts(self) -> tuple[Tensor, int]:
        """The context [T] of each token, counted from 0 in order, and the number of contexts.

        A rollout is one context, unless `sequence_T` says where in it new ones begin.
        """
        if "sequence_T" not in self.columns:
            return self["rollout_T"], self.size("B")
        return segments.key_of(self["rollout_T"], self["sequence_T"])

    def set(self, **columns: Tensor) -> "Batch":
        """The same tables with columns added or replaced."""
        structural = {"turn_T", "rollout_K", "group_B", "mask_T"} & columns.keys()
        if structural:
            unordered = {"turn_T", "rollout_K"} & columns.keys()
            return Batch({**self.columns, **columns}, _in_order=not unordered)
        return Batch({**self.columns, **columns}, dict(self._derived), _in_order=True)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device; itself if it is already there."""
        if all(column.device == torch.device(device) for column in self.columns.values()):
            return self
        moved = {
            name: to_device(column, torch.device(device)) for name, column in self.columns.items()
        }
        return Batch(moved, _in_order=True)

    def keep(self, rollouts_B: Tensor) -> "Batch":
        """Only the rollouts where `rollouts_B` [B] bool is true; parents are renumbered."""
        return self.take(rollouts_B.nonzero().squeeze(1))

    def take(self, index_B: Tensor) -> "Batch":
        """The rollouts `index_B` in that order, each as often as it is listed.

        Groups and forks are renumbered: a `parent_B` that is not taken becomes -1, groups without
        a rollout vanish.
        """
        group_kept, group_B = torch.unique(self["group_B"][index_B], return_inverse=True)
        index_K = segments.rows_of(self["rollout_K"], index_B, self.size("B"))
        index_T = segments.rows_of(self["rollout_T"], index_B, self.size("B"))
        row_B = torch.arange(index_B.shape[0], device=index_B.device)
        new_B = torch.full((self.size("B") + 1,), -1, device=index_B.device)
        new_B[index_B] = row_B
        turns_B = torch.bincount(self["rollout_K"], minlength=self.size("B"))
        taken_B = turns_B[index_B]
        # How far the first turn of each taken rollout moves.
        shift_B = (taken_B.cumsum(0) - taken_B) - (turns_B.cumsum(0) - turns_B)[index_B]
        index = {"T": index_T, "K": index_K, "B": index_B, "P": group_kept}
        columns = {
            name: segments.at(column, index[level]) if (level := level_of(name)) else column
            for name, column in self.columns.items()
        }
        tokens_B = self["size_B"][index_B]
        columns["turn_T"] = columns["turn_T"] + segments.spread(shift_B, tokens_B)
        columns["rollout_K"] = segments.spread(row_B, taken_B)
        columns["group_B"] = group_B
        if "parent_B" in columns:
            columns["parent_B"] = new_B[columns["parent_B"]]
        return Batch(columns, _in_order=True)

    def narrow(self, rows_T: Tensor) -> "Batch":
        """Only the tokens where `rows_T` [T] bool is true; the other tables stay as they are."""
        row_M = segments.rows_where(rows_T)
        columns = {
            name: segments.at(column, row_M) if level_of(name) == "T" else column
            for name, column in self.columns.items()
        }
        return Batch(columns, _in_order=True)

    def join(self, other: "Batch") -> "Batch":
        """Both batches' rollouts; groups with equal `(uid_P, draw_P)` become one group.

        Raises ValueError when the two have different columns.
        """
        if (KEPT_IDS in self.columns) != (KEPT_IDS in other.columns):
            return self._with_sets().join(other._with_sets())
        self, other = self._with_void(other), other._with_void(self)
        if self.columns.keys() != other.columns.keys():
            odd = sorted(self.columns.keys() ^ other.columns.keys())
            raise ValueError(f"cannot join batches: {', '.join(odd)} stands in one of them only")
        columns = {
            name: torch.cat([column, other[name]]) if level_of(name) else column
            for name, column in self.columns.items()
        }
        for name, parent in (("turn_T", "K"), ("rollout_K", "B"), ("parent_B", "B")):
            if name in columns:
                shifted = other[name] + self.size(parent)
                shifted = torch.where(other[name] < 0, other[name], shifted)
                columns[name] = torch.cat([self[name], shifted])
        columns["group_B"] = torch.cat([self["group_B"], other["group_B"] + self.size("P")])
        if KEPT_IDS in columns:
            columns[KEPT_IDS] = torch.cat([self[KEPT_IDS], other[KEPT_IDS]])
            columns[KEPT_AT] = torch.cat([self[KEPT_AT], other[KEPT_AT] + len(self[KEPT_IDS])])
        return Batch(columns, _in_order=True)._merge_groups()

    def _with_sets(self) -> "Batch":
        """The batch with columns of kept sets; if it had none, all sets are unknown."""
        if KEPT_IDS in self.columns:
            return self
        none_T = torch.where(self["mask_T"], -1, 0)
        ids = none_T.new_empty(0, dtype=torch.int32)
        return self.set(**{KEPT_AT: torch.zeros_like(none_T), NUM_KEPT: none_T, KEPT_IDS: ids})

    def _with_void(self, other: "Batch") -> "Batch":
        """This batch with unknown experts, if only the other batch has the column of experts."""
        if EXPERTS not in other.columns or EXPERTS in self.columns:
            return self
        theirs = other.columns[EXPERTS]
        return self.set(**{EXPERTS: theirs.new_full((self.size("T"), theirs.shape[1]), -1)})

    def _merge_groups(self) -> "Batch":
        """Make groups with equal (uid_P, draw_P) one; the first one's columns stay."""
        keys = torch.stack([self["uid_P"], self["draw_P"]], dim=1)
        unique, inverse_P = torch.unique(keys, dim=0, return_inverse=True)
        first = segments.first(inverse_P, unique.shape[0])
        order = torch.argsort(first)  # keep the order of first appearance
        columns = {
            name: column[first[order]] if level_of(name) == "P" else column
            for name, column in self.columns.items()
        }
        columns["group_B"] = torch.argsort(order)[inverse_P[self["group_B"]]]
        return Batch(columns, _in_order=True)

    def split(self, token_budget: int, pass_tokens: int = 0) -> list[Tensor]:
        """Rollout indices of micro-batches whose padded contexts stay within `token_budget` tokens.

        Rollouts of similar length go together, in micro-batches with the fewest places in total,
        where each micro-batch costs `pass_tokens` further places (0: as few micro-batches as the
        budget allows). A rollout longer than the budget gets its own micro-batch. Raises ValueError
        when the budget is below 1.
        """
        if token_budget < 1:
            raise ValueError(f"token_budget must be at least 1, it is {token_budget}")
        widths_B, rows_B = self.padded()
        order = torch.argsort(widths_B, stable=True)
        widths, rows = widths_B[order].cpu().numpy(), rows_B[order].cpu().numpy()
        before = np.concatenate([[0], rows.cumsum()])  # rows before each rollout
        fixed = pass_tokens or int(before[-1] * widths[-1:].sum()) + 1
        sizes = np.diff(_cuts(widths, before, token_budget, fixed)).tolist()
        return list(torch.split(order, sizes)) if sizes else []

    def padded(self) -> tuple[Tensor, Tensor]:
        """Tokens of each rollout's longest context, and its number of contexts, [B] both."""
        if "sequence_T" not in self.columns:
            return self["size_B"], torch.ones_like(self["size_B"])
        key_T, num = self.contexts()
        rollout_N = self["rollout_T"][segments.first(key_T, num)]
        size_N = segments.count(key_T, num)
        longest_B = segments.extreme(size_N, rollout_N, self.size("B"), largest=True)
        return longest_B, segments.count(rollout_N, self.size("B"))


NEVER = np.iinfo(np.int64).max


def _cuts(widths: np.ndarray, before: np.ndarray, budget: int, fixed: int) -> list[int]:
    """Where passes over rollouts of rising `widths` end, from 0, with the fewest places.

    A pass ends after all rollouts of a width, or takes as many as the budget allows: one more of
    the same width would only be cheaper in it than in the next.
    """
    num = len(widths)
    changes = np.append(np.flatnonzero(np.diff(widths)) + 1, num)
    cost, came = np.full(num + 1, NEVER), np.zeros(num + 1, dtype=np.int64)
    cost[0] = 0
    for start in range(num):
        if cost[start] == NEVER:  # no pass ends here
            continue
        places = widths[start:] * (before[start + 1 :] - before[start])
        most = start + max(int(np.searchsorted(places, budget, side="right")), 1)
        ends = np.append(changes[(changes > start) & (changes < most)], most)
        new = cost[start] + fixed + places[ends - start - 1]
        better = ends[new < cost[ends]]
        cost[better], came[better] = new[new < cost[ends]], start
    found = [num]
    while found[-1]:
        found.append(int(came[found[-1]]))
    return found[::-1]


def concatenate(batches: Iterable[Batch]) -> Batch:
    """All batches joined, in order. Raises ValueError when there is none."""
    found = list(batches)
    if not found:
        raise ValueError("there is no batch to concatenate")
    while len(found) > 1:  # neighbours first: one after another would copy the first one each time
        last = found[len(found) // 2 * 2 :]
        pairs = zip(found[::2], found[1::2], strict=False)
        found = [*(one.join(other) for one, other in pairs), *last]
    return found[0]


def turn_columns(turns: Iterable[tuple[Sequence[int], Sequence[int]]]) -> dict[str, Tensor]:
    """turn_T, id_T and mask_T of turns, each the tokens that it was given and the policy's own."""
    turns = list(turns)
    given_K = torch.tensor([len(given) for given, _ in turns], dtype=torch.int64)
    own_K = torch.tensor([len(own) for _, own in turns], dtype=torch.int64)
    turn_T = torch.arange(len(turns)).repeat_interleave(given_K + own_K)
    mask_T = segments.place_in_run(turn_T, len(turns)) >= given_K[turn_T]
    ids = list(chain.from_iterable(chain(*turn) for turn in turns))
    return {"turn_T": turn_T, "id_T": torch.tensor(ids, dtype=torch.int64), "mask_T": mask_T}


def to_padded(
    values_T: Tensor, rollout_T: Tensor, num: int, width: int | None = None, fill: float = 0
) -> Tensor:
    """`values_T` [T, ...] as rows [num, width, ...], padded with `fill` on the right.

    width: default the longest rollout. Raises ValueError when a rollout does not fit into it.
    """
    position_T = segments.place_in_run(rollout_T, num)
    longest = segments.count_of(position_T)
    if width is not None and width < longest:
        raise ValueError(f"a rollout of {longest} tokens does not fit into {width} positions")
    shape = (num, longest if width is None else width, *values_T.shape[1:])
    return values_T.new_full(shape, fill).index_put((rollout_T, position_T), values_T)


def from_padded(columns: Mapping[str, Tensor], mask_BL: Tensor) -> Batch:
    """A batch from padded columns; each row is a rollout of one turn, cut after its last mask.

    columns: named as in the batch; token columns are [B, L, ...], the others as they are. Without
    `group_B` each rollout is its own group. Float values outside the mask become 0, so whatever
    stands there does not matter. Raises ValueError when a column's shape does not fit the mask.
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
