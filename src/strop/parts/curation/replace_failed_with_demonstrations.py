"""Where the policy does not solve a prompt itself, show it the given answer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Result, require
from strop.method.services import Grading, Texts
from strop.parts.curation._demonstrations import demonstration_rows, graded_rows


@dataclass(frozen=True)
class ReplaceFailedWithDemonstrations:
    """A prompt's rollouts teach if enough of them are right; else its demonstration teaches.

        c = scored rollouts of the group with outcome >= success
        c <= gate: the group's rollouts leave, one rollout of origin 2 (demonstration) comes in
        c > gate:  the group stays as it is
        replaces off: the group's rollouts stay beside the demonstration

    The demonstration is the text in `column` of the prompt's row of the training data. It is graded
    like a rollout; log-probabilities that an engine would report are void (NaN).
    Metrics: demonstrations/prompts (groups replaced), /missing (failed without a demonstration).

    Reads: outcome_B [B] float, group_B [B] int, scored_B [B] bool; batch, texts (the rows of
    the data, their tokens), grading.   Writes: rows to keep, rows to add.
    Source: arXiv 2509.04419 (the per-prompt gate); both kinds in a group: arXiv 2504.14945.
    Differs from the source: a prompt whose row has no completion stays as it is.
    Nearest part: drop_uniform_groups, which drops such prompts.
    Edges: no scored rollout -> stays; gate -1 -> nothing is replaced; data without the column, or
    an answer over the token limit -> UserError. No state lasts between steps.
    """

    # Most right answers with which a prompt still counts as failed. Default: paper (0).
    gate: int = 0
    # Outcome from which an answer is right. Default: paper (1, of rewards in {0, 1}).
    success: float = 1.0
    # Whether the rollouts leave. Default: paper (yes).
    replaces: bool = True
    # Column of the data with the answer. Default: ours (as in supervised fine-tuning).
    column: str = "completion"

    def __post_init__(self) -> None:
        require(self, "gate", low=-1)
        require(self, "success")

    @property
    def facts(self) -> frozenset[str]:
        """Nothing plays a given answer in an environment."""
        return frozenset({"grades_one_answer"} if self.gate != -1 else ())

    def __call__(
        self,
        batch: Batch,
        outcome_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        texts: Texts,
        grading: Grading,
    ) -> Result:
        num = batch.size("P")
        right_P = segments.count(group_B, num, scored_B & (outcome_B >= self.success))
        failed_P = (segments.count(group_B, num, scored_B) > 0) & (right_P <= self.gate)
        failed = failed_P.nonzero().squeeze(1).tolist()
        uids = batch["uid_P"].tolist()
        answers = {p: ids for p in failed if (ids := texts.answer_ids(uids[p], self.column))}
        metrics = {
            "demonstrations/prompts": float(len(answers)),
            "demonstrations/missing": float(len(failed) - len(answers)),
        }
        groups = torch.tensor(list(answers), dtype=torch.int64)
        keep_B = ~torch.isin(group_B, groups) | (not self.replaces)
        if not answers:
            return Result(Curated(keep_B, "failed_prompt"), metrics=metrics)
        prompts = [texts.prompt_ids(uids[p]) for p in answers]
        given = list(answers.values())
        rows = demonstration_rows(batch, groups, prompts, given, self.column)
        add = graded_rows(rows, grading)
        return Result(Curated(keep_B, "failed_prompt", add=add), metrics=metrics)
