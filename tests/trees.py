"""Trees of answers given as nested lists of leaf scores."""

import torch
from builders import flat_batch

from strop.batch.batch import Batch


def tree_batch(trees, tokens=2):
    """Nested lists of leaf scores (None: no score) as a batch; `tokens` tokens an edge.

    Also the paths of every rollout as tuples of child numbers.
    """
    paths, scores, groups = [], [], []

    def walk(node, path, group):
        if isinstance(node, list):
            for number, child in enumerate(node):
                walk(child, (*path, number), group)
        else:
            paths.append(path)
            scores.append(node)
            groups.append(group)

    for group, tree in enumerate(trees):
        walk(tree, (), group)
    keys = {}
    state, rollout, index, turn, parents, forks = [], [], [], [], [], []
    owner = {}
    for row, (path, group) in enumerate(zip(paths, groups, strict=True)):
        own = next(k for k in range(len(path)) if (group, path[: k + 1]) not in owner)
        parents.append(owner[group, path[:own]] if own else -1)
        forks.append(own * tokens if own else -1)
        for k in range(len(path)):
            owner.setdefault((group, path[: k + 1]), row)
            state.append(keys.setdefault((group, path[:k]) if k else 0, len(keys)))
            turn += [len(rollout)] * tokens
            rollout.append(row)
            index.append(k)
    reward = [0.0 if score is None else float(score) for score in scores]
    base = flat_batch([1] * len(paths), groups)
    batch = Batch(
        {
            **{name: base[name] for name in ("group_B", "uid_P", "draw_P")},
            "turn_T": torch.tensor(turn), "mask_T": torch.ones(len(turn), dtype=torch.bool),
            "rollout_K": torch.tensor(rollout), "index_K": torch.tensor(index),
            "state_K": torch.tensor(state), "reward_B": torch.tensor(reward, dtype=torch.float64),
            "scored_B": torch.tensor([score is not None for score in scores]),
            "parent_B": torch.tensor(parents), "fork_at_B": torch.tensor(forks),
        }
    )  # fmt: skip
    return batch, [(group, path) for path, group in zip(paths, groups, strict=True)]


def value(node):
    """V of a nested list; None without a score."""
    if not isinstance(node, list):
        return node
    below = [v for v in map(value, node) if v is not None]
    return sum(below) / len(below) if below else None


def follow(tree, path):
    for number in path:
        tree = tree[number]
    return tree
