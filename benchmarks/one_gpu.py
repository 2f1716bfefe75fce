"""`strop train` on one GPU: seconds, tokens/s and memory of a step, compared with the estimate.

    python benchmarks/one_gpu.py [--settings full,lora,checkpointing,long,shared,apart] [--steps 4]

A random Qwen3 with 0.6 billion weights (28 layers, 1,024 wide, a vocabulary of 151,936) in bfloat16
answers 8 prompts of 8 tokens 16 times a step, 256 tokens each; `long` has 2 prompts and 1,024
tokens. `shared` and `apart` have prompts of 512 tokens and answers of 64; a prompt is computed once
for all its answers, or once for each. For each setting the output has the median step after the
first with its shares, tokens/s, the peak memory that torch took on the GPU, and the estimate of
`strop doctor`.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from command_line import some_of
from doctor_memory import Shape, build, estimated
from processes import train

from strop.tracking.metrics_file import read_metrics

GIB = 2**30
SHAPE = Shape(hidden=1024, layers=28, heads=16, kv_heads=8, head_size=128, intermediate=3072,
              vocabulary=151_936)  # fmt: skip
COMMON = (
    "model.device=cuda", "model.dtype=bfloat16", "training.lr=1e-6", "training.save_every=0",
    "evaluation.every=0",
)  # fmt: skip
SHORT = ("rollout.max_tokens=256", "sampling.num_prompts=8", "sampling.num_rollouts=16")
LONG_PROMPTS = ("rollout.max_tokens=64", "sampling.num_prompts=8", "sampling.num_rollouts=16")
SETTINGS = {
    "full": SHORT,
    "lora": (*SHORT, "model.lora_rank=16", "training.lr=1e-5"),
    "checkpointing": (*SHORT, "model.gradient_checkpointing=true"),
    "shared": (*LONG_PROMPTS, "training.share_prefixes=on"),
    "apart": (*LONG_PROMPTS, "training.share_prefixes=off"),
    "long": ("rollout.max_tokens=1024", "sampling.num_prompts=2", "sampling.num_rollouts=16"),
}
STAGES = "timing_s/"


def line_of(name: str, words: list[str], folder: Path) -> str:
    """Measures one setting, and estimates its memory."""
    steps = read_metrics(train(folder / name, *words))
    later = steps[1:]
    stages = sorted(key for key in later[-1] if key.startswith(STAGES))
    parts = {key: statistics.median(step.get(key, 0.0) for step in later) for key in stages}
    seconds = statistics.median(step["step_time"] for step in later)
    speed = statistics.median(step["perf/tokens_per_s"] for step in later)
    peak = max(step["perf/peak_mem_gb"] for step in steps)
    expected = estimated([word for word in words if not word.startswith("training.steps")])[0] / GIB
    shares = ", ".join(f"{key.partition('/')[2]} {value:.2f}" for key, value in parts.items())
    return (
        f"{name}: {seconds:.2f} s a step ({shares}), {speed:.0f} tokens/s, peak {peak:.1f} GiB, "
        f"estimate {expected:.1f} GiB, ratio {expected / peak:.2f}"
    )


def main() -> None:
    """Print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=some_of(SETTINGS), default=",".join(SETTINGS))
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for tokens in (8, 512):
            build(SHAPE, folder / f"model{tokens}", tokens)
        for name in options.settings:
            model = folder / f"model{512 if name in ('shared', 'apart') else 8}"
            files = ["--data", f"{model}/prompts.jsonl", "--reward", f"{model}/rewards.py:even"]
            words = ["--model", str(model), *files, *COMMON, *SETTINGS[name]]
            print(line_of(name, [*words, f"training.steps={options.steps}"], folder), flush=True)


if __name__ == "__main__":
    main()
