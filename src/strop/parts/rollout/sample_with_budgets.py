"""Answer every prompt under several token budgets, each stated at the head of the answer."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch

from strop.batch.columns import Column
from strop.engines.asynchronous import AsyncEngine
from strop.method.part import Draw
from strop.method.services import Sampling, Texts
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble
from strop.parts.rollout.sample_with_hints import with_hints
from strop.support.errors import UserError


@dataclass(frozen=True)
class SampleWithBudgets(SamplingFields):
    """A prompt's rollouts are split over the budgets, so that each is tried equally often.

        rollout j of a draw has the budget budgets[j mod number of budgets], or where that is below
        1 this share of the longest answer; its answer begins with the text `prefix`, in which
        {budget} is the number

    The prefix has mask_T true, counts in the answer's length and limit, and may learn; no engine
    drew it, so its behaviour and sampler log-probabilities and its entropy are void (NaN). Rewards
    see the answer behind it.
    Reads: draws; texts; rng.   Writes: the token, turn, rollout and prompt tables, budget_B and
    head_B [B] int.
    Source: arXiv 2507.15844 (hierarchical budget exploration); code ZJU-REAL/HBPO.
    Differs from the source: rollouts take turns at the budgets; the wording of the prefix is free.
    Nearest part: sample_with_hints, whose answers begin with a part of the solution.
    Edges: more budgets than rollouts -> the first ones; a prefix as long as the limit -> UserError.
    """

    writes: ClassVar[tuple[str, ...]] = (*COLUMNS, "budget_B", "head_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "budget_B",
            "int",
            "token budget of the answer",
            "tokens",
            door=("budgets",),
            random="key:3",
        ),
        Column(
            "head_B", "int", "tokens of the answer that rewards do not see", "tokens", door=None
        ),
    )
    # Budgets: tokens, or below 1 shares of the longest answer. Default: paper (512, 1024, 2048 and
    # 2560 of 4096).
    budgets: tuple[float, ...] = (0.125, 0.25, 0.5, 0.625)
    # Head of the answer. Default: ours (nothing; the source has a sentence).
    prefix: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.budgets or min(self.budgets) <= 0:
            raise UserError(f"sample_with_budgets.budgets must be numbers above 0: {self.budgets}")
        if any(budget >= 1 and budget != int(budget) for budget in self.budgets):
            raise UserError(
                f"sample_with_budgets.budgets must be whole tokens or shares below 1: "
                f"{self.budgets}"
            )

    def tokens(self, longest: int) -> tuple[int, ...]:
        """The budgets in a run whose answers have at most `longest` tokens."""
        return tuple(
            int(budget) if budget >= 1 else max(round(budget * longest), 1)
            for budget in self.budgets
        )

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        asked = self.requests(draws, texts, sampling, rng)
        choice = self.tokens(self.max_tokens or sampling.answer_tokens)
        budgets = [choice[j % len(choice)] for draw in draws for j in range(draw.num_rollouts)]
        heads = {
            budget: texts.encode(self.prefix.replace("{budget}", str(budget)))
            for budget in set(budgets)
        }
        requests = []
        for request, budget in zip(asked, budgets, strict=True):
            left = request.max_tokens - len(heads[budget])
            if left < 1:
                raise UserError(
                    f"the prefix of the budget {budget} has {len(heads[budget])} tokens, an answer "
                    f"may have {request.max_tokens}: raise rollout.max_tokens or shorten the prefix"
                )
            ids = (*request.ids, *heads[budget])
            requests.append(dataclasses.replace(request, ids=ids, max_tokens=left))
        answers = await engine.generate_all(requests)
        size_B = torch.tensor([len(heads[budget]) for budget in budgets], dtype=torch.int64)
        batch = with_hints(assemble(draws, answers), size_B)
        return batch.set(budget_B=torch.tensor(budgets, dtype=torch.int64), head_B=size_B), None
