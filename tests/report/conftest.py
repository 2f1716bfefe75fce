"""A synthetic run folder."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MakeRun = Callable[..., Path]
CONFIG = 'recipe = "grpo"\nseed = 1\n'


def metrics(step: int, last: int) -> dict[str, Any]:
    """One line as training writes it: rising reward, falling entropy, an evaluation every ten."""
    done = step / last
    wave = 0.03 * math.sin(2.3 * step)
    line: dict[str, Any] = {
        "step": step,
        "reward": 0.2 + 0.6 * done + wave,
        "reward_std": 0.4,
        "frac_reward_zero_std": 0.3 + 0.2 * done,
        "completions/mean_length": 20 + 10 * done + 30 * wave,
        "completions/min_length": 8,
        "completions/max_length": 48,
        "completions/clipped_ratio": 0.1 * (1 - done),
        "entropy": 1.2 * math.exp(-2 * done) + 0.35 + wave,
        "entropy_control/low": 0.5 - 0.1 * done,
        "entropy_control/high": 0.9 - 0.1 * done,
        "entropy_control/kept": 0.8,
        "kl": 0.02 * done,
        "clip_ratio/region_mean": 0.01 + abs(wave) / 10,
        "sampling/sampling_logp_difference/mean": 0.002,
        "grad_norm": 0.6 + wave,
        "learning_rate": 1e-4,
        "step_time": 1.5,
        "num_tokens": 4000 * step,
        "groups/frac_all_0": 0.3 * (1 - done),
        "groups/frac_mixed": 0.7 - 0.2 * done,
        "groups/frac_all_1": 0.5 * done,
        "timing_s/rollout": 0.9,
        "timing_s/reward": 0.02,
        "timing_s/advantage": 0.01,
        "timing_s/update": 0.5 + wave,
        "perf/tokens_per_s": 2600,
        "rewards/exact/mean": 0.2 + 0.5 * done,
        "rewards/format/mean": 0.6 + 0.3 * done,
    }
    if step % 10 == 0 or step == last:
        line["timing_s/eval"] = 0.8
        for k, start in (("pass@1", 0.2), ("pass@8", 0.45)):
            value = start + 0.4 * done
            line |= {f"eval/countdown/{k}": value, f"eval/countdown/{k}/low": value - 0.06}
            line |= {f"eval/countdown/{k}/high": value + 0.06}
    return line


def rollouts(step: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "prompt": "Make 21 from 3, 5, 7.",
            "completion": f"<answer>{'3 * 7' if i == 1 else '3 + 5 * ' + str(i)}</answer> & so on",
            "reward": float(i == 1) if i < 3 else 0.1,
            "advantage": (i == 1) - 0.25,
            "truncated": i == 3,
        }
        for i in range(4)
    ]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run(name, num_steps) writes a run's folder and returns it."""

    def make(
        name: str = "grpo_tiny", num_steps: int = 40, config: str = 'recipe = "grpo"\n'
    ) -> Path:
        folder = tmp_path / name
        (folder / "rollouts").mkdir(parents=True)
        lines = [json.dumps(metrics(step, num_steps)) + "\n" for step in range(1, num_steps + 1)]
        (folder / "metrics.jsonl").write_text("".join(lines))
        (folder / "config.toml").write_text(config)
        for step in range(max(1, num_steps - 11), num_steps + 1):
            table = pa.Table.from_pylist(rollouts(step))
            pq.write_table(table, folder / "rollouts" / f"step_{step}.parquet")
        return folder

    return make
