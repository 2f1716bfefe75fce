"""One process compared with two and more: peak memory of a process, and the time of a step.

    python benchmarks/several_trainers.py [--processes 1,2] [--steps 3] [--repeats 1]
                                          [--recipe 'grpo(beta=0.04)'] [--dtype float32]
                                          [--checkpoint whole|sharded]

The model is a random Qwen3 of about 40 million weights with the tokenizer of `tiny`; the task is
the puzzles that ship with strop. Every process has one thread. The peak is that of a process's
resident memory over the whole run (for the first process, without its reward workers); the memory
that Python and the libraries take before anything is loaded is printed beside it. A step's time is
the median of all but the first, as are the times for its answers and its update. With --repeats the
ways take turns. Peaks hardly depend on other load, times do.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from processes import GIVES_BACK, peak_mib
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from strop.assets import model_folder
from strop.tracking.metrics_file import read_metrics

TIMES = ("step_time", "timing_s/rollout", "timing_s/update")


def save_model(folder: Path) -> int:
    """Write the model; returns its number of weights."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("tiny"))
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=1536, num_hidden_layers=12,
        num_attention_heads=8, num_key_value_heads=8, head_dim=64, max_position_embeddings=256,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def work(place: Path, words: list[str]) -> None:
    """The work of each process: make the run, and write down its memory."""
    import strop.training.loop
    from strop.cli.main import main

    before = peak_mib()
    told: dict[str, float] = {}
    real = strop.training.loop.Run.save

    def saving(run: Any) -> None:
        told["peak before saving"] = peak_mib()
        real(run)

    strop.training.loop.Run.save = saving  # type: ignore[method-assign]
    sys.argv = ["strop", *words]
    try:
        main()
    finally:
        told |= {"before": before, "peak": peak_mib()}
        rank = os.environ.get("RANK", "0")
        (place / f"memory-{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def measured(count: int, model: Path, arguments: Any) -> dict[str, float]:
    """Peaks and times of a run in so many processes."""
    with tempfile.TemporaryDirectory() as name:
        place, run = Path(name), Path(name) / "run"
        words = [
            "train", arguments.recipe, "--model", str(model), "--out", str(run), "--quiet",
            f"model.dtype={arguments.dtype}", f"training.steps={arguments.steps}",
            f"training.checkpoint={arguments.checkpoint}", "training.save_every=0",
            "training.rollouts_every=0", "evaluation.every=0",
            "sampling.num_prompts=4", "sampling.num_rollouts=4", "rollout.max_tokens=8",
            "training.token_budget=256", "training.num_slots=16",
        ]  # fmt: skip
        start = [sys.executable]
        if count > 1:
            start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        told = subprocess.run(
            [*start, __file__, "--work", name, *words],
            env={**os.environ, **GIVES_BACK, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True,
        )  # fmt: skip
        if told.returncode:
            sys.exit(told.stdout + told.stderr)
        memory = [json.loads(path.read_text()) for path in sorted(place.glob("memory-*.json"))]
        lines = read_metrics(run)
        for rank, each in enumerate(memory):
            print(f"{count} processes, process {rank}: {each}", flush=True)
        found = {key: max(each[key] for each in memory) for key in ("before", "peak")}
        return found | {key: statistics.median(x[key] for x in lines[1:]) for key in TIMES}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--recipe", default="grpo(beta=0.04)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--checkpoint", default="whole")
    arguments = parser.parse_args()
    counts = [int(word) for word in arguments.processes.split(",")]
    with tempfile.TemporaryDirectory() as name:
        num = save_model(Path(name))
        print(f"{num / 1e6:.1f} million weights, {arguments.recipe}, {arguments.dtype}")
        runs = [(n, measured(n, Path(name), arguments)) for _ in range(arguments.repeats)
                for n in counts]  # fmt: skip
    print("processes  MiB at first  peak MiB  step s  answers s  update s")
    for count in counts:
        own = [found for n, found in runs if n == count]
        keys = ("before", "peak", *TIMES)
        medians = [statistics.median(found[key] for found in own) for key in keys]
        print(f"{count:9}  {medians[0]:12.0f}  {medians[1]:8.0f}  "
              + "  ".join(f"{value:6.2f}" for value in medians[2:]))  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
