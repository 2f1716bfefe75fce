"""Log-probabilities over the part of the vocabulary that the rules of a draw left.

With S the kept set of a token:

    logp = z_id - log sum_{j in S} exp z_j        d logp / dz_j = [j = id] - q_j
    q_j  = exp z_j / sum_{k in S} exp z_k on S, 0 elsewhere

S is fixed at the draw and does not follow the policy. All other columns of the head are over the
whole vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Kept(NamedTuple):
    """Kept sets of tokens [N]: entries first_N to first_N + number_N of `ids`; number <= 0: all."""

    ids: Tensor  # int32, of all these sets, and perhaps of others
    first_N: Tensor
    number_N: Tensor

    def rows(self, rows: slice) -> "Kept | None":
        """The sets of some tokens; None if no token of them has a cut."""
        number_C = self.number_N[rows]
        if not bool((number_C > 0).any()):
            return None
        return Kept(self.ids, self.first_N[rows], number_C)

    def padded(self) -> tuple[Tensor, Tensor]:
        """Ids [N, largest], padded with 0, and a mask of the valid ones."""
        place_S = torch.arange(int(self.number_N.max()), device=self.ids.device)
        inside_NS = place_S < self.number_N[:, None]
        at_NS = torch.where(inside_NS, self.first_N[:, None] + place_S, 0)
        return torch.where(inside_NS, self.ids[at_NS], 0).long(), inside_NS


class Restricted(NamedTuple):
    """A chunk's log-probabilities over the kept sets, the sets, and q of each of their tokens.

    Where nothing was cut, `cut_C` is false, the log-probability is meaningless, and q is 0.
    """

    logp_C: Tensor
    cut_C: Tensor
    index_CS: Tensor
    share_CS: Tensor


def restrict(logits_CV: Tensor, picked_C: Tensor, kept: Kept) -> Restricted:
    """Normalise a chunk's logits, and those of its drawn tokens, over the kept sets."""
    index_CS, inside_CS = kept.padded()
    cut_C = kept.number_N > 0
    kept_CS = logits_CV.gather(1, index_CS).masked_fill_(~inside_CS, -torch.inf)
    most_C1 = torch.where(cut_C[:, None], kept_CS.amax(-1, keepdim=True), 0)
    weight_CS = kept_CS.sub_(most_C1).exp_()
    sum_C1 = torch.where(cut_C[:, None], weight_CS.sum(-1, keepdim=True), 1)
    logp_C = picked_C - (most_C1 + sum_C1.log()).squeeze(1)
    return Restricted(logp_C, cut_C, index_CS, weight_CS.div_(sum_C1))
