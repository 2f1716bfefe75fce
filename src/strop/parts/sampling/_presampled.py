"""Answers to prompts of the pool that are sampled before training and graded."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from strop.batch.batch import Batch, turn_columns
from strop.method.services import Grading, Sampling, Texts
from strop.support.exits import Exit


class Presampled(NamedTuple):
    """Answers in the order of the prompts, the outcome of each, and whether it is known."""

    batch: Batch
    outcome: list[float]
    scored: list[bool]

    def known(self) -> list[list[float]]:
        """The known outcomes of each prompt's answers."""
        found: list[list[float]] = [[] for _ in range(self.batch.size("P"))]
        groups = self.batch["group_B"].tolist()
        for group, outcome, scored in zip(groups, self.outcome, self.scored, strict=True):
            if scored:
                found[group].append(outcome)
        return found


def presample(
    texts: Texts,
    grading: Grading,
    sampling: Sampling,
    uids: Sequence[int],
    num: int,
    rng: torch.Generator,
) -> Presampled:
    """`num` answers to each prompt by the engine's current weights, at the rollouts' temperature.

    The batch has one rollout of one turn per answer; those of a prompt are one group.
    """
    asked = [uid for uid in uids for _ in range(num)]
    seeds = torch.randint(2**62, (len(asked),), generator=rng).tolist()
    requests = [
        sampling.request(texts.prompt_ids(uid), sampling.answer_tokens, seed)
        for uid, seed in zip(asked, seeds, strict=True)
    ]
    finished = sampling.sample(requests)
    pairs = ((request.ids, each.ids) for request, each in zip(requests, finished, strict=True))
    row = torch.arange(len(asked))
    batch = Batch(
        {
            **turn_columns(pairs),
            "rollout_K": row,
            "exit_B": torch.tensor(
                [Exit.ENGINE_LOST if each.failed else Exit.DONE for each in finished]
            ),
            "group_B": torch.arange(len(uids)).repeat_interleave(num),
            "rollout_uid_B": -1 - row,
            "uid_P": torch.tensor(list(uids), dtype=torch.int64),
            "draw_P": torch.zeros(len(uids), dtype=torch.int64),
        }
    )
    graded = grading.grade(batch)
    return Presampled(batch, graded.outcome_B.tolist(), graded.scored_B.tolist())


def success_of(
    texts: Texts,
    grading: Grading,
    sampling: Sampling,
    uids: Sequence[int],
    num: int,
    success: float,
    rng: torch.Generator,
) -> dict[int, float]:
    """The share of `num` answers to each prompt whose outcome is `success` or more.

    Prompts without a scored answer are left out.
    """
    known = presample(texts, grading, sampling, uids, num, rng).known()
    pairs = zip(uids, known, strict=True)
    return {uid: num_right(own, success) / len(own) for uid, own in pairs if own}


def num_right(outcomes: Sequence[float], success: float) -> int:
    """How many outcomes are `success` or more, as float32, which outcomes are: 0.9 is 0.9."""
    return int((torch.tensor(outcomes) >= success).sum())
