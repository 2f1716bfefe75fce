"""Seconds per training step in strop and in TRL's GRPOTrainer on equal work.

    pip install trl==1.16.0        # beside strop, in an environment of its own
    python benchmarks/train_vs_trl.py [--case short,long] [--steps 8] [--rounds 3]

Both train the same random Qwen3 model on the same prompts with the same reward, group size, batch
and AdamW settings, one update per batch. `short`: answers of 12 tokens; `long`: each token ends the
answer with chance 1/32, so lengths have a long tail (mean about 32, cap 256). TRL runs at its
fastest settings on a CPU: no reference model, no reporting, one micro-batch. strop runs as always:
metrics, Parquet of every step, rewards in another process. Every measurement is a fresh process,
the two in turn; the first two steps of each are left out. Prints medians, and peak resident memory.
"""

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PROMPTS, ROLLOUTS, SEED = 32, 16, 0


@dataclass(frozen=True)
class Case:
    """What differs between the two comparisons."""

    vocabulary: int
    max_tokens: int
    hidden: int = 96
    layers: int = 3


CASES = {"short": Case(2048, 12), "long": Case(32, 256)}


def reward(prompts: Any, completions: list[str], **columns: Any) -> list[float]:
    """Share of even characters: any number will do, as long as it costs nothing."""
    return [sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1) for text in completions]


def build(case: Case, folder: Path) -> None:
    """A random model and a tokenizer of single characters, saved for both."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    words = ["<pad>", "<eos>", *(chr(0x4E00 + i) for i in range(case.vocabulary - 2))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    ).save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=case.vocabulary, hidden_size=case.hidden, intermediate_size=256,
        num_hidden_layers=case.layers, num_attention_heads=3, num_key_value_heads=3, head_dim=32,
        max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)


def prompts(case: Case, number: int) -> list[str]:
    """Different prompts of eight characters."""
    rng = torch.Generator().manual_seed(SEED)
    rows = torch.randint(2, case.vocabulary, (number, 8), generator=rng)
    return ["".join(chr(0x4E00 + int(i) - 2) for i in row) for row in rows]


def run_trl(case: Case, folder: Path, steps: int) -> tuple[list[float], list[float]]:
    """Seconds and answer tokens of every step of TRL's trainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    times: list[float] = []

    class Stopwatch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    options = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=steps, num_generations=ROLLOUTS,
        per_device_train_batch_size=PROMPTS * ROLLOUTS, gradient_accumulation_steps=1,
        max_completion_length=case.max_tokens,
        learning_rate=1e-5, lr_scheduler_type="constant", adam_beta1=0.9, adam_beta2=0.95,
        weight_decay=0.0, max_grad_norm=1.0, beta=0.0, temperature=1.0, loss_type="grpo",
        report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False,
        logging_steps=1, disable_tqdm=True, seed=SEED, model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": prompts(case, PROMPTS * steps)})
    trainer = GRPOTrainer(
        model=str(folder), reward_funcs=reward, args=options, train_dataset=data,
        callbacks=[Stopwatch()],
    )  # fmt: skip
    begun = time.perf_counter()
    trainer.train()
    lengths = [
        row["completions/mean_length"]
        for row in trainer.state.log_history
        if "completions/mean_length" in row
    ]
    return _gaps([begun, *times]), lengths


def run_strop(case: Case, folder: Path, steps: int) -> tuple[list[float], list[float]]:
    """Seconds and answer tokens of every step of strop's loop, as `strop train` runs it."""
    from strop.training import config, loop

    data = folder / "prompts.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": p}) + "\n" for p in prompts(case, PROMPTS * steps))
    )
    settings = config.make(
        {
            "recipe": "grpo", "seed": SEED, "model": {"name": str(folder)},
            "data": {"files": (str(data),)},
            "reward": {"functions": (f"{Path(__file__).resolve()}:reward",)},
            "training": {"steps": steps, "lr": 1e-5, "rollouts_every": 1, "save_every": 0,
                         "token_budget": 65536},
            "evaluation": {"every": 0},
            "algorithm": {"rollout.max_tokens": case.max_tokens, "sampling.num_prompts": PROMPTS,
                          "sampling.num_rollouts": ROLLOUTS},
        }
    )  # fmt: skip
    times, lengths = [], []

    class Stopwatch:
        def begin(self, run: Any, before: Any) -> None:
            times.append(time.perf_counter())

        def step(self, run: Any, metrics: dict[str, float]) -> None:
            times.append(time.perf_counter())
            lengths.append(metrics["completions/mean_length"])

        def note(self, text: str) -> None:
            print(text, file=sys.stderr)

    run = loop.start(settings, folder / f"strop-{time.time_ns()}")
    try:
        loop.go(run, Stopwatch(), lambda *_: {})
    finally:
        run.close()
    return _gaps(times), lengths


def _gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times)]


def measure(which: str, name: str, folder: Path, steps: int) -> dict[str, float]:
    """One fresh process; its median step, tokens of an answer and peak memory."""
    done = subprocess.run(
        [sys.executable, __file__, "--worker", which, "--case", name, "--folder", str(folder),
         "--steps", str(steps)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{which} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Print one line per case and library, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="short,long")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", default="")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.worker:
        run = run_trl if options.worker == "trl" else run_strop
        seconds, lengths = run(CASES[options.case], options.folder, options.steps)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        median = statistics.median(seconds[2:])
        print(json.dumps({"seconds": median, "tokens": statistics.mean(lengths), "peak_gb": peak}))
        return
    print(f"{torch.get_num_threads()} threads, {PROMPTS} prompts x {ROLLOUTS} answers")
    for name in options.case.split(","):
        folder = Path(tempfile.mkdtemp())
        build(CASES[name], folder)
        found: dict[str, list[dict[str, float]]] = {"trl": [], "strop": []}
        for _ in range(options.rounds):
            for which in found:
                found[which].append(measure(which, name, folder, options.steps))
        for which, rows in found.items():
            middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            print(f"{name:5s} {which:5s} {middle['seconds']:.3f} s a step, {middle['tokens']:.1f} "
                  f"tokens an answer, peak {middle['peak_gb']:.2f} GB", flush=True)  # fmt: skip
        ratios = [t["seconds"] / s["seconds"] for t, s in zip(*found.values(), strict=True)]
        print(f"{name:5s} strop is {statistics.median(ratios):.2f} times as fast "
              f"({min(ratios):.2f} to {max(ratios):.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
