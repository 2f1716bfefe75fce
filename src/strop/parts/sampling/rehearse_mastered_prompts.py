"""Explore the prompts that the first policy did not master; rehearse its answers to the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from strop.method.part import Draw, Result, require
from strop.method.services import Grading, Sampling, Scoring, Texts
from strop.parts.sampling._presampled import Presampled, presample
from strop.support.errors import UserError

Ask = Callable[[Sequence[int], int, torch.Generator], Presampled]


@dataclass(frozen=True)
class RehearseMasteredPrompts:
    """Prompts that were always solved before training are not practised but remembered.

        before the first step, with the weights at that time: num_trials answers to every prompt
        of the pool; mastered if all have outcome >= success; one more answer to each mastered
        prompt is stored, with its log-probabilities, if it is right too
        each step: the place of a mastered prompt goes to another prompt, in shuffled order, and
        num_stored stored answers come in as draws of one rollout

    The stored log-probabilities are the trainer's own at the rollouts' temperature. Metrics:
    rehearsal/mastered (share of the pool), /stored (answers in the store).

    Reads: draws, pool, texts, grading, sampling, scoring, rng, state, num_wanted.
    Writes: the draws; those of stored answers carry `ids` and `logp`.
    Source: arXiv 2509.07430 (its pre-sampling); code seamoke/DPH-RL.
    Differs from the source: no.
    Nearest part: draw_in_shuffled_order, which chooses the prompts.
    Edges: nothing mastered -> nothing is rehearsed; everything mastered -> UserError; fewer stored
    than num_stored -> all of them; store and orders are in the checkpoint.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Answers that decide whether a prompt is mastered. Default: paper (8).
    num_trials: int = 8
    # Stored answers of a step. Default: released code (256).
    num_stored: int = 256
    # Outcome from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "num_trials", low=1)
        require(self, "num_stored", low=0)
        require(self, "success")

    def init(self) -> dict[str, Any]:
        """Nothing sampled yet."""
        none = torch.zeros(0, dtype=torch.int64)
        return {
            "sampled": False, "mastered": none, "uid": none, "size": none, "id": none,
            "logp": none.float(), "order": none, "cursor": 0, "open": none, "next": 0,
        }  # fmt: skip

    def __call__(
        self, draws: tuple[Draw, ...], pool: tuple[int, ...], texts: Texts, grading: Grading,
        sampling: Sampling, scoring: Scoring, rng: torch.Generator, state: dict[str, Any],
        num_wanted: int | None = None,
    ) -> Result:  # fmt: skip
        if not state["sampled"]:
            ask = partial(presample, texts, grading, sampling)
            state = {**state, **self._store(pool, ask, scoring, rng)}
        state, explored = self._explored(draws, pool, rng, state)
        number = self.num_stored if num_wanted is None else 0  # a refill brings none
        state, rows = _next_rows(state, number, rng)
        size = state["size"].tolist()
        starts = (state["size"].cumsum(0) - state["size"]).tolist()
        stored = tuple(
            Draw(
                int(state["uid"][row]),
                1,
                {
                    "ids": tuple(state["id"][starts[row] : starts[row] + size[row]].tolist()),
                    "logp": tuple(state["logp"][starts[row] : starts[row] + size[row]].tolist()),
                },
            )
            for row in rows
        )
        metrics = {
            "rehearsal/mastered": len(state["mastered"]) / len(pool),
            "rehearsal/stored": float(len(size)),
        }
        return Result((*explored, *stored), state, metrics)

    def _store(
        self, pool: tuple[int, ...], ask: Ask, scoring: Scoring, rng: torch.Generator
    ) -> dict[str, Tensor | bool]:
        """The mastered prompts and the store."""
        trials = ask(pool, self.num_trials, rng)
        right = torch.tensor(trials.outcome) >= self.success
        always = (right & torch.tensor(trials.scored)).view(len(pool), -1).all(1).tolist()
        mastered = [uid for uid, each in zip(pool, always, strict=True) if each]
        if len(mastered) == len(pool):
            raise UserError(
                f"all {len(pool)} prompts are solved {self.num_trials} times of "
                f"{self.num_trials} before training: give harder prompts, or more trials"
            )
        found: dict[str, Tensor | bool] = {"sampled": True, "mastered": torch.tensor(mastered)}
        if not mastered:
            return {**found, "mastered": torch.zeros(0, dtype=torch.int64)}
        again = ask(mastered, 1, rng)
        kept_B = (torch.tensor(again.outcome) >= self.success) & torch.tensor(again.scored)
        batch = again.batch.keep(kept_B)
        logp_T = scoring.score(batch, "current", ("logp_T",))["logp_T"].cpu().float()
        return {
            **found,
            "uid": batch["uid_P"][batch["group_B"]],
            "size": batch["length_B"],
            "id": batch["id_T"][batch["mask_T"]],
            "logp": logp_T[batch["mask_T"]],
        }

    def _explored(
        self, draws: tuple[Draw, ...], pool: tuple[int, ...], rng: torch.Generator,
        state: dict[str, Any],
    ) -> tuple[dict[str, Any], tuple[Draw, ...]]:  # fmt: skip
        """The draws with every mastered prompt replaced by the next one that is not."""
        mastered, cursor, order = set(state["mastered"].tolist()), state["next"], state["open"]
        open_uids = [uid for uid in pool if uid not in mastered]
        chosen = []
        for draw in draws:
            if draw.uid in mastered:
                if cursor >= len(order):
                    order, cursor = torch.randperm(len(open_uids), generator=rng), 0
                draw = draw._replace(uid=open_uids[int(order[cursor])], why="")
                cursor += 1
            chosen.append(draw._replace(probability=None) if mastered else draw)
        return {**state, "next": cursor, "open": order}, tuple(chosen)


def _next_rows(
    state: dict[str, Any], wanted: int, rng: torch.Generator
) -> tuple[dict[str, Any], list[int]]:
    """The next rows of the store, each at most once a step; a new order when one ends."""
    num, order, cursor = len(state["uid"]), state["order"], state["cursor"]
    rows: list[int] = []
    while len(rows) < min(wanted, num):
        if cursor >= len(order):
            order, cursor = torch.randperm(num, generator=rng), 0
        row, cursor = int(order[cursor]), cursor + 1
        if row not in rows:
            rows.append(row)
    return {**state, "order": order, "cursor": cursor}, rows
