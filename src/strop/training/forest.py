"""Contexts laid out as a forest: each distinct prefix of tokens is one node, computed once.

Nodes lie in preorder, so all that follows a node is the run of nodes up to its `end`, and one rule
says what a token sees: node q sees node k when k <= q < end of k.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.training.pack import to_padded

NONE = -1  # in place of a token, right of a context's last one


@dataclass(frozen=True)
class Forest:
    """The distinct prefixes of `C` contexts, and where each context's tokens are among them.

    id_N: token that a node adds to its prefix. depth_N: its position there, from 0. end_N: the node
    after the last one that it is a prefix of. node_CL: node of a context's token at a position.
    context_N: a context that passes through the node.
    """

    id_N: Tensor
    depth_N: Tensor
    end_N: Tensor
    context_N: Tensor
    node_CL: Tensor

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self.id_N.shape[0]


def plant(id_T: Tensor, context_T: Tensor, num: int) -> Forest:
    """The forest of `num` contexts, whose tokens lie together in `context_T`'s order."""
    id_CL = to_padded(id_T, context_T, num, fill=NONE)
    order_C = _sorted(id_CL)
    id_CL = id_CL[order_C]
    known_CL = id_CL != NONE
    shared_C = _shared(id_CL)
    position_L = torch.arange(id_CL.shape[1], device=id_CL.device)
    new_CL = known_CL & (position_L >= shared_C[:, None])
    new_C = new_CL.sum(1)
    start_C = new_C.cumsum(0) - new_C
    total = int(new_C.sum())
    # The context that brought the token in: the last one up to here that differs before or at it.
    row_C = torch.arange(num, device=id_CL.device)[:, None]
    breaks_CL = position_L >= shared_C[:, None]
    source_CL = torch.where(breaks_CL, row_C, 0).cummax(0).values
    node_CL = (start_C - shared_C)[source_CL] + position_L
    # All nodes up to the next context that differs before or at a token begin with it.
    later_CL = torch.where(breaks_CL, start_C[:, None], total).flip(0).cummin(0).values.flip(0)
    end_CL = torch.cat([later_CL[1:], later_CL.new_full((1, later_CL.shape[1]), total)])
    place_C = torch.empty_like(order_C)
    place_C[order_C] = row_C[:, 0]
    return Forest(
        id_CL[new_CL],
        position_L.expand_as(id_CL)[new_CL],
        end_CL[new_CL],
        order_C[:, None].expand_as(id_CL)[new_CL],
        node_CL[place_C],
    )


def _sorted(id_CL: Tensor) -> Tensor:
    """An order [C] of the rows in which those with a common prefix lie together."""
    rows = id_CL.cpu().numpy()
    texts = [row.tobytes() for row in rows]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    return torch.tensor(order, dtype=torch.long, device=id_CL.device)


def _shared(id_CL: Tensor) -> Tensor:
    """Tokens [C] that a row begins with like the row before it."""
    same_CL = (id_CL[1:] == id_CL[:-1]) & (id_CL[1:] != NONE)
    shared = same_CL.long().cumprod(1).sum(1)
    return torch.cat([shared.new_zeros(min(1, id_CL.shape[0])), shared])
