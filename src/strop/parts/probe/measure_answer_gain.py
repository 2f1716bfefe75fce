"""Reward each turn with how much closer it brought the policy to the right answer."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Result
from strop.method.services import Scoring, Texts
from strop.parts.probe._answers import answer_of
from strop.parts.probe._contexts import Context, mean_logp, turns_of

OTHERWISE = (
    "set probes.reference to another, or give it in the environment's columns(), see "
    "docs/ENVIRONMENTS.md"
)


@dataclass(frozen=True)
class MeasureAnswerGain:
    """A turn earns what its action and the environment's answer add to the answer's probability.

        reward_k = P_{k+1} - P_k for all turns of a rollout but the last, which earns the outcome
        P_k = exp(mean logp of the reference answer's tokens after the tokens before action k)

    The current policy scores the answer, teacher forced, after `opening`: after the prompt for P_0,
    after turn k and its feedback for P_{k+1}. Equal contexts of a prompt are scored once.

    Reads: batch (the tokens), outcome_B [B] float, rollout_K [K] int; texts (with the
    prompts' rows), scoring.   Writes: reward_K [K] float.
    Source: arXiv 2510.14967; code GuoqingWang1/IGPO.
    Differs from the source: the outcome is the environment's, with the reward functions' part.
    Nearest part: probe_answers, which samples answers instead of scoring the right one.
    Edges: no room for the answer in the context, or a row without one -> a gain of 0; of several
    references the first counts; prompts without the column -> UserError.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_K",)
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Text before the answer. Default: ours (none; the paper closes the thinking and opens a tag).
    opening: str = ""
    # Column of the prompt's row with the right answer. Default: ours (the usual name).
    reference: str = "answer"

    def __call__(
        self, batch: Batch, outcome_B: Tensor, rollout_K: Tensor, texts: Texts, scoring: Scoring
    ) -> Result:
        opening = texts.encode(self.opening)
        places: list[int] = []
        contexts: list[Context] = []
        row = 0
        uids = batch["uid_P"][batch["group_B"]].tolist()
        for uid, turns in zip(uids, turns_of(batch), strict=True):
            answer = answer_of(texts, uid, self.reference, "measure_answer_gain", OTHERWISE)
            before: tuple[int, ...] = ()
            for shown, action in turns:
                before = (*before, *shown)
                given = (*before, *opening)
                if answer and given and len(given) + len(answer) <= scoring.context_tokens:
                    places.append(row)
                    contexts.append((given, answer))
                before = (*before, *action)
                row += 1
        likely_K = outcome_B.new_full((row,), torch.nan)
        known_N = mean_logp(scoring, contexts).exp()
        likely_K[torch.tensor(places, dtype=torch.int64)] = known_N.to(outcome_B)
        gain_K = torch.nn.functional.pad(likely_K.diff(), (0, min(row, 1))).nan_to_num()
        last_K = segments.ends(rollout_K)
        metrics = {"answer_gain/mean": segments.overall(gain_K, ~last_K)}
        return Result(torch.where(last_K, outcome_B[rollout_K], gain_K), metrics=metrics)
