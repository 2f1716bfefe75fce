"""Where all rollouts of a prompt ended alike, bring back earlier ones that ended otherwise."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Draw, Result, require
from strop.method.services import Stores, Texts
from strop.parts.curation._store import (
    as_rows,
    columns_of,
    fetched,
    in_groups,
    joined,
    marks_of,
    newest_of_prompts,
    opened,
    put_away,
    store_metrics,
)
from strop.support.errors import UserError

# For a model that can read it, and for one with few characters.
WORDS = ("{prompt}\n\nThis answer was wrong:\n{answer}\n\nSay why, and answer anew.\n{prompt}",
         "{prompt}{answer}\n{prompt}")  # fmt: skip
RETRY = 1 << 19  # a bit of the draw's number: the group was shown a wrong answer


@dataclass(frozen=True)
class BringBackOpposites:
    """A prompt's own history gives its uniform groups something to compare with.

        all failed:    num_added right rollouts of the prompt come back at random, origin 4 (replay)
        all succeeded: num_added wrong ones;   mixed: none
        mean outcome of its history < retry_below: it is sampled again, as often as before, from
            `words` with its prompt and one of its wrong answers; these rollouts are their own group

    Right: outcome >= success. Replayed rollouts keep the log-probabilities of the policy that drew
    them. Groups that were shown an answer neither take from the store nor go into it. Metrics:
    replay/stored, /drawn, /age_mean; retry/groups, /too_long (no room for the words).

    Reads: batch, outcome_B [B] float, group_B [B] int, scored_B [B] bool; texts,
    stores, rng, state.   Writes: rows to add, draws to roll out first.
    Source: arXiv 2601.19620, algorithm 1.
    Differs from the source: every number and the words are ours; the source does not state them.
    Nearest part: replay_rollouts, whose store it shares; there replayed rollouts form groups of
    their own.
    Edges: no such rollout stored -> group stays uniform; episodes with retry_below above
    0 -> UserError; the store is in the checkpoint.
    """

    # Rollouts that come back. Default: ours.
    num_added: int = 1
    # Outcome from which a rollout is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0
    # Mean earlier outcome below which a prompt is sampled again; 0: never. Default: ours.
    retry_below: float = 0.0
    # Words of the retry; empty: some that the model can read. Default: ours (say what is wrong).
    words: str = ""
    # Newest rollouts of a prompt that are stored; 0: all. Default: ours.
    capacity: int = 64

    def __post_init__(self) -> None:
        require(self, "num_added", "capacity", low=0)
        require(self, "success", "retry_below")

    def init(self) -> dict[str, Any]:
        """An empty store; no prompt of this step was sampled again."""
        return {"columns": {}, "asked": False, "too_long": 0}

    def __call__(
        self, batch: Batch, outcome_B: Tensor, group_B: Tensor, scored_B: Tensor, texts: Texts,
        stores: Stores, rng: torch.Generator, state: dict[str, Any],
    ) -> Result:  # fmt: skip
        if self.retry_below > 0 and "valid_K" in batch:
            raise UserError(
                "bring_back_opposites samples again with other words, which the episodes of an "
                "environment do not support: set curation.retry_below=0"
            )
        everything_B, stored = torch.ones_like(scored_B), state["columns"]
        store = opened(stored, batch) if stored else None
        if store is not None and not state["asked"]:
            draws, too_long = self._retries(batch, store, texts, stores, rng)
            state = {**state, "asked": True, "too_long": too_long}
            if draws:
                return Result(Curated(everything_B, "uniform_group", ask=draws), state)
        plain_P = batch["draw_P"] & RETRY == 0
        drawn, groups = self._opposites(batch, store, plain_P, rng)
        step = int(batch["step"])
        new = put_away(batch.keep(scored_B & plain_P[group_B]), step, stores)
        kept = joined(stored, new)
        if self.capacity:
            everyone_B = torch.ones(kept.size("B"), dtype=torch.bool)
            kept = kept.keep(newest_of_prompts(kept, everyone_B, self.capacity))
        add = drawn and in_groups(as_rows(drawn, batch, step, stores), batch, groups)
        metrics = {
            **store_metrics(kept.size("B"), drawn, step),
            "retry/groups": float((~plain_P).sum()),
            "retry/too_long": float(state["too_long"]),
        }
        state = {"columns": columns_of(kept, step, stores), "asked": False, "too_long": 0}
        return Result(Curated(everything_B, "uniform_group", add=add), state, metrics)

    def _opposites(
        self, batch: Batch, store: Batch | None, plain_P: Tensor, rng: torch.Generator
    ) -> tuple[Batch | None, list[int]]:
        """Stored rollouts for the uniform groups, and the group that each of them joins."""
        if store is None:
            return None, []
        num, group_B, scored_B = batch.size("P"), batch["group_B"], batch["scored_B"]
        count_P = segments.count(group_B, num, scored_B)
        right_P = segments.count(group_B, num, scored_B & (batch["outcome_B"] >= self.success))
        uniform_P = plain_P & (count_P > 0) & ((right_P == 0) | (right_P == count_P))
        right_B = store["outcome_B"] >= self.success
        rows, groups = list[int](), list[int]()
        for group in uniform_P.nonzero().squeeze(1).tolist():
            wanted_B = marks_of(store, batch, group) & (right_B == (right_P[group] == 0))
            found = wanted_B.nonzero().squeeze(1)
            chosen = found[torch.randperm(len(found), generator=rng)[: self.num_added]].tolist()
            rows += chosen
            groups += [group] * len(chosen)
        return (store.take(torch.tensor(rows)) if rows else None), groups

    def _retries(
        self, batch: Batch, store: Batch, texts: Texts, stores: Stores, rng: torch.Generator
    ) -> tuple[tuple[Draw, ...], int]:
        """One more draw of each prompt whose history is bad, and how many had no room for it."""
        size_P = segments.count(batch["group_B"], batch.size("P")).tolist()
        wrong_B = store["outcome_B"] < self.success
        draws, too_long = [], 0
        numbers = (batch["uid_P"].tolist(), batch["draw_P"].tolist(), size_P)
        for group, (uid, draw, size) in enumerate(zip(*numbers, strict=True)):
            own_B = marks_of(store, batch, group)
            wrong = (own_B & wrong_B).nonzero().squeeze(1)
            history = store["outcome_B"][own_B].double().mean() if len(wrong) else self.retry_below
            if draw & RETRY or not history < self.retry_below:
                continue
            row = wrong[torch.randint(len(wrong), (1,), generator=rng)]
            (answer,) = texts.completion_ids(fetched(store.take(row), stores))
            words = self.words or texts.first_known(WORDS, "curation.words")
            ids = texts.reworded_ids(uid, words, answer)
            too_long += not ids
            draws += [Draw(uid, size, {"prompt_ids": ids}, draw + RETRY)] if ids else []
        return tuple(draws), too_long
