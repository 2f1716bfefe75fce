"""Sample unsolved prompts again, after similar prompts with their solutions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Draw, Result, require
from strop.method.services import Sampling, Scoring, Texts
from strop.support.errors import UserError

Stored = dict[int, tuple[int, ...]]  # uid -> the tokens of its newest right answer


@dataclass(frozen=True)
class AskWithSolvedExamples:
    """A group without a success gets rollouts that were drawn with solved examples in context.

        a group whose scored outcomes are all below `success` gets num_asked more rollouts, drawn
        after num_examples examples: prompt, right answer, a line break
        examples: of other prompts with a stored right answer, the nearest last, by the cosine of
        the means of the policy's input embeddings over the prompts' tokens
        store <- every prompt's newest right answer that was given without examples, the shortest
        of a step's

    Seeded rollouts are trained on with the examples that they were drawn after. Metrics:
    seeded/groups (sampled again), /solved (those with a success afterwards), /stored (answers).

    Reads: batch, outcome_B [B] float, group_B [B] int, scored_B [B] bool; texts, sampling, scoring,
    state.   Writes: all rows; requests draws.
    Source: arXiv 2510.06672 (seeding with examples), from reviews and summaries.
    Differs from the source: embeddings of another model there; the rest was not found.
    Nearest part: bring_back_opposites, which shows the prompt's own wrong answer.
    Edges: no example, or no room for one -> sampled without; a long answer is cut; episodes ->
    UserError; the store, by uid, is in the checkpoint.
    """

    # Examples of a prompt. Default: paper (2).
    num_examples: int = 2
    # Extra rollouts of a prompt without success. Default: ours (not stated there).
    num_asked: int = 4
    # Outcome from which a rollout is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0
    # Tokens of an answer that are shown. Default: ours (256).
    shown: int = 256
    # Prompts whose answers are stored; those solved longest ago leave. Default: ours (4096).
    capacity: int = 4096

    def __post_init__(self) -> None:
        require(self, "num_examples", "num_asked", "shown", "capacity", low=1)
        require(self, "success")

    def init(self) -> dict[str, Any]:
        """The initial state: an empty store, and no group was sampled again."""
        return {"answers": {}, "asked": (), "done": False}

    def __call__(
        self, batch: Batch, outcome_B: Tensor, group_B: Tensor, scored_B: Tensor, texts: Texts,
        sampling: Sampling, scoring: Scoring, state: dict[str, Any],
    ) -> Result:  # fmt: skip
        if "valid_K" in batch:
            raise UserError(
                "ask_with_solved_examples puts examples before prompts, which the episodes of an "
                "environment do not support: leave it out"
            )
        num, everything_B = batch.size("P"), torch.ones_like(scored_B)
        right_B = scored_B & (outcome_B >= self.success)
        right = (segments.count(group_B, num, right_B) > 0).tolist()
        groups = list(zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True))
        if not state["done"]:
            scored = (segments.count(group_B, num, scored_B) > 0).tolist()
            stored = self._stored(state["answers"], batch, right_B, texts)
            rows = zip(groups, right, scored, strict=True)
            failed = [group for group, solved, known in rows if known and not solved]
            finder = Nearest(stored, texts, scoring) if failed and stored else None
            ask = tuple(self._draw(group, finder, texts, sampling) for group in failed)
            new = {"answers": stored, "asked": tuple(failed), "done": bool(ask)}
            if ask:
                return Result(Curated(everything_B, "solved_prompt", ask=ask), new)
            state = new
        asked = {tuple(group) for group in state["asked"]}
        solved = sum(ok for group, ok in zip(groups, right, strict=True) if group in asked)
        metrics = {
            "seeded/groups": float(len(asked)),
            "seeded/solved": float(solved),
            "seeded/stored": float(len(state["answers"])),
        }
        new = {**self.init(), "answers": state["answers"]}
        return Result(Curated(everything_B, "solved_prompt"), new, metrics)

    def _stored(self, old: Stored, batch: Batch, right_B: Tensor, texts: Texts) -> Stored:
        """The store with the step's right answers, newest last."""
        found, uids = dict(old), batch["uid_P"][batch["group_B"]].tolist()
        answers = texts.completion_ids(batch)
        rows = right_B.nonzero().squeeze(1).tolist()
        # Of one prompt the shortest is stored last; which rollout gave it does not matter.
        for row in sorted(rows, key=lambda row: (len(answers[row]), answers[row]), reverse=True):
            found.pop(uids[row], None)
            found[uids[row]] = tuple(answers[row][: self.shown])
        return dict(list(found.items())[-self.capacity :])

    def _draw(
        self, group: tuple[int, int], finder: "Nearest | None", texts: Texts, sampling: Sampling
    ) -> Draw:
        uid, draw = group
        examples = finder.to(uid)[: self.num_examples] if finder is not None else []
        own = texts.prompt_ids(uid)
        room = sampling.context_tokens - sampling.answer_tokens - len(own)
        before: tuple[int, ...] = ()
        shown = []
        for other, answer in examples:  # the nearest one comes first here, and last in the text
            text = f"{texts.prompt_text(other)}{texts.decode(answer, special=False)}\n"
            ids = texts.encode(text)
            if len(ids) + len(before) <= room:
                before = (*ids, *before)
                shown.append(other)
        why = f"{self.num_asked} rollouts more, none was right"
        if not before:
            return Draw(uid, self.num_asked, draw=draw, why=why)
        why += f", behind solved prompts {', '.join(map(str, shown))}"
        return Draw(uid, self.num_asked, {"prompt_ids": (*before, *own)}, draw, why)


class Nearest:
    """Finds the stored prompts that are most like another one."""

    def __init__(self, stored: Stored, texts: Texts, scoring: Scoring) -> None:
        self.texts, self.table_VD = texts, scoring.embeddings()
        self.items = list(stored.items())
        self.rows_ND = self._rows([uid for uid, _ in self.items])

    def _rows(self, uids: Sequence[int]) -> Tensor:
        found = [self.table_VD[list(self.texts.prompt_ids(uid))] for uid in uids]
        means = [row.detach().double().cpu().mean(0) for row in found]
        return normalize(torch.stack(means), dim=-1)

    def to(self, uid: int) -> list[tuple[int, tuple[int, ...]]]:
        """Other prompts with their answers, the nearest first."""
        cosine_N = self.rows_ND @ self._rows([uid])[0]
        order = cosine_N.argsort(descending=True, stable=True).tolist()
        return [self.items[row] for row in order if self.items[row][0] != uid]
