"""Pay each turn for tool calls that match the task's reference calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Result, require, require_one_of
from strop.method.services import Call, Episodes, Texts
from strop.parts.reward._match_calls import (
    MOST_EXACT,
    assign_best,
    assign_greedily,
    similarity,
    transport,
)
from strop.support.errors import UserError


@dataclass(frozen=True)
class MatchReferenceCalls:
    """A turn earns the similarity of its tool calls to the reference calls matched with them.

        reward_k = mean over the calls of turn k of S(call, its reference)
        reward_i <- reward_i + sum_k (change of reward_k)

    S = (1 + J + equal) / (2 + n) for the same tool, else 0: J the Jaccard index of the arguments'
    names, equal of the n arguments of the reference have the same value. By `matching`, over all
    calls of a rollout: "exact" (one to one, the largest sum), "greedy" (one to one, the most
    similar first) or "soft" (each call gets its share of an optimal transport, which sums to 1 at
    most).

    Reads: batch (the actions' tokens), reward_K [K] float, reward_B [B] float; texts (the
    prompts' rows), episodes (the actions' calls).   Writes: reward_K [K] float, reward_B [B] float.
    Source: arXiv 2601.10712; code quchangle1/MatchTIR.
    Differs from the source: a turn without calls keeps what the environment paid for it, so the
    answer's score is the environment's; the source pays 0, and F1 for an answer.
    Nearest part: score_with_verifiers, which comes before it.
    Edges: a call that cannot be read matches none; a row without references keeps its rewards.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_K", "reward_B")
    # "exact", "greedy" or "soft". Default: paper (exact; its code is greedy).
    matching: str = "exact"
    # What a call without a reference earns, in "soft" only where there are none; in reward units.
    # Default: released code (0).
    unmatched: float = 0.0
    # Strength of the entropy in "soft". Default: released code (0.1).
    regularisation: float = 0.1
    # Column of the prompt's row with the reference calls. Default: ours.
    reference: str = "reference_calls"

    def __post_init__(self) -> None:
        require_one_of(self, "matching", ("exact", "greedy", "soft"))
        require(self, "unmatched")
        require(self, "regularisation", low=1e-3)

    def __call__(
        self, batch: Batch, reward_K: Tensor, reward_B: Tensor, texts: Texts, episodes: Episodes
    ) -> Result:
        calls_K = episodes.tool_calls(episodes.action_texts(_action_ids(batch)))
        rollout_K, num = batch["rollout_K"], batch.size("B")
        turns_B: list[list[int]] = [[] for _ in range(num)]
        for turn, rollout in enumerate(rollout_K.tolist()):
            turns_B[rollout].append(turn)
        paid_K, every = reward_K.clone(), list[float]()
        for uid, turns in zip(batch["uid_P"][batch["group_B"]].tolist(), turns_B, strict=True):
            references = self._references(texts, episodes, uid)
            if references is None:
                continue
            found = self._scores([c for turn in turns for c in calls_K[turn]], references)
            every += found
            scores = iter(found)
            for turn in turns:
                earned = [next(scores) for _ in calls_K[turn]]
                if earned:
                    paid_K[turn] = sum(earned) / len(earned)
        changed_B = reward_B + segments.total(paid_K - reward_K, rollout_K, num)
        metrics = {"calls/judged": len(every), "calls/score_mean": sum(every) / max(len(every), 1)}
        return Result((paid_K, changed_B), metrics=metrics)

    def _scores(self, calls: Sequence[Call], references: Sequence[Call]) -> list[float]:
        """The score of each call of a rollout."""
        if not calls or not references:
            return [self.unmatched] * len(calls)
        table = [[similarity(call, each) for each in references] for call in calls]
        if self.matching == "soft":
            return transport(table, self.regularisation)
        assign: Callable[[list[list[float]], float], list[float]] = (
            assign_best if self.matching == "exact" else assign_greedily
        )
        return assign(table, self.unmatched)

    def _references(self, texts: Texts, episodes: Episodes, uid: int) -> list[Call] | None:
        row = texts.row(uid)
        if self.reference not in row:
            raise UserError(
                f"match_reference_calls reads the column {self.reference}, which the prompts do "
                f"not have (there are {', '.join(row) or 'none'}): an environment gives it in "
                "columns(), see docs/ENVIRONMENTS.md"
            )
        found = row[self.reference]
        if found is None:
            return None
        if self.matching == "exact" and len(found) > MOST_EXACT:
            raise UserError(
                f"prompt {uid} has {len(found)} reference calls, but the best assignment is "
                f"searched for at most {MOST_EXACT}: set reward.matching=greedy"
            )
        references = episodes.read_calls(found)
        if not all(each.name for each in references):
            raise UserError(f"prompt {uid}: a reference call needs a name: {found}")
        return references


def _action_ids(batch: Batch) -> list[list[int]]:
    """The policy's tokens of every turn."""
    mask_T = batch["mask_T"]
    lengths = segments.count(batch["turn_T"], batch.size("K"), mask_T).tolist()
    ids_T = batch["id_T"][mask_T].cpu()
    return [piece.tolist() for piece in torch.split(ids_T, lengths)]
