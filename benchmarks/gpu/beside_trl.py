"""A whole step of GRPO in strop and in TRL's GRPOTrainer, on one GPU.

    pip install trl==1.16.0        # besides strop; also liger-kernel, for `trl-liger`
    python benchmarks/gpu/beside_trl.py [--cases short,long] [--sides strop,trl,trl-liger]
        [--steps 3] [--limit 170] [--out FILE.csv]
    python benchmarks/gpu/beside_trl.py --device cpu --shape tiny        # tries the program

Both train the same random Qwen3 with 0.6 billion weights in bfloat16 on the same prompts of 8
tokens with the same reward, one update a step by AdamW, no penalty towards a reference:

    short   8 prompts, 16 answers each of 256 tokens
    long    2 prompts, 16 answers each of 1,024 tokens

TRL runs at its fastest settings without a server: transformers' `generate`, weights and optimiser
in bfloat16, no reporting, no gradient checkpointing, and micro-batches as large as the memory
allows (--tokens padded tokens at first, halved when memory runs out). `trl-liger` adds Liger's
layer kernels; `trl-static` a cache of fixed size, with which transformers compiles the decoding;
`trl-batching` transformers' continuous batching. strop runs as always: metrics, Parquet of every
step, rewards in another process, float32 masters of the weights.

Every side is a process of its own, one after the other; its first step is left out. A side that
fails prints its error, and the others continue. --limit bounds the seconds of a case: the remaining
sides share the remaining time, and a side starts no third step after its share is used up. The
output has the median seconds of a step, those of generating and updating (the rest is rewards,
metrics, files), the peak of the GPU's memory, and the ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import train_vs_trl
from command_line import device_here, some_of
from doctor_memory import Shape, build
from one_gpu import SHAPE
from train_vs_trl import Case

from strop.support.tables import write_rows

SHAPES = {
    "full": SHAPE,
    "tiny": Shape(vocabulary=512, hidden=64, intermediate=128, layers=2, heads=2, kv_heads=2),
}
WORK = {  # prompts, answers per prompt, tokens per answer; the tiny shape has an eighth of the last
    "short": (8, 16, 256),
    "long": (2, 16, 1024),
}
LEARNING_RATE = 1e-6
PROMPT = 8
SPARE = 60.0  # seconds after its share at which a side is killed
TRL = {
    "trl": {},
    "trl-liger": {"use_liger_kernel": True},
    "trl-static": {"cache_implementation": "static"},
    "trl-batching": {"use_transformers_continuous_batching": True},
}


def case_of(name: str, shape: str) -> Case:
    """The work, in the form that `train_vs_trl` takes."""
    prompts, rollouts, tokens = WORK[name]
    if shape == "tiny":
        tokens //= 8
    return Case(SHAPES[shape].vocabulary, tokens, prompts=prompts, rollouts=rollouts)


def even(prompts: Any, completions: list[str], **columns: Any) -> list[float]:
    """Share of even characters, the reward of the file that `build` writes."""
    return [sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1) for text in completions]


def run_strop(case: Case, folder: Path, steps: int, device: str, until: float) -> dict[str, Any]:
    """Runs steps of strop's loop."""
    files = (str(folder / "prompts.jsonl"),)
    functions = (f"{folder}/rewards.py:even",)
    sections = train_vs_trl.strop_sections(case, folder, steps, "bfloat16", files, functions)
    sections["model"]["device"] = device
    sections["training"] |= {"lr": LEARNING_RATE, "token_budget": 0}
    times, metrics = train_vs_trl.strop_steps(sections, folder, until)
    return {
        "steps": [gap.elapsed for gap in train_vs_trl.gaps(times)],
        "generating": [found["timing_s/rollout"] for found in metrics],
        "updating": [found["timing_s/update"] for found in metrics],
        "tokens": [found["completions/mean_length"] for found in metrics],
    }


