"""Stop some of a prompt's answers midway, so that the others differ more in outcome."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.engines.asynchronous import AsyncEngine
from strop.engines.base import Answer, Request
from strop.method.part import Draw, require
from strop.method.services import Sampling, Scoring, Texts
from strop.parts.rollout._quality_head import (
    bins_of,
    nearest_subset,
    new_head,
    scores,
    success_of_bins,
    trained,
)
from strop.parts.rollout._rows import rows_by_draw
from strop.parts.rollout.base import COLUMNS, Rollouts, SamplingFields, assemble

State = dict[str, Any]


@dataclass(frozen=True)
class StopSureAnswers(SamplingFields):
    """Groups are made of fewer answers, about as many right as wrong as can be foreseen.

        s: a small head's score of the policy's hidden state at the answer's detect_at-th token
        q = (1 + hits_b) / (2 + count_b), b the bin of sigmoid(s) among num_bins of equal width
        of n answers of a prompt that have got so far, ceil(keep n) continue: those whose mean q is
        nearest to `target` (a random subset, then the best swaps);  the others are stopped

    Stopped answers are in no rollout. The head learns from the outcomes of those that continued
    (success: outcome >= 1), the bins count them. Metrics: pruning/examined, /stopped, /predicted
    (mean q of those that continue), /head_loss (of the last step).

    Reads: draws; scoring (hidden states); observes rollout_uid_B, outcome_B [B] float, scored_B.
    Writes: the token, turn, rollout and prompt tables.
    Source: arXiv 2603.24840 (rule of survival, head, bins and losses not stated: all ours).
    Differs from the source: the head is 64 wide on the last layer's state, 4 steps of Adam a time.
    Nearest part: sample_independently; equal to it when keep is 1.
    Edges: an answer that ends before detect_at is not examined and stays; at first all scores are
    equal and the choice is random; head, its optimiser and the bins are in the checkpoint.
    """

    writes: ClassVar[tuple[str, ...]] = COLUMNS
    acted: ClassVar[tuple[str, ...]] = ("pruning/stopped",)
    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Tokens at which an answer is examined. Default: paper (512).
    detect_at: int = 512
    # Share of the examined answers that continue. Default: paper (0.5).
    keep: float = 0.5
    # Share of right answers that is wanted among them. Default: paper (0.5).
    target: float = 0.5
    # Bins of scores. Default: ours (not stated).
    num_bins: int = 10
    # Learning rate of the head. Default: ours (not stated).
    head_lr: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "detect_at", "num_bins", low=1)
        require(self, "keep", low=1e-6, high=1.0)
        require(self, "target", low=0.0, high=1.0)
        require(self, "head_lr", low=0.0)

    def init(self) -> State:
        """No head yet, nothing counted."""
        zeros = torch.zeros(self.num_bins, dtype=torch.float64)
        return {"head": {}, "hits": zeros, "counts": zeros, "waiting": {}, "loss": 0.0}

    async def __call__(
        self, draws: tuple[Draw, ...], engine: AsyncEngine, texts: Texts, sampling: Sampling,
        scoring: Scoring, rng: torch.Generator, state: State,
    ) -> Rollouts:  # fmt: skip
        asked = self.requests(draws, texts, sampling, rng)
        heads = [replace(r, max_tokens=min(self.detect_at, r.max_tokens), keep=True) for r in asked]
        answers = await engine.generate_all(heads)
        halted = [
            row
            for row, answer in enumerate(answers)
            if self._goes_on(answer, asked[row], sampling.context_tokens)
        ]
        going, state, metrics = self._choose(draws, answers, halted, scoring, rng, state)
        stopped = sorted(set(halted) - set(going))
        for row in stopped:
            engine.drop(answers[row])
        left = [asked[row].max_tokens - len(answers[row].ids) for row in going]
        ends = await engine.generate_all(
            [answers[row].more(n, keep=False) for row, n in zip(going, left, strict=True)]
        )
        for row, end in zip(going, ends, strict=True):
            answers[row] += end
        rows = [row for row in range(len(asked)) if row not in stopped]
        batch = assemble(_narrowed(draws, rows), [answers[row] for row in rows])
        return batch, state, metrics

    def _goes_on(self, answer: Answer, asked: Request, context: int) -> bool:
        """Whether an answer has got to where it is examined, and has room for more."""
        return (
            answer.ended == "length"
            and len(answer.ids) == self.detect_at < asked.max_tokens
            and len(answer.sequence) < context
        )

    def observe(
        self, rollout_uid_B: Tensor, outcome_B: Tensor, scored_B: Tensor, state: State
    ) -> State:
        """Update the bins and the head with the outcomes of the answers that continued."""
        waiting = state["waiting"]
        if not waiting:
            return state
        rows = [
            (place, row)
            for place, uid in enumerate(waiting["uids"].tolist())
            for row in (rollout_uid_B == uid).nonzero().squeeze(1).tolist()
            if scored_B[row]
        ]
        new = {**state, "waiting": {}}
        if rows:
            places = torch.tensor([place for place, _ in rows])
            success_N = (outcome_B.cpu()[[row for _, row in rows]] >= 1).float()
            bin_N = waiting["bins"][places]
            hits = torch.bincount(bin_N, success_N.double(), minlength=self.num_bins)
            new["hits"] = state["hits"] + hits
            new["counts"] = state["counts"] + torch.bincount(bin_N, minlength=self.num_bins)
            states_NH = waiting["states"][places]
            new["head"], new["loss"] = trained(state["head"], states_NH, success_N, self.head_lr)
        return new

    def _choose(
        self, draws: Sequence[Draw], answers: Sequence[Answer], halted: Sequence[int],
        scoring: Scoring, rng: torch.Generator, state: State,
    ) -> tuple[list[int], State, dict[str, float]]:  # fmt: skip
        """The answers that continue, the state with their scores, and its metrics."""
        metrics = {"pruning/head_loss": float(state["loss"]), "pruning/examined": len(halted)}
        if not halted:
            return [], state, {**metrics, "pruning/stopped": 0}
        found = [answers[row] for row in halted]
        states_NH = _states(_narrowed(draws, halted), found, scoring)
        head = state["head"] or new_head(states_NH.shape[1], rng)
        bin_N = bins_of(scores(head, states_NH), self.num_bins)
        chance = success_of_bins(state["hits"], state["counts"])[bin_N].tolist()
        kept = []
        for _, places in rows_by_draw(_narrowed(draws, halted)):
            own = chance[places.start : places.stop]
            size = math.ceil(self.keep * len(own) - 1e-9)
            kept += [places[k] for k in nearest_subset(own, size, self.target, rng)]
        uids = torch.tensor([found[k].request.seed for k in kept])
        new = {"uids": uids, "bins": bin_N[kept], "states": states_NH[kept]}
        before = state["waiting"]  # of an earlier round of this step
        waiting = {k: torch.cat([before[k], v]) for k, v in new.items()} if before else new
        metrics["pruning/stopped"] = len(halted) - len(kept)
        metrics["pruning/predicted"] = sum(chance[k] for k in kept) / len(kept)
        return [halted[k] for k in kept], {**state, "head": head, "waiting": waiting}, metrics


def _states(draws: Sequence[Draw], answers: Sequence[Answer], scoring: Scoring) -> Tensor:
    """The policy's hidden state [N, width] after the last token of each answer so far."""
    found: dict[int, Tensor] = {}
    for rows, states in scoring.hidden(assemble(draws, answers)):
        found |= {row: own[-1] for row, own in zip(rows, states, strict=True)}
    return torch.stack([found[row] for row in range(len(answers))]).float().cpu()


def _narrowed(draws: Sequence[Draw], rows: Sequence[int]) -> list[Draw]:
    """The draws with as many rollouts as there are rows of theirs; those without are left out."""
    wanted = set(rows)
    sizes = [(draw, sum(row in wanted for row in own)) for draw, own in rows_by_draw(draws)]
    return [draw._replace(num_rollouts=size) for draw, size in sizes if size]
