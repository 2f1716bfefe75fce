"""How long the advantages of a large step take, compared with copying their result once.

    python benchmarks/credit.py [--rollouts 65536] [--mean-length 512] [--repeats 7]

Draws ragged groups (1 to 16 rollouts) with ragged lengths, then runs the advantage chain of
each recipe on the flat batch and materialises a contiguous float32 tensor [T]. Every repeat times
all recipes and `clone()` of the result in turn, so the ratios compare like with like.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method import notation
from strop.method import part as parts

RECIPES = ("grpo", "dr_grpo", "rloo", "mc_grpo")


def make_batch(num_rollouts: int, mean_length: int) -> Batch:
    """A batch of finished rollouts; prompts of a few tokens, answers of 1 to 2 * mean - 1."""
    rng = torch.Generator().manual_seed(0)
    group_B = torch.sort(torch.randint(num_rollouts // 8, (num_rollouts,), generator=rng)).values
    unique, group_B = torch.unique(group_B, return_inverse=True)
    size_B = torch.randint(1, 2 * mean_length, (num_rollouts,), generator=rng) + 4
    rollout_T = torch.repeat_interleave(torch.arange(num_rollouts), size_B)
    start_B = torch.cumsum(size_B, 0) - size_B
    position_T = torch.arange(rollout_T.shape[0]) - start_B[rollout_T]
    reward_B = (torch.rand(num_rollouts, generator=rng) < 0.4).float()
    num_groups = unique.shape[0]
    return Batch(
        {
            "turn_T": rollout_T,
            "id_T": torch.zeros_like(rollout_T),
            "mask_T": position_T >= 4,
            "rollout_K": torch.arange(num_rollouts),
            "group_B": group_B,
            "reward_B": reward_B,
            "advantage_B": reward_B,
            "scored_B": torch.ones(num_rollouts, dtype=torch.bool),
            "uid_P": torch.arange(num_groups),
            "draw_P": torch.zeros(num_groups, dtype=torch.int64),
        }
    )


def advantages(name: str, batch: Batch) -> Tensor:
    """The recipe's advantage of every token, with no derived column cached from an earlier call."""
    batch = Batch(batch.columns, _in_order=True)
    for use in notation.recipe(name).algorithms[-1].advantage:
        batch = parts.write(batch, use, parts.call(use, batch))
    return batch["advantage_T"]


def seconds(work: Callable[[], Tensor]) -> float:
    """Wall seconds of one call; its result is freed before the next one."""
    started = time.perf_counter()
    result = work()
    spent = time.perf_counter() - started
    assert result.is_contiguous()
    assert result.dtype == torch.float32
    return spent


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=65536)
    parser.add_argument("--mean-length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    batch = make_batch(options.rollouts, options.mean_length)
    result = advantages("grpo", batch)
    print(
        f"{options.rollouts} rollouts, {result.shape[0]} tokens, {torch.get_num_threads()} threads"
    )
    times: dict[str, list[float]] = {name: [] for name in ("clone", *RECIPES)}
    for _ in range(options.repeats):
        times["clone"].append(seconds(result.clone))
        for name in RECIPES:
            times[name].append(seconds(lambda name=name: advantages(name, batch)))
    for name, spent in times.items():
        ratios = [t / c for t, c in zip(spent, times["clone"], strict=True)]
        print(
            f"{name:10s} {1e3 * statistics.median(spent):8.1f} ms   "
            f"{statistics.median(ratios):5.2f} x clone"
        )


if __name__ == "__main__":
    main()
