"""Contexts laid out as a forest: each distinct prefix of tokens is one node, computed once.

Nodes lie in preorder, so all that follows a node is the run of nodes up to its `end`, and one rule
says what a token sees: node q sees node k when k <= q < end of k.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch.pack import to_padded

NONE = -1  # in place of a token, right of a context's last one


@dataclass(frozen=True)
class Rows:
    """Contexts in an order in which those that begin alike lie together.

    id_CL: their tokens, and NONE right of them. order_C: their numbers as they were given. size_C:
    of each. shared_C: tokens that each begins with like the one before it.
    """

    id_CL: Tensor
    order_C: Tensor
    size_C: Tensor
    shared_C: Tensor

    @property
    def start_C(self) -> Tensor:
        """Distinct prefixes of the rows before each."""
        new_C = self.size_C - self.shared_C
        return new_C.cumsum(0) - new_C

    @property
    def num_nodes(self) -> int:
        """Distinct prefixes of all rows."""
        return int((self.size_C - self.shared_C).sum())

    def depth_of(self, node_N: Tensor) -> Tensor:
        """Positions [N] of nodes."""
        start_C = self.start_C
        row_N = torch.searchsorted(start_C, node_N, right=True) - 1
        return self.shared_C[row_N] + node_N - start_C[row_N]


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


def rows_of(id_T: Tensor, context_T: Tensor, num: int) -> Rows:
    """The rows of `num` contexts, whose tokens lie together in `context_T`'s order."""
    id_CL = to_padded(id_T.int(), context_T, num, fill=NONE)
    order_C = _sorted(id_CL)
    id_CL = id_CL[order_C]
    return Rows(id_CL, order_C, (id_CL != NONE).sum(1), begun_alike(id_CL))


def plant(rows: Rows) -> Forest:
    """The forest of the rows' prefixes."""
    id_CL, shared_C1, start_C, total = (
        rows.id_CL,
        rows.shared_C[:, None],
        rows.start_C,
        rows.num_nodes,
    )
    position_L = torch.arange(id_CL.shape[1], device=id_CL.device)
    breaks_CL = position_L >= shared_C1
    new_CL = breaks_CL & (id_CL != NONE)
    # The context that brought the token in: the last one up to here that differs before or at it.
    row_C = torch.arange(id_CL.shape[0], device=id_CL.device)
    source_CL = torch.where(breaks_CL, row_C[:, None], 0).cummax(0).values
    node_CL = (start_C - rows.shared_C)[source_CL] + position_L
    # All nodes up to the next context that differs before or at a token begin with it.
    later_CL = torch.where(breaks_CL, start_C[:, None], total).flip(0).cummin(0).values.flip(0)
    end_CL = torch.cat([later_CL[1:], later_CL.new_full((1, later_CL.shape[1]), total)])
    place_C = torch.empty_like(rows.order_C)
    place_C[rows.order_C] = row_C
    return Forest(
        id_CL[new_CL].long(),
        position_L.expand_as(id_CL)[new_CL],
        end_CL[new_CL],
        rows.order_C[:, None].expand_as(id_CL)[new_CL],
        node_CL[place_C],
    )


def begun_alike(id_CL: Tensor) -> Tensor:
    """Tokens [C] that a row begins with like the row before it; 0 for the first."""
    same_CL = (id_CL[1:] == id_CL[:-1]) & (id_CL[1:] != NONE)
    ends = torch.nn.functional.pad(same_CL, (0, 1), value=False)
    shared = (~ends).byte().argmax(1)  # the first place that differs
    return torch.cat([shared.new_zeros(min(1, id_CL.shape[0])), shared])


def _sorted(id_CL: Tensor) -> Tensor:
    """An order [C] of the rows in which those with a common prefix lie together."""
    rows = id_CL.cpu().numpy()
    texts = [row.tobytes() for row in rows]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    return torch.tensor(order, dtype=torch.long, device=id_CL.device)
