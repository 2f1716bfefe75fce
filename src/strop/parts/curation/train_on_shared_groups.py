"""Runs share their answers: each learns from some of its own groups and some of others'."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Result, require
from strop.method.services import Grading, Sampling, Texts
from strop.parts.curation._demonstrations import demonstration_rows, graded_rows
from strop.parts.curation._shared_groups import (
    Shared,
    fits,
    groups_of,
    ids_of,
    number_of,
    of_others,
    share,
)
from strop.support.errors import UserError

FOREIGN = 1 << 40  # draw_P of groups that others drew


@dataclass(frozen=True)
class TrainOnSharedGroups:
    """Several runs learn from one another's answers, whatever models they train.

        share: the step's prompts and the texts of their answers, in `folder`, under the name `node`
        candidates: groups that others have shared since the last step, of prompts of this run's
            data, with as many answers as its own and, by its own rewards, of different outcome
        train on `foreign` candidates and `own` of the step's groups, both at random; further own
            groups take the place of missing candidates

    This run's tokenizer encodes the texts, with its stop token where an answer ended; the
    log-probabilities of the policy that drew them are unknown (NaN), and losses treat them as the
    policy's own.
    Metrics: shared/nodes, /groups (found), /live (candidates), /taken, /unreadable (files).

    Reads: batch, group_B [B] int, truncated_B [B] bool; texts, grading, sampling, state, rng.
    Writes: rows to keep and to add.
    Source: arXiv 2509.08721; code gensyn-ai/rl-swarm, gensyn-ai/genrl.
    Differs from the source: only the newest step of each run is available, and read once; own
    groups replace missing foreign ones.
    Nearest part: replace_failed_with_demonstrations, whose answers are in the data.
    Edges: no folder -> the batch is unchanged; an answer over the token limit -> its group is no
    candidate; prompt columns that samplers wrote are copied from the step's first prompt; a restart
    reads no file twice.
    """

    # Folder that all runs see; empty: nothing is shared. Default: ours (there is no other run).
    folder: str = ""
    # Name of this run there, different from all others. Default: ours (none; a folder needs one).
    node: str = ""
    # Own groups of a step that are trained on. Default: paper (4 of 8).
    own: int = 4
    # Groups of others. Default: paper (4 of 8).
    foreign: int = 4

    def __post_init__(self) -> None:
        require(self, "own", "foreign", low=0)
        if self.folder and not re.fullmatch(r"[\w-]+", self.node):
            raise UserError(
                f"train_on_shared_groups.node must consist of letters, digits, - and _, it is "
                f"{self.node!r}: give each run that shares the folder a name of its own"
            )

    @property
    def facts(self) -> frozenset[str]:
        """Nothing plays others' answers in an environment."""
        return frozenset({"grades_one_answer"} if self.folder else ())

    @property
    def looks_outside(self) -> bool:
        """Whether the result depends on other runs."""
        return bool(self.folder)

    def init(self) -> dict[str, Any]:
        """The initial state: no file was read."""
        return {"read": {}}

    def __call__(
        self, batch: Batch, group_B: Tensor, truncated_B: Tensor, texts: Texts, grading: Grading,
        sampling: Sampling, state: dict[str, Any], rng: torch.Generator,
    ) -> Result:  # fmt: skip
        every_B = torch.ones_like(truncated_B)
        if not self.folder or not batch.size("P"):
            return Result(Curated(every_B, "not_drawn"), state)
        folder, num = Path(self.folder), batch.size("P")
        share(folder, self.node, int(batch["step"]), groups_of(batch, texts, self.node))
        found, read, broken = of_others(folder, self.node, state["read"])
        size = int(segments.count(group_B, num).max())
        usable = [each for each in found if fits(each, size, texts, sampling)]
        rows = graded_rows(_rows(batch, usable, texts, sampling), grading) if usable else None
        live = _live(rows) if rows is not None else torch.zeros(0, dtype=torch.int64)
        chosen = live[torch.randperm(len(live), generator=rng)][: self.foreign]
        wanted = self.own + self.foreign - len(chosen)
        own = torch.randperm(num, generator=rng)[:wanted]
        keep_B = torch.isin(group_B, own)
        metrics = {
            "shared/nodes": float(len(read)),
            "shared/groups": float(len(found)),
            "shared/live": float(len(live)),
            "shared/taken": float(len(chosen)),
            "shared/unreadable": float(broken),
        }
        add = rows.keep(torch.isin(rows["group_B"], chosen)) if rows is not None else None
        return Result(Curated(keep_B, "not_drawn", add=add), {"read": read}, metrics)


def _rows(batch: Batch, groups: list[Shared], texts: Texts, sampling: Sampling) -> Batch:
    """The groups as rollouts with the columns of the batch, in their order."""
    members = [(place, answer) for place, g in enumerate(groups) for answer in g.answers]
    uids = [groups[place].uid for place, _ in members]
    rows = demonstration_rows(
        batch,
        torch.zeros(len(members), dtype=torch.int64),
        [texts.prompt_ids(uid) for uid in uids],
        [ids_of(answer, texts, sampling) for _, answer in members],
    )
    names = [f"{groups[p].node}/{groups[p].step}/{p}/{n}" for n, (p, _) in enumerate(members)]
    changed = {
        "uid_P": torch.tensor(uids),
        "draw_P": torch.tensor([FOREIGN + place for place, _ in members]),
        "rollout_uid_B": torch.tensor([-1 - number_of(name) for name in names]),
        "truncated_B": torch.tensor([not ended for _, (_, ended) in members]),
    }
    rows = rows.set(**{name: value for name, value in changed.items() if name in rows.columns})
    row = torch.arange(len(members))
    return rows.take(row[:1]).join(rows.take(row[1:]))  # the join makes equal (uid, draw) one group


def _live(rows: Batch) -> Tensor:
    """Groups whose outcomes differ."""
    keys = rows["group_B"], rows.size("P"), rows["scored_B"]
    return segments.differ(rows["outcome_B"], *keys).nonzero().squeeze(1)
