"""Pay answers for agreeing with the answers to other wordings of the question."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from strop.errors import UserError
from strop.part import Result, require, require_one_of
from strop.services import Texts


@dataclass(frozen=True)
class RewardAgreementInSets:
    """However a question is put, the answer is to be the same.

        reward_i <- agreement * r_i + label * reward_i
        r_i = mean over the rollouts m of the set's other prompts of sim(answer_i, answer_m)
        sim "exact": equal texts, spaces at the ends aside; "bleu": geometric mean of the clipped
        precisions of words and pairs of words, times the brevity penalty

    Metric: agreement/mean. The set is a column of the data; add_paraphrases draws whole sets.

    Reads: reward_B [B] float, group_B [B] int, uid_P [P] int, scored_B [B] bool; batch, texts
    (with the rows of the data).   Writes: reward_B [B] float.
    Source: arXiv 2510.04392 (group similarity reward).
    Differs from the source: read through notes; its cheaper form, with sampled partners, is left
    out. Rollouts of equal number per prompt weigh as there.
    Nearest part: rescale_reward.
    Edges: a set of one, or no scored partner -> r 0; unscored rewards stay as they are; one empty
    answer for everything would agree fully: keep a label above 0. outcome_B stays as it was.
    """

    # Weight of agreement, reward units. Default: ours (1; the paper's was not found).
    agreement: float = 1.0
    # Weight of the reward so far. Default: ours (1; the paper's was not found).
    label: float = 1.0
    # "bleu" or "exact". Default: paper (BLEU with one and two words).
    similarity: str = "bleu"
    # Column of the data that names a prompt's set. Default: ours.
    column: str = "set"

    def __post_init__(self) -> None:
        require(self, "agreement", low=0.0)
        require(self, "label")
        require_one_of(self, "similarity", ("bleu", "exact"))

    def __call__(
        self,
        batch: Any,
        reward_B: Tensor,
        group_B: Tensor,
        uid_P: Tensor,
        scored_B: Tensor,
        texts: Texts,
    ) -> Result:
        answers = [text.strip() for text in texts.decoded(batch)[1]]
        uid_B = uid_P[group_B].tolist()
        rows = {uid: texts.row(uid) for uid in set(uid_B)}
        if missing := [uid for uid, row in rows.items() if row.get(self.column) is None]:
            raise UserError(f"the prompt {missing[0]} has no {self.column} in the training data")
        scored = scored_B.tolist()
        members: dict[Any, list[int]] = {}
        for i, uid in enumerate(uid_B):
            if scored[i]:
                members.setdefault(rows[uid][self.column], []).append(i)
        compare = bleu if self.similarity == "bleu" else _exact
        agreements = []
        for i, uid in enumerate(uid_B):
            others = [j for j in members.get(rows[uid][self.column], ()) if uid_B[j] != uid]
            total = sum(compare(answers[i], answers[j]) for j in others) if scored[i] else 0.0
            agreements.append(total / max(len(others), 1))
        found_B = reward_B.new_tensor(agreements)
        mean = sum(agreements) / max(sum(scored), 1)
        shaped_B = (self.agreement * found_B + self.label * reward_B).where(scored_B, reward_B)
        return Result(shaped_B, metrics={"agreement/mean": mean})


def _exact(one: str, other: str) -> float:
    return float(one == other)


def bleu(answer: str, reference: str) -> float:
    """Similarity of an answer to one reference by its words and pairs of words, 0 to 1."""
    words, wanted = answer.split(), reference.split()
    if not words or not wanted:
        return float(words == wanted)
    logs = []
    for size in (1, 2):
        own, theirs = _grams(words, size), _grams(wanted, size)
        if not own:  # an answer of one word has no pair
            continue
        shared = sum((own & theirs).values())
        if not shared:
            return 0.0
        logs.append(math.log(shared / sum(own.values())))
    brevity = min(0.0, 1 - len(wanted) / len(words))
    return math.exp(sum(logs) / len(logs) + brevity)


def _grams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))