def run_trl(
    case: Case, folder: Path, steps: int, device: str, until: float, at_once: int, side: str
) -> dict[str, Any]:
    """Runs steps of TRL's trainer, with `at_once` answers per micro-batch."""
    options = train_vs_trl.trl_options(case, steps, "bfloat16", at_once)
    options |= {"learning_rate": LEARNING_RATE, "use_cpu": device == "cpu", **TRL[side]}
    lines = (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    data = [json.loads(line)["prompt"] for line in lines]
    spent: dict[str, list[float]] = {"_generate": [], "_generate_and_score_completions": []}

    def timed(trainer: Any) -> None:
        for name, seconds in spent.items():
            setattr(trainer, name, stopped(getattr(trainer, name), seconds))

    many = data * (1 + case.prompts * steps // len(data))
    times, lengths = train_vs_trl.trl_steps(folder, options, many, even, until, timed)
    whole = [gap.elapsed for gap in train_vs_trl.gaps(times)]
    rollouts = spent["_generate_and_score_completions"]
    return {
        "steps": whole,
        "generating": spent["_generate"],
        "updating": [step - rollout for step, rollout in zip(whole, rollouts, strict=True)],
        "tokens": lengths,
    }


def stopped(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The function, which appends the time of each of its calls to `seconds`."""

    def called(*args: Any, **named: Any) -> Any:
        began = train_vs_trl.now().elapsed
        found = call(*args, **named)
        seconds.append(train_vs_trl.now().elapsed - began)
        return found

    return called


def work(side: str, case: Case, options: argparse.Namespace) -> None:
    """Run one side in this process; the last printed line has its numbers."""
    until = time.perf_counter() + options.seconds
    shared = (case, options.folder, options.steps + 1, options.device, until)
    if side == "strop":
        found = run_strop(*shared)
    else:
        found = run_trl(*shared, options.at_once, side)
    on_gpu = options.device != "cpu"
    peak = torch.cuda.max_memory_allocated(options.device) / 2**30 if on_gpu else float("nan")
    later = {key: statistics.median(values[1:]) for key, values in found.items()}
    print(json.dumps({**later, "peak_gib": peak, "measured": len(found["steps"]) - 1}))


def measure(
    side: str, name: str, folder: Path, seconds: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Run one fresh process; halve micro-batches when memory runs out. Raises RuntimeError."""
    case, began = case_of(name, options.shape), time.monotonic()
    at_once = case.answers
    while at_once > 1 and at_once * (PROMPT + case.max_tokens) > options.tokens:
        at_once //= 2
    while True:
        left = seconds - (time.monotonic() - began)
        command = [
            sys.executable, __file__, "--worker", side, "--cases", name, "--folder", str(folder),
            "--steps", str(options.steps), "--device", options.device, "--shape", options.shape,
            "--seconds", str(left), "--at-once", str(at_once),
        ]  # fmt: skip
        environment = {"HF_HUB_OFFLINE": "1", **os.environ}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=environment,
                timeout=left + SPARE,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no two steps in {left + SPARE:.0f} s") from error
        if done.returncode == 0:
            found = json.loads(done.stdout.strip().splitlines()[-1])
            return {**found, "at_once": "" if side == "strop" else at_once}
        if "out of memory" not in done.stderr or side == "strop" or at_once == 1:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise RuntimeError("\n".join(lines[-options.lines :]))
        at_once //= 2


def compare(name: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print one line per side, and the ratios."""
    sides, rows = options.sides, list[dict[str, Any]]()
    last = time.monotonic() + options.limit
    for place, side in enumerate(sides):
        share = (last - time.monotonic()) / (len(sides) - place)
        try:
            found = measure(side, name, folder, share, options)
        except RuntimeError as error:
            print(f"{name:5s} {side} failed: {error}", flush=True)
            continue
        rows.append({"case": name, "side": side, **found})
        apart = "" if side == "strop" else f", {found['at_once']} answers a pass"
        print(
            f"{name:5s} {side:12s} {found['steps']:.2f} s a step: generating "
            f"{found['generating']:.2f}, updating {found['updating']:.2f}; {found['tokens']:.0f} "
            f"tokens an answer, peak {found['peak_gib']:.1f} GiB, median of {found['measured']}"
            f"{apart}",
            flush=True,
        )
    ours = next((row for row in rows if row["side"] == "strop"), None)
    for row in rows:
        if ours is not None and row is not ours:
            ratios = {key: row[key] / ours[key] for key in ("steps", "generating", "updating")}
            print(
                f"{name:5s} strop is {ratios['steps']:.2f} times as fast as {row['side']}, "
                f"generating {ratios['generating']:.2f}, updating {ratios['updating']:.2f}",
                flush=True,
            )
    return rows


def main() -> None:
    """Print the comparisons."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=some_of(WORK), default="short")
    parser.add_argument("--sides", type=some_of(["strop", *TRL]), default="strop,trl,trl-liger",
                        help=f"strop,{','.join(TRL)}")  # fmt: skip
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each side")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds of a case")
    parser.add_argument("--tokens", type=int, default=17_000, help="of TRL's first micro-batch")
    parser.add_argument("--device", type=device_here, default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="full")
    parser.add_argument("--out", type=Path, help="CSV file of the numbers")
    parser.add_argument("--lines", type=int, default=6, help="shown of a failing side's error")
    for name, kind in (("--worker", str), ("--folder", Path), ("--seconds", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--at-once", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, case_of(options.cases[0], options.shape), options)
        return
    card = torch.cuda.get_device_name(options.device) if options.device != "cpu" else "CPU"
    print(f"{card}, torch {torch.__version__}, {options.shape} model in bfloat16", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        build(SHAPES[options.shape], Path(place))
        for name in options.cases:
            rows += compare(name, Path(place), options)
            if options.out and rows:
                write_rows(options.out, list(rows[0]), rows)


if __name__ == "__main__":
    main()
