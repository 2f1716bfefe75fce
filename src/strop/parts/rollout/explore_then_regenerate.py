"""Let an older policy, or an average, try many answers; the newest repeats the best and worst."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw, require
from strop.method.services import Grading, Sampling, Texts
from strop.parts.rollout._rows import rows_by_draw
from strop.parts.rollout.base import COLUMNS, TOKENS_DISCARDED, Rollouts, SamplingFields, assemble


@dataclass(frozen=True)
class ExploreThenRegenerate(SamplingFields):
    """Groups are made of seeds that lead far apart, and of answers of the newest policy alone.

        explore: the draw's rollouts by the average of the run's policies, where a control keeps one
        (average_explorer), else by the engine's (with engine.staleness one of some steps ago);
        graded
        choose: the keep / 2 seeds of largest and the keep / 2 of smallest outcome; of equal ones
        the first
        regenerate: answers of the newest policy to these seeds; they are graded again

    A draw depends on seed, place and weights alone: the same weights repeat an answer token by
    token, near ones begin it alike. Answers of the first stage are in no rollout. Metrics:
    exploring/spread (mean outcome of the chosen best less that of the worst, as explored),
    exploring/repeated (regenerated answers that are the explored ones, share).

    Reads: draws; sampling (answers of the average and of the newest policy).
    Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2604.06916; code NVlabs/Sana (sol_rl, best_worst).
    Differs from the source: it is of diffusion, where a seed fixes the sample; its cheap copy is
    quantised and takes fewer steps, here it is older, or an average.
    Nearest part: sample_independently; equal to it when keep is not below a draw's rollouts.
    Edges: an odd keep has one more of the best; the regenerated answers need not differ in
    outcome; explored answers are graded beside the step's own, and those without a score are
    chosen last. Stateless.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again", "explores"})
    # Answers of a prompt that are regenerated. Default: paper (24 of 96).
    keep: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "keep", low=2)

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        grading: Grading, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        asked = self.requests(draws, texts, sampling, rng)
        if all(draw.num_rollouts <= self.keep for draw in draws):
            return assemble(draws, await engine.generate_all(asked)), None
        if sampling.explores:
            answers = sampling.sample_explorer(asked)
        else:
            answers = await engine.generate_all(asked)
        graded = grading.grade(assemble(draws, answers))
        outcome = torch.where(graded.scored_B, graded.outcome_B, torch.nan).tolist()
        rows, kept, best, worst = [], [], [], []
        for draw, theirs in rows_by_draw(draws):
            own = [outcome[row] for row in theirs]
            high, low = best_and_worst(own, self.keep)
            chosen = sorted((*high, *low))
            kept.append(draw._replace(num_rollouts=len(chosen)))
            rows += [theirs[place] for place in chosen]
            best += [own[place] for place in high if not math.isnan(own[place])]
            worst += [own[place] for place in low if not math.isnan(own[place])]
        found = sampling.sample_newest([asked[row] for row in rows])
        repeated = [one.ids == answers[row].ids for one, row in zip(found, rows, strict=True)]
        metrics = {
            "exploring/spread": sum(best) / max(len(best), 1) - sum(worst) / max(len(worst), 1),
            "exploring/repeated": sum(repeated) / len(repeated),
            TOKENS_DISCARDED: float(sum(len(answer.ids) for answer in answers)),
        }
        return assemble(kept, found), None, metrics


def best_and_worst(outcome: Sequence[float], number: int) -> tuple[list[int], list[int]]:
    """Indices of the larger and of the smaller half of `number` values, none twice; NaN last."""

    def after(value: float) -> float:
        return math.inf if math.isnan(value) else value

    order = sorted(range(len(outcome)), key=lambda place: after(-outcome[place]))
    high = order[: (number + 1) // 2]
    rest = sorted(set(order) - set(high), key=lambda place: after(outcome[place]))
    return high, rest[: number // 2]
