"""Measure how much each turn's feedback changed what the policy did next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import Result
from strop.method.services import Episodes, Scoring, Texts
from strop.parts.probe._contexts import Context, mean_logp, turns_of
from strop.support.errors import UserError


@dataclass(frozen=True)
class MeasureFeedbackGain:
    """A turn is worth the effect of its feedback on the next action.

        gain_k = mean over the tokens of action k+1 of logp(token | feedback k)
                                                     - logp(token | placeholder)

    The placeholder's tokens are cut, or its last one repeated, to the number of the feedback's;
    nothing else changes, and what a chat template writes around the feedback stays.

    Reads: batch (the tokens), logp_old_T [T] float, turn_T [T] int, mask_T [T] bool;
    texts, scoring, episodes.   Writes: gain_K [K] float.
    Source: arXiv 2603.00656; code kfq20/InfoPO.
    Differs from the source: no.
    Nearest part: measure_answer_gain, which scores the right answer instead of the next action.
    Edges: a rollout's last turn, and a turn without feedback -> 0; the gain may be negative;
    characters of the placeholder that the tokenizer does not know become its unknown token.
    """

    writes: ClassVar[tuple[str, ...]] = ("gain_K",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "gain_K",
            "float",
            "effect of the turn's feedback on the next action",
            "nats",
            door=("turn_gains",),
        ),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Text in place of the feedback. Default: paper.
    placeholder: str = "No information found."

    def __call__(
        self,
        batch: Batch,
        logp_old_T: Tensor,
        turn_T: Tensor,
        mask_T: Tensor,
        texts: Texts,
        scoring: Scoring,
        episodes: Episodes,
    ) -> Result:
        blank = texts.encode(self.placeholder)
        if not blank:
            raise UserError("probes.placeholder has no tokens: give a text such as 'Nothing.'")
        rows: list[int] = []
        contexts: list[Context] = []
        row = 0
        for turns in turns_of(batch):
            before: tuple[int, ...] = ()
            for place, (shown, action) in enumerate(turns):
                if place and shown and action:
                    hidden = _hide(episodes, shown, before[-1], blank)
                    if hidden != shown:
                        rows.append(row)
                        contexts.append(((*before, *hidden), action))
                before = (*before, *shown, *action)
                row += 1
        real_K = segments.mean(logp_old_T, turn_T, row, mask_T)
        gain_K = torch.zeros_like(real_K)
        next_N = torch.tensor(rows, dtype=torch.int64, device=real_K.device)
        gain_K[next_N - 1] = real_K[next_N] - mean_logp(scoring, contexts).to(real_K)
        return Result(gain_K, metrics={"feedback_gain/mean": segments.overall(gain_K[next_N - 1])})


def _hide(
    episodes: Episodes, shown: tuple[int, ...], last: int, blank: Sequence[int]
) -> tuple[int, ...]:
    """An observation's tokens with the placeholder in place of its text."""
    head, tail = _frame(episodes, last)
    length = len(shown) - len(head) - len(tail)
    if length < 0 or shown[: len(head)] != head or shown[len(head) + length :] != tail:
        head, tail, length = (), (), len(shown)
    text = (*blank[:length], *[blank[-1]] * (length - len(blank)))
    return (*head, *text, *tail)


def _frame(episodes: Episodes, last: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens before and after any observation's text: those that two of them share."""
    one, other = episodes.observation_ids("0", last), episodes.observation_ids("1", last)
    return _common(one, other), _common(one[::-1], other[::-1])[::-1]


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    length = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return one[:length]
