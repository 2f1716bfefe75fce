"""Columns of a synthetic step, in the form in which a run writes its tokens."""

from typing import Any

import numpy as np
import pyarrow as pa


def lists(values: Any, size: int) -> pa.Array:
    """Lists of `size` values each."""
    values = pa.array(values)
    return pa.ListArray.from_arrays(pa.array(range(0, len(values) + 1, size), pa.int32()), values)


def token_columns(num: int, size: int, group: int, texts: list[str]) -> dict[str, Any]:
    """Columns as a run writes them, of answers to two prompt tokens. In a group the answers are
    alike for four tokens; every other one is right, and a token in seven is clipped.
    """
    rng = np.random.default_rng(0)
    total = num * size
    place, rollout = np.tile(np.arange(size), num), np.repeat(np.arange(num), size)
    ids = np.where(place < 6, place, rng.integers(0, len(texts), total)).astype(np.int32)
    mask = place >= 2
    sign = np.where(rollout % 2 == 0, 1.0, -1.0).astype(np.float32)
    logp = -rng.exponential(0.6, total).astype(np.float32)
    void = ~mask
    floats = {
        "logp_behavior_T": logp, "logp_old_T": logp, "logp_T": logp,
        "entropy_old_T": rng.exponential(0.8, total).astype(np.float32),
        "advantage/1 subtract_group_mean": 0.5 * sign, "advantage/2 spread_evenly": sign,
        "advantage_T": sign, "log_ratio_T": 0 * sign,
        "last_log_ratio_T": rng.normal(0, 0.1, total).astype(np.float32),
        "share_T": np.full(total, 1e-5, np.float32), "gate_T": np.ones(total, np.float32),
        "weight_T": 1e-5 * sign,
    }  # fmt: skip
    whole = {
        "id_T": ids, "mask_T": mask, "origin_T": void.astype(np.int32), "gradient_T": mask,
        "version_T": np.zeros(total, np.int32), "turn_T": np.zeros(total, np.int32),
        "updates_T": np.full(total, 2, np.int32),
        "clipped_T": (mask & (place % 7 == 0)).astype(np.int32),
    }  # fmt: skip
    return {
        "row": np.arange(num), "group_B": np.arange(num) // group,
        "parent_B": np.full(num, -1), "fork_at_B": np.full(num, -1),
        "reward_B": (np.arange(num) % 2 == 0).astype(np.float32),
        "text_T": lists(np.array(texts, dtype=object)[ids % len(texts)], size),
        **{name: lists(values, size) for name, values in whole.items()},
        **{name: lists(pa.array(v, mask=void), size) for name, v in floats.items()},
    }  # fmt: skip


def rollout_rows(num: int, group: int) -> dict[str, list[Any]]:
    """The same rollouts as the file of rollouts has them."""
    return {
        "step": [3] * num, "uid": [n // group for n in range(num)], "draw": [0] * num,
        "prompt": [f"puzzle {n // group}" for n in range(num)], "completion": ["..."] * num,
        "reward": [float(n % 2 == 0) for n in range(num)],
        "reward/right": [float(n % 2 == 0) for n in range(num)],
        "advantage": [1.0 if n % 2 == 0 else -1.0 for n in range(num)],
        "scored": [True] * num, "truncated": [False] * num, "gradient": [True] * num,
        "length": [10] * num,
    }  # fmt: skip
