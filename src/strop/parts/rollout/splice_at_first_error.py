"""Keep a failed answer up to its first false step, and add a right end to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Request
from strop.method.part import Draw, require, require_one_of
from strop.method.services import Grading, Log, Sampling, Texts
from strop.parts.rollout._events import undrawn
from strop.parts.rollout._rows import rows_by_draw
from strop.parts.rollout._splice import SUCCESS, Failed, Repair, graded_right, marked
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble
from strop.support.errors import UserError

SOURCES = ("policy", "demonstration")


@dataclass(frozen=True)
class SpliceAtFirstError(SamplingFields):
    """The policy learns from the right beginning of a failed answer, completed by a right end.

        k: a failed rollout's first false step, as the reward logs it in `column` (from 0; -1: none)
        kept: its tokens up to and with the k-th `separator`
        end: "policy": num_tries new samples behind what was kept; "demonstration": the given answer
        (column completion) behind its own k-th separator, origin 2, its log-probabilities void
        num_repaired rollouts of a prompt, those with most steps kept first, are tried; one with an
        end that is graded right takes the place of the failed rollout, the first such end

    Metrics: splice/failed (rollouts), /tried (ends), /repaired (rollouts), /steps_kept (of these).

    Reads: draws; texts (demonstrations), log (first false steps).
    Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2602.24110 (abstract alone: who writes the ends, how many and which are ours).
    Differs from the source: a verifier of steps in place of a process reward model.
    Nearest part: sample_with_hints; sample_independently where num_repaired is 0.
    Edges: rollouts and ends are graded twice; an end that does not fit max_tokens, an answer of
    fewer steps than its false one, one without a score, a prompt without a demonstration: not
    tried; a reward that does not log the column -> UserError.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    acted: ClassVar[tuple[str, ...]] = ("splice/repaired",)
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # What the reward logs of each answer. Default: ours.
    column: str = "first_false_step"
    # Text between steps. Default: ours (a line each).
    separator: str = "\n"
    # Who writes the ends: "policy" or "demonstration". Default: ours (not stated).
    source: str = "policy"
    # Failed rollouts of a prompt that are repaired, at most. Default: ours (not stated).
    num_repaired: int = 1
    # Ends of the policy that are tried for each. Default: ours (not stated).
    num_tries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "source", SOURCES)
        require(self, "num_repaired", low=0)
        require(self, "num_tries", low=1)
        if not self.separator or not self.column:
            raise UserError(
                "splice_at_first_error: separator and column must not be empty: give the text "
                "between steps, and the name under which the reward logs the first false one"
            )

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        grading: Grading, log: Log, rng: torch.Generator,
    ) -> Rollouts:  # fmt: skip
        asked = self.requests(draws, texts, sampling, rng)
        answers = await engine.generate_all(asked)
        metrics: dict[str, float] = {
            f"splice/{name}": 0 for name in ("failed", "tried", "repaired")
        }
        metrics["splice/steps_kept"] = 0.0
        if not self.num_repaired or not asked:
            return assemble(draws, answers), None, metrics
        graded = grading.grade(assemble(draws, answers))
        failed_B = graded.scored_B & (graded.outcome_B < SUCCESS)
        false_step = self._false_steps(log, asked, failed_B.nonzero().squeeze(1).tolist())
        metrics["splice/failed"] = len(false_step)
        chosen = [
            self._kept(row, draw, false_step[row], answers[row], texts)
            for row, draw in self._chosen(draws, false_step)
        ]
        chosen = [each for each in chosen if each.size < len(answers[each.row].ids)]
        if not chosen:
            return assemble(draws, answers), None, metrics
        repairs = await self._ends(chosen, asked, engine, texts, rng)
        right = graded_right(repairs, grading)
        for repair in reversed(right):  # so that the first right end stands
            answers[repair.failed.row] = repair.whole
        repaired = {repair.failed.row: repair.failed.steps for repair in right}
        metrics |= {
            "splice/tried": len(repairs),
            "splice/repaired": len(repaired),
            "splice/steps_kept": sum(repaired.values()) / max(len(repaired), 1),
        }  # fmt: skip
        return marked(assemble(draws, answers)), None, metrics

    def _false_steps(
        self, log: Log, asked: Sequence[Request], failed: Sequence[int]
    ) -> dict[int, int]:
        """Row -> first false step of every failed rollout that has one."""
        if failed and self.column not in log.logged:
            raise UserError(
                f"splice_at_first_error: no reward logs {self.column}: let one call "
                f'log_extra("{self.column}", [...]) with the first false step of each answer, or '
                "name the column that it logs in rollout.column"
            )
        steps: Mapping[int, Any] = log.logged.get(self.column, {})
        found = {row: steps.get(asked[row].seed) for row in failed}
        return {row: int(step) for row, step in found.items() if step is not None and step >= 0}

    def _chosen(self, draws: Sequence[Draw], step: Mapping[int, int]) -> list[tuple[int, Draw]]:
        """The rollouts that are repaired: of each prompt those with most steps before the error."""
        found = []
        for draw, rows in rows_by_draw(draws):
            own = sorted((row for row in rows if row in step), key=lambda row: -step[row])
            found += [(row, draw) for row in own[: self.num_repaired]]
        return found

    def _kept(self, row: int, draw: Draw, step: int, answer: Answer, texts: Texts) -> Failed:
        size = self._begin(answer.ids, step, texts)
        return Failed(row, draw, step, answer.first(size).events)

    def _begin(self, ids: Sequence[int], step: int, texts: Texts) -> int:
        """Tokens before a step; all of them where there are fewer steps."""
        text = ""
        for place, id in enumerate(ids):
            if text.count(self.separator) >= step:
                return place
            text += texts.decode([id])
        return len(ids)

    async def _ends(
        self, failed: Sequence[Failed], asked: Sequence[Request], engine: AsyncEngine, texts: Texts,
        rng: torch.Generator,
    ) -> list[Repair]:  # fmt: skip
        """Ends for all of them, where there is room."""
        tries = self.num_tries if self.source == "policy" else 1
        seeds = torch.randint(2**62, (len(failed), tries), generator=rng).tolist()
        repairs = [
            Repair(each, replace(asked[each.row], seed=seed))
            for each, own in zip(failed, seeds, strict=True)
            for seed in own
            if each.size < asked[each.row].max_tokens
        ]
        if self.source == "policy":
            ends = await engine.generate_all([repair.rest() for repair in repairs])
            for repair, end in zip(repairs, ends, strict=True):
                repair.end = end.events
            return repairs
        for repair in repairs:
            given = texts.answer_ids(repair.failed.draw.uid)
            rest = given[self._begin(given, repair.failed.steps, texts) :]
            repair.end = (undrawn(rest),) if rest else ()
        return [
            repair for repair in repairs
            if repair.end and repair.failed.size + len(repair.end[0].ids)
            <= repair.request.max_tokens
        ]  # fmt: skip
