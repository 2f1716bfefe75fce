"""At every turn of given episodes, let the current policy act once more."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import EXPERTS, NUM_KEPT, Batch, turn_columns
from strop.batch.columns import REPLAY
from strop.method.part import Curated, Result, require
from strop.method.services import Event, Sampling
from strop.parts.curation._rows import turn_rows
from strop.support.exits import Exit


@dataclass(frozen=True)
class ResampleActions:
    """The policy learns from what it would do now in states it has visited, without playing it.

        for each turn k of the rollouts: a fresh action, given all that came before that of turn k
        it is a rollout of one turn, origin 0; the tokens of the rollouts themselves get origin 4

    No fresh action reaches the environment: its reward is 0, and its turn is done.

    Reads: batch, mask_T [T] bool, turn_T [T] int; sampling, rng.   Writes: rows to
    keep (all) and to add.
    Source: arXiv 2402.19446, sec. 3.3; code YifeiZhou02/ArCHer.
    Differs from the source: one action at each turn of a drawn episode, and the same ones serve
    the critic and the policy within a step.
    Nearest part: replay_rollouts, which supplies the episodes.
    Edges: a turn without action tokens, or no room for one in the context -> no fresh action.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"samples_again"})
    # Most tokens of an action; 0: as in the rollouts. Default: ours.
    max_action_tokens: int = 0

    def __post_init__(self) -> None:
        require(self, "max_action_tokens", low=0)

    def __call__(
        self, batch: Batch, mask_T: Tensor, turn_T: Tensor, sampling: Sampling, rng: torch.Generator
    ) -> Result:
        everyone_B = torch.ones(batch.size("B"), dtype=torch.bool)
        old = batch.set(origin_T=torch.where(mask_T, REPLAY, batch["origin_T"]))
        limit = self.max_action_tokens or sampling.answer_tokens
        acting = torch.unique(turn_T[mask_T])
        rows = turn_rows(old, acting)
        contexts = _contexts(rows)
        fits = torch.tensor(
            [len(ids) < sampling.context_tokens for ids in contexts], dtype=torch.bool
        )
        rows = rows.keep(fits)
        contexts = [ids for ids, fit in zip(contexts, fits.tolist(), strict=True) if fit]
        seeds = torch.randint(2**62, (len(contexts),), generator=rng).tolist()
        found = sampling.sample(
            [
                sampling.request(
                    ids,
                    min(limit, sampling.context_tokens - len(ids)),
                    seed,
                    want=sampling.wanted_statistics,
                )
                for ids, seed in zip(contexts, seeds, strict=True)
            ]
        )
        well = [not each.failed for each in found]
        rows = rows.keep(torch.tensor(well, dtype=torch.bool))
        contexts, seeds, found = (list(compress(all, well)) for all in (contexts, seeds, found))
        fresh = _acted(rows, contexts, [each.events for each in found], seeds)
        kept = Curated(~everyone_B, "replayed", add=old.join(fresh) if contexts else old)
        metrics = {"replay/actions_resampled": float(len(contexts))}
        return Result(kept, metrics=metrics)


def _contexts(rows: Batch) -> list[list[int]]:
    """The tokens before each row's action."""
    given = rows["id_T"][~rows["mask_T"]].tolist()
    sizes = (rows["size_B"] - rows["length_B"]).tolist()
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [given[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _acted(
    rows: Batch,
    contexts: Sequence[Sequence[int]],
    events_of: Sequence[Sequence[Event]],
    seeds: Sequence[int],
) -> Batch:
    """The rows with fresh actions in place of their own. events_of: the engine's events of each."""
    events = list(chain.from_iterable(events_of))
    answers = [list(chain.from_iterable(event.ids for event in each)) for each in events_of]
    tokens = turn_columns(zip(contexts, answers, strict=True))
    size, mask_T = len(tokens["id_T"]), tokens["mask_T"]
    columns = {n: c for n, c in rows.columns.items() if not n.endswith("_T")}
    for name, column in rows.columns.items():
        if name.endswith("_T"):
            void = -1 if name in (EXPERTS, NUM_KEPT) else 0  # there 0 is an expert, and all tokens
            columns[name] = column.new_full((size, *column.shape[1:]), void)
    columns |= {**tokens, "origin_T": torch.where(mask_T, 0, 1)}
    reported = {
        "version_T": [event.version for event in events for _ in event.ids],
        "logp_behavior_T": list(chain.from_iterable(event.logp for event in events)),
        "logp_sampler_T": list(
            chain.from_iterable(event.values_of("logp_model") for event in events)
        ),
        "entropy_behavior_T": list(
            chain.from_iterable(event.values_of("entropy") for event in events)
        ),
    }
    for name, values in reported.items():
        if name in columns:
            columns[name][mask_T] = torch.tensor(values, dtype=columns[name].dtype)
    batch = Batch(columns)
    cut_off = [bool(each) and each[-1].ended == "length" for each in events_of]
    ended_B = torch.tensor(cut_off, dtype=torch.bool)
    fresh = {
        "rollout_uid_B": torch.tensor(seeds, dtype=torch.int64), "truncated_B": ended_B,
        "exit_B": torch.where(ended_B, Exit.TOKEN_LIMIT, Exit.DONE),
    }  # fmt: skip
    for name, value in (("reward_K", 0), ("done_K", 1)):  # of an episode
        if name in columns:
            fresh[name] = torch.full_like(batch[name], value)
    return batch.set(**{name: column for name, column in fresh.items() if name in columns})
