"""Random ragged batches with every column, for property tests."""

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import DERIVED, Batch, level_of
from strop.catalogue import catalogue

NUM_STEPS = 10


def ragged_batch(
    seed: int,
    group_sizes: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float64,
    max_turns: int = 3,
) -> Batch:
    """Groups of 1 to 4 rollouts that do not lie together, of 1 to 3 turns of 1 to 5 tokens.

    One group has equal rewards, about one rollout in eight has no score; the first token of a
    rollout, and some others, are not the policy's.
    """
    rng = torch.Generator().manual_seed(seed)

    def randint(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng)

    if group_sizes is None:
        group_sizes = tuple(randint(1, 5, int(randint(2, 6, 1))).tolist())
    group_B = torch.repeat_interleave(torch.arange(len(group_sizes)), torch.tensor(group_sizes))
    group_B = group_B[torch.randperm(group_B.shape[0], generator=rng)]
    num = group_B.shape[0]
    turns_B = randint(1, max_turns + 1, num)
    rollout_K = torch.repeat_interleave(torch.arange(num), turns_B)
    tokens_K = randint(1, 6, rollout_K.shape[0])
    turn_T = torch.repeat_interleave(torch.arange(rollout_K.shape[0]), tokens_K)
    rollout_T = rollout_K[turn_T]
    mask_T = randint(0, 5, turn_T.shape[0]) > 0
    mask_T[1:] &= rollout_T[1:] == rollout_T[:-1]
    mask_T[:1] = False
    count_P = len(group_sizes)
    columns = {
        "turn_T": turn_T, "rollout_K": rollout_K, "group_B": group_B, "mask_T": mask_T,
        "uid_P": torch.randperm(1000, generator=rng)[:count_P],
        "draw_P": torch.zeros(count_P, dtype=torch.int64),
        "rollout_uid_B": torch.arange(num), "parent_B": torch.full((num,), -1),
        "fork_at_B": torch.full((num,), -1), "sequence_T": torch.zeros_like(turn_T),
        "origin_T": torch.where(mask_T, 0, 1), "scored_B": randint(0, 8, num) > 0,
        "step": torch.tensor(3), "num_steps": torch.tensor(NUM_STEPS),
        "max_length": torch.tensor(8),
        "preferred_B": 1 - 2 * (segments.order_within(group_B, len(group_sizes)) % 2),
    }  # fmt: skip
    rows = {"T": turn_T.shape[0], "K": rollout_K.shape[0], "B": num, "P": count_P}
    for name, column in catalogue.columns().items():
        made_elsewhere = name in (*columns, *DERIVED) or column.numbered or name.endswith("_TV")
        if level_of(name) and not made_elsewhere:
            shape = (rows[level_of(name)],) + ((2,) if name.endswith("_BM") else ())
            columns[name] = column.drawn(shape, rng, dtype)
    noise_T = torch.randn(mask_T.shape, generator=rng, dtype=dtype)
    columns["logp_T"] = columns["logp_old_T"] + 0.2 * noise_T
    columns["gradient_T"] = columns["gradient_T"] & mask_T
    columns["denominator_T"] = (columns["denominator_T"] & mask_T) | columns["gradient_T"]
    columns["reward_B"] = torch.where(group_B == 0, 1, columns["reward_B"].round())
    columns["outcome_B"] = columns["reward_B"]
    return Batch(columns)


def with_noise_outside(batch: Batch, value: float = float("nan")) -> Batch:
    """The batch with `value` in every float token column outside the mask.

    Columns over the vocabulary are left out: they exist for policy tokens alone.
    """
    mask_T = batch["mask_T"]
    return batch.set(
        **{
            name: torch.where(mask_T, column, value)
            for name, column in batch.columns.items()
            if level_of(name) == "T" and column.is_floating_point() and column.dim() == 1
        }
    )


def with_unscored(batch: Batch, *rows: int) -> tuple[Batch, Batch]:
    """The batch with these rollouts unscored, as in a run, and with other numbers in all of theirs.

    `prior_B` is the prompt's number, which does not depend on what came of a rollout.
    """
    scored_B = torch.ones(batch.size("B"), dtype=torch.bool)
    scored_B[list(rows)] = False
    scored_T = scored_B[batch["rollout_T"]]
    taken = {n: batch[n] & scored_T for n in ("gradient_T", "denominator_T") if n in batch}
    if "slot_B" in batch:
        taken["slot_B"] = torch.where(scored_B, batch["slot_B"], -1)
    batch = batch.set(scored_B=scored_B, **taken)
    owner = {"B": "index_B", "K": "rollout_K", "T": "rollout_T"}
    changed = {}
    for name, column in batch.columns.items():
        level = level_of(name)
        if level in owner and column.is_floating_point() and name != "prior_B":
            if name.startswith(("reward", "outcome", "return", "advantage", "made_advantage")):
                other = column * 5 - 7
            else:
                other = column * 0.5 if name.startswith("log") else column * 0.7 + 0.1
            scored = scored_B[batch[owner[level]]].view(-1, *[1] * (column.dim() - 1))
            changed[name] = torch.where(scored, column, other)
    return batch, batch.set(**changed)


def copies(batch: Batch, times: int) -> Batch:
    """Every rollout so many times, in blocks."""
    return batch.take(torch.arange(batch.size("B")).repeat(times))
