"""Let the answers of a prompt play a tournament; the rank is the reward."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.part import Result, require_one_of
from strop.method.services import Grading, Texts
from strop.parts.reward._tournament import SCHEMES, Pair
from strop.support.errors import UserError


@dataclass(frozen=True)
class RankInTournament:
    """An answer earns by the peers that it beats, not by a score of its own.

        a pair is judged twice, each answer once in first place: the reward functions score it
        with the other one's text in their column `opponent`
        seeds: everyone plays rollout 0; then single elimination, byes to the best seeds
        rank: champion first, then losers from the last round back, within a round by mean score
        reward = 1 - rank / (N - 1), rank from 0
        round_robin, and "code" with anchor: ties share the better rank, and the worst rank takes
        the place of N - 1; all equal -> 0

    Metrics: tournament/matches (pairs per group), tournament/frac_unjudged (pairs without a score).

    Reads: batch, grading, texts.   Writes: reward_BM [B, 1], outcome_B,
    reward_B [B] float, scored_B [B] bool.
    Source: arXiv 2601.06487; code Alibaba-NLP/qqr (reward_models/arena).
    Differs from the source: a pair with a failed judgement is a tie at the mean of the round's
    scores (there 5 of 10); byes and ties, see source_form; Swiss and double elimination are left
    out.
    Nearest part: score_with_verifiers, which scores each answer alone.
    Edges: group of one, or several reward functions -> UserError; a rollout that no judgement
    reached -> unscored.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_BM", "outcome_B", "reward_B", "scored_B")
    facts: ClassVar[frozenset[str]] = frozenset({"order_matters"})
    # "elimination", "anchor" (the seeds alone) or "round_robin". Default: paper.
    scheme: str = "elimination"
    # "paper", or "code": byes go to those left over and not to the best seeds, and equal scores
    # against the anchor share a rank. Default: paper (a seeded bracket).
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require_one_of(self, "scheme", tuple(SCHEMES))
        require_one_of(self, "source_form", ("paper", "code"))

    def __call__(self, batch: Batch, texts: Texts, grading: Grading) -> Result:
        if len(grading.reward_names) != 1:
            raise UserError(
                "rank_in_tournament needs one reward function, which compares two answers, and has "
                f"{', '.join(grading.reward_names)}: give --reward once, without an environment"
            )
        members = [
            (batch["group_B"] == group).nonzero().squeeze(1).tolist()
            for group in range(batch.size("P"))
        ]
        if any(len(rows) == 1 for rows in members):
            raise UserError(
                "rank_in_tournament needs two rollouts a prompt: raise sampling.num_rollouts"
            )
        _, answers = texts.decoded(batch)
        games = [SCHEMES[self.scheme](len(rows), self.source_form == "code") for rows in members]
        waiting = {group: next(game) for group, game in enumerate(games)}
        reward_B = torch.zeros(batch.size("B"))
        judged_B = torch.zeros(batch.size("B"), dtype=torch.bool)
        matches = failed = 0
        while waiting:
            played = [(g, pair) for g, pairs in waiting.items() for pair in pairs]
            rows = [(members[g][one], members[g][other]) for g, (one, other) in played]
            verdicts, missing = _judge(batch, grading, answers, rows, judged_B)
            matches, failed = matches + len(rows), failed + missing
            scores = iter(verdicts)
            following: dict[int, list[Pair]] = {}
            for g, pairs in waiting.items():
                try:
                    following[g] = games[g].send([next(scores) for _ in pairs])
                except StopIteration as end:
                    reward_B[members[g]] = torch.tensor(end.value)
            waiting = following
        reward_B = torch.where(judged_B, reward_B, 0)
        metrics = {
            "tournament/matches": matches / max(len(members), 1),
            "tournament/frac_unjudged": failed / max(matches, 1),
        }
        component_BM = torch.where(judged_B, reward_B, torch.nan)[:, None]
        return Result((component_BM, reward_B, reward_B, judged_B), metrics=metrics)


def _judge(
    batch: Batch, grading: Grading, texts: list[str], rows: list[tuple[int, int]], judged_B: Tensor
) -> tuple[list[tuple[float, float]], int]:
    """Both scores of each pair of rollouts, and how many pairs lack one; marks judged rollouts."""
    if not rows:
        return [], 0
    order = [row for pair in rows for row in pair]
    beside = [texts[other] for pair in rows for other in reversed(pair)]
    graded = grading.grade_beside(batch.take(torch.tensor(order)), beside)
    score_N, known_N = graded.outcome_B.double(), graded.scored_B
    usual = float(score_N[known_N].mean()) if bool(known_N.any()) else 0.0
    judged_B[torch.tensor(order)[known_N]] = True
    both_N = known_N.reshape(-1, 2).all(1)
    pairs = torch.where(both_N[:, None], score_N.reshape(-1, 2), usual).tolist()
    return [(one, other) for one, other in pairs], int((~both_N).sum())
