"""Hold the share of replayed groups in a step at a given value."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import REPLAY
from strop.method.part import Curated, Result, require
from strop.method.schedule import Schedule


@dataclass(frozen=True)
class KeepShareOfReplayed:
    """A given share of a step's groups is replayed, drawn at random from the available ones.

        kept: all fresh groups, and of the replayed ones round(share / (1 - share) * fresh)

    Metric: replay/share (replayed groups / groups kept).

    Reads: origin_T, group_T [T] int, group_B [B] int, num_groups int; rng.   Writes: rows to keep.
    Source: arXiv 2507.06892 (a mini-batch row is historical with probability p).
    Differs from the source: whole groups, and their number is not random.
    Nearest part: replay_rollouts, which brings the stored rollouts in.
    Edges: too few replayed groups -> all of them; share 0 -> none; no fresh group -> none.
    """

    # Share of the groups that are replayed; may change over the run. Default: paper (0.4).
    share: float | Schedule = 0.4

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=0.99)

    def __call__(
        self,
        origin_T: Tensor,
        group_T: Tensor,
        group_B: Tensor,
        rng: torch.Generator,
        num_groups: int,
    ) -> Result:
        assert not isinstance(self.share, Schedule), "schedules become numbers before a step"
        replayed_P = segments.count(group_T, num_groups, origin_T == REPLAY) > 0
        fresh = int((~replayed_P).sum())
        wanted = round(self.share / (1 - self.share) * fresh)
        rows = replayed_P.nonzero().squeeze(1)
        keep_P = ~replayed_P
        keep_P[rows[torch.randperm(rows.shape[0], generator=rng)[:wanted]]] = True
        share = float((keep_P & replayed_P).sum() / keep_P.sum().clamp(min=1))
        return Result(Curated(keep_P[group_B], "replayed"), metrics={"replay/share": share})
