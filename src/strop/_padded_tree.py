"""A tree of answers at the padded door: nested lists of the leaves' scores."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from strop.batch import Batch
from strop.errors import UserError

DEEPEST = 60  # levels of a tree
Path = tuple[int, ...]


def leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, float]]:
    """Each leaf's score with the branches that lead to it. Raises UserError."""
    if isinstance(tree, bool) or not isinstance(tree, int | float | list | tuple):
        raise UserError(f"tree must be nested lists of scores, there is a {type(tree).__name__}")
    if isinstance(tree, int | float):
        yield path, float(tree)
        return
    if not tree or len(path) >= DEEPEST:
        raise UserError(f"tree has a node without children, or more than {DEEPEST} levels")
    for branch, child in enumerate(tree):
        yield from leaves_of(child, (*path, branch))


def batch_of(leaves: Sequence[tuple[Path, float]]) -> Batch:
    """A rollout for each leaf, a turn of one token for each edge on the way to it."""
    nodes = sorted({path[:depth] for path, _ in leaves for depth in range(len(path) + 1)})
    key = {node: number for number, node in enumerate(nodes)}
    edges = [(row, path[:depth]) for row, (path, _) in enumerate(leaves)
             for depth in range(len(path))]  # fmt: skip
    num = len(leaves)
    score_B = torch.tensor([score for _, score in leaves], dtype=torch.float64)
    scored_B = ~score_B.isnan()
    zero_B = torch.zeros(num, dtype=torch.int64)
    return Batch({
        "turn_T": torch.arange(len(edges)), "mask_T": torch.ones(len(edges), dtype=torch.bool),
        "rollout_K": torch.tensor([row for row, _ in edges], dtype=torch.int64),
        "index_K": torch.tensor([len(node) for _, node in edges], dtype=torch.int64),
        "state_K": torch.tensor([key[node] for _, node in edges], dtype=torch.int64),
        "group_B": zero_B, "uid_P": zero_B[:1], "draw_P": zero_B[:1],
        "reward_B": score_B.nan_to_num(), "outcome_B": score_B.nan_to_num(), "scored_B": scored_B,
    })  # fmt: skip


def by_level(leaves: Sequence[tuple[Path, float]], credit_T: torch.Tensor) -> list[torch.Tensor]:
    """What every edge earned, a tensor for each level, edges in the tree's order."""
    found: dict[Path, float] = {}
    numbers = iter(credit_T.tolist())
    for path, _ in leaves:
        for depth in range(len(path)):
            number = next(numbers)
            found.setdefault(path[: depth + 1], number)
    levels: list[list[float]] = [[] for _ in range(max(map(len, found), default=0))]
    for path in sorted(found):
        levels[len(path) - 1].append(found[path])
    return [torch.tensor(level, dtype=torch.float64) for level in levels]
