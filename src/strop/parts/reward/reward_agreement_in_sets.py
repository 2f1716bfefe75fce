"""Pay answers for agreeing with the answers to other wordings of the question."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Result, require, require_one_of
from strop.method.services import Texts
from strop.support.errors import UserError


@dataclass(frozen=True)
class RewardAgreementInSets:
    """The answer should be the same, however the question is worded.

        reward_i <- agreement * r_i + label * reward_i
        r_i = mean over the rollouts m of the set's other prompts of sim(answer_i, answer_m)
        sim "exact": equal texts apart from spaces at the ends; "bleu": geometric mean of the
        clipped precisions of words and pairs of words, times the brevity penalty

    Metric: agreement/mean. The set is a column of the data; add_paraphrases draws whole sets.

    Reads: reward_B [B] float, group_B [B] int, uid_P [P] int, scored_B [B] bool; batch, texts
    (with the rows of the data).   Writes: reward_B [B] float.
    Source: arXiv 2510.04392 (group similarity reward).
    Differs from the source: known from notes; its cheaper form, with sampled partners, is left out.
    With equally many rollouts per prompt the weights are the same.
    Nearest part: rescale_reward.
    Edges: a set of one, or no scored partner -> r 0; unscored rewards stay as they are; one empty
    answer for everything would agree fully: keep label above 0. outcome_B stays as it was.
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
        batch: Batch,
        reward_B: Tensor,
        group_B: Tensor,
        uid_P: Tensor,
        scored_B: Tensor,
        texts: Texts,
    ) -> Result:
        uid_U, own_B = torch.unique(uid_P[group_B].cpu(), return_inverse=True)
        names = [texts.row(uid).get(self.column) for uid in uid_U.tolist()]
        if None in names:
            uid = int(uid_U[names.index(None)])
            raise UserError(f"the prompt {uid} has no {self.column} in the training data")
        known: dict[object, int] = {}
        set_U = [known.setdefault(name, len(known)) for name in names]
        set_B, counts_B = torch.tensor(set_U, dtype=torch.int64)[own_B], scored_B.cpu()
        answers = texts.decoded(batch)[1]
        split: Callable[[str], list[str]] = str.split if self.similarity == "bleu" else _whole
        words = (
            split(text) or [""] if counts else ()
            for text, counts in zip(answers, counts_B.tolist(), strict=True)
        )
        one_M, other_M, alike_M = _likeness(*_numbered(words, set_B))
        alike_M = torch.where(own_B[one_M] == own_B[other_M], 0, alike_M)
        others_B = segments.count(set_B, len(known), counts_B)[set_B]
        others_B = others_B - segments.count(own_B, uid_U.shape[0], counts_B)[own_B]
        agreement_B = segments.total(alike_M, one_M, counts_B.shape[0]) / others_B.clamp(min=1)
        mean = float(agreement_B.sum()) / max(int(counts_B.sum()), 1)
        shaped_B = self.agreement * agreement_B.to(reward_B) + self.label * reward_B
        return Result(shaped_B.where(scored_B, reward_B), metrics={"agreement/mean": mean})


def _whole(text: str) -> list[str]:
    """A text as one word, so that similarity is equality."""
    return [text.strip()]


def _numbered(words_B: Iterable[Sequence[str]], set_B: Tensor) -> tuple[Tensor, Tensor]:
    """The words of all answers [N], numbered within each set, and the number of words [B]."""
    known: list[dict[str, int]] = [{} for _ in range(segments.count_of(set_B))]
    numbers, sizes = [], []
    for words, place in zip(words_B, set_B.tolist(), strict=True):
        of_set = known[place]
        numbers += [of_set.setdefault(word, len(of_set)) for word in words]
        sizes.append(len(words))
    word_N, size_B = (torch.from_numpy(np.array(each, np.int64)) for each in (numbers, sizes))
    num_S = torch.tensor([len(of_set) for of_set in known], dtype=torch.int64)
    return word_N + segments.spread((num_S.cumsum(0) - num_S)[set_B], size_B), size_B


def _likeness(word_N: Tensor, size_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Answers [M], others [M] that they share a word with, and the similarity to these [M]."""
    num = size_B.shape[0]
    text_N = torch.repeat_interleave(torch.arange(num), size_B)
    often_N = torch.bincount(word_N)[word_N] > 1  # no two answers share the others
    one_M, other_M, words_M = _shared(word_N[often_N], text_N[often_N], num)
    pairs_N = often_N[1:] & often_N[:-1] & (text_N[1:] == text_N[:-1])
    pair_L, _ = segments.key_of(word_N[:-1][pairs_N], word_N[1:][pairs_N])
    one_L, other_L, pairs_L = _shared(pair_L, text_N[1:][pairs_N], num)
    place_L = torch.searchsorted(one_M * num + other_M, one_L * num + other_L)
    pairs_M = torch.zeros_like(words_M).index_copy_(0, place_L, pairs_L)
    size_M, other_size_M = size_B[one_M].double(), size_B[other_M].double()
    log_M = (words_M / size_M).log()
    both_M = (log_M + (pairs_M / (size_M - 1)).log()) / 2
    log_M = torch.where(size_M > 1, both_M, log_M)  # an answer of one word has no pair
    return one_M, other_M, (log_M + (1 - other_size_M / size_M).clamp(max=0)).exp()


def _shared(item_N: Tensor, text_N: Tensor, num: int) -> tuple[Tensor, Tensor, Tensor]:
    """Texts [M] with others [M], including themselves, and their number of shared items [M].

    An item that occurs several times is shared as often as it occurs in the text with fewer.
    """
    nth_N = segments.order_within(*segments.key_of(text_N, item_N))
    item_N, num_items = segments.key_of(item_N, nth_N)
    has = torch.sparse_coo_tensor(
        torch.stack([text_N, item_N]),
        torch.ones(item_N.shape, dtype=torch.float64),
        (num, max(num_items, 1)),
        check_invariants=True,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        common = torch.sparse.mm(has, has.t()).coalesce()
    return (*common.indices(), common.values())
