"""Take the answers from the training data instead of sampling them."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.batch.batch import Batch
from strop.batch.columns import DEMONSTRATION
from strop.method.part import Draw, require
from strop.method.services import Sampling, Texts
from strop.parts.rollout._events import undrawn
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, Turn, assemble_turns
from strop.support.errors import UserError


@dataclass(frozen=True)
class ReadAnswers(SamplingFields):
    """The policy learns from given answers: nothing is sampled.

        one rollout for each of the columns `answers` of the prompt's row, in this order
        preferred = 1 for the first column, -1 for the others

    Its tokens have origin 2 (demonstration) and end like an answer of the model's own; what only
    an engine knows (log-probabilities, entropy) is void (NaN) and the version -1. Of an environment
    an answer is the first action, and the rows are what `columns` says. Where roles have weights
    of their own, the answers are of one role.

    Reads: draws; texts (the rows of the data, their tokens); sampling (who plays the role).
    Writes: the token, turn, rollout and prompt tables, preferred_B [B] int.
    Source: arXiv 2203.02155, sec. 3.1 (demonstrations); arXiv 2305.18290 (pairs).
    Differs from the source: no.
    Nearest part: sample_independently, which samples what this one reads.
    Edges: a row without one of its answers -> UserError; draws of another number of rollouts ->
    UserError; nothing lasts between steps, so a restart loses nothing.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "preferred_B")
    knows_roles: ClassVar[bool] = True
    # Columns of the data with the answers, the preferred one first. Default: ours (TRL's name).
    answers: tuple[str, ...] = ("completion",)
    # Longest answer, tokens; 0: the longest of the data. Default: ours.
    max_tokens: int = 0
    # Whose answers these are, where roles have weights of their own. Default: ours (the first's).
    role: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "role", low=0)
        if not self.answers or len(set(self.answers)) < len(self.answers):
            raise UserError(f"read_answers.answers must be distinct columns, not {self.answers!r}")

    async def __call__(self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling) -> Rollouts:
        return self.read(draws, texts, sampling), None

    def read(self, draws: tuple[Draw, ...], texts: Texts, sampling: Sampling) -> Batch:
        """The batch of the draws' given answers."""
        rollouts, seeds = [], []
        for draw in draws:
            if draw.num_rollouts != len(self.answers):
                raise UserError(
                    f"read_answers gives {len(self.answers)} answers a prompt, and the request is "
                    f"for {draw.num_rollouts}: set sampling.num_rollouts={len(self.answers)}"
                )
            given = self.prompt(draw, texts)
            for place, column in enumerate(self.answers):
                rollouts.append([Turn(given, [undrawn(_answer_of(texts, draw.uid, column))])])
                seeds.append(-1 - (draw.uid * len(self.answers) + place))
        batch = assemble_turns(draws, seeds, rollouts, [False] * len(rollouts))
        mask_T = batch["mask_T"]
        first_B = torch.tensor([1, *[-1] * (len(self.answers) - 1)] * len(draws))
        origin_T = torch.where(mask_T, DEMONSTRATION, batch["origin_T"])
        batch = batch.set(origin_T=origin_T, preferred_B=first_B)
        if (player := sampling.players(0)(self.role)).weights:
            batch = batch.set(adapter_T=torch.full_like(batch["turn_T"], player.number))
        return batch

    def prompt(self, draw: Draw, texts: Texts) -> tuple[int, ...]:
        """The tokens that the draw's answers follow."""
        return texts.prompt_ids(draw.uid)

    @property
    def given(self) -> tuple[str, ...]:
        """The columns of the data that the answers are read from."""
        return self.answers


def _answer_of(texts: Texts, uid: int, column: str) -> tuple[int, ...]:
    ids = texts.answer_ids(uid, column)
    if not ids:
        raise UserError(f"the row of prompt {uid} has no {column}: fill it in or remove the row")
    return ids
