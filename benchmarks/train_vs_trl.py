"""Seconds per training step in strop and in TRL's GRPOTrainer on equal work.

    pip install trl==1.16.0        # besides strop, in an environment of its own
    OMP_NUM_THREADS=1 python benchmarks/train_vs_trl.py [--case short,long,large] [--steps 8]
        [--rounds 3] [--dtype bfloat16]

Both train the same random Qwen3 model on the same prompts with the same reward, group size, batch
and AdamW settings, one update per batch:

    short   32 prompts, 16 answers each of 12 tokens
    long    the same, but each token ends the answer with probability 1/32: lengths have a long tail
            (mean about 32, cap 256)
    large   40 million weights, 4 prompts, 8 answers each of 256 tokens

TRL runs at its fastest settings on a CPU: no reference model, no reporting, one micro-batch. strop
runs as always: metrics, Parquet of every step, rewards in another process. `trl-parts` is TRL with
micro-batches of at most as many padded tokens as strop's token budget (only in `long` is that less
than the batch). All have an allocator that keeps freed memory (glibc's, by environment variables),
without which TRL's `long` takes half as long again. Every measurement is a fresh process, and the
sides take turns; the first two steps of each are left out. The output has medians of elapsed and of
processor seconds (of all processes of a side), their ratios, peak resident memory and the machine's
speed. With OMP_NUM_THREADS=1 the processor seconds are the ones to compare. --dtype bfloat16 trains
both in bfloat16.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from command_line import some_of
from machine import speed
from processes import peak_mib

SEED, PROMPT = 0, 8
TOKEN_BUDGET = 65536
KEEP_FREED = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**35), "MALLOC_TOP_PAD_": str(2**28)
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The sizes that differ between the comparisons."""

    vocabulary: int
    max_tokens: int
    hidden: int = 96
    wide: int = 256
    layers: int = 3
    heads: int = 3
    head: int = 32
    prompts: int = 32
    rollouts: int = 16

    @property
    def answers(self) -> int:
        """Answers per step."""
        return self.prompts * self.rollouts

    @property
    def in_parts(self) -> int:
        """How many answers TRL can take at once within strop's token budget, halving the batch."""
        taken = self.answers
        while taken * (PROMPT + self.max_tokens) > TOKEN_BUDGET:
            taken //= 2
        return taken


CASES = {
    "short": Case(2048, 12),
    "long": Case(32, 256),
    "large": Case(16384, 256, 512, 1536, 10, 8, 64, 4, 8),
}


def reward(prompts: Any, completions: list[str], **columns: Any) -> list[float]:
    """Share of even characters: any reward will do, if it costs nothing."""
    return [sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1) for text in completions]


def build(case: Case, folder: Path) -> None:
    """A random model and a tokenizer of single characters, saved for both sides."""
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
        vocab_size=case.vocabulary, hidden_size=case.hidden,
        intermediate_size=case.wide, num_hidden_layers=case.layers, head_dim=case.head,
        num_attention_heads=case.heads, num_key_value_heads=case.heads,
        max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)


def prompts(case: Case, number: int) -> list[str]:
    """Different prompts of eight characters."""
    rng = torch.Generator().manual_seed(SEED)
    rows = torch.randint(2, case.vocabulary, (number, PROMPT), generator=rng)
    return ["".join(chr(0x4E00 + int(i) - 2) for i in row) for row in rows]


class Now(NamedTuple):
    """The clock, and the processor time of this process and its children."""

    elapsed: float
    processor: float


def now() -> Now:
    """The current moment, after all pending work of a GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    children = [each.cpu_times() for each in psutil.Process().children(recursive=True)]
    spent = time.process_time() + sum(each.user + each.system for each in children)
    return Now(time.perf_counter(), spent)


def gaps(times: list[Now]) -> list[Now]:
    """The differences between consecutive moments."""
    return [
        Now(*(b - a for a, b in zip(before, after, strict=True)))
        for before, after in itertools.pairwise(times)
    ]


def late(times: list[Now], until: float) -> bool:
    """Whether no further step starts: `until` has passed, and two steps are done."""
    return len(times) > 2 and times[-1].elapsed > until


def trl_options(case: Case, steps: int, dtype: str, at_once: int) -> dict[str, Any]:
    """Options of TRL's GRPOConfig for a case, with `at_once` answers per micro-batch."""
    return {
        "max_steps": steps, "num_generations": case.rollouts,
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": case.answers // at_once,
        "max_completion_length": case.max_tokens,
        "learning_rate": 1e-5, "lr_scheduler_type": "constant",
        "adam_beta1": 0.9, "adam_beta2": 0.95, "weight_decay": 0.0, "max_grad_norm": 1.0,
        "beta": 0.0, "temperature": 1.0, "loss_type": "grpo",
        "report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "logging_steps": 1, "disable_tqdm": True, "seed": SEED,
        "model_init_kwargs": {"dtype": dtype},
    }  # fmt: skip


def trl_steps(
    folder: Path,
    options: dict[str, Any],
    data: list[str],
    score: Callable[..., list[float]],
    until: float = math.inf,
    timed: Callable[[Any], None] = lambda trainer: None,
) -> tuple[list[Now], list[float]]:
    """The moments between TRL's steps, and the mean answer length of each step.

    until: see `late`. timed: may wrap the trainer's functions.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    times: list[Now] = []

    class Stopwatch(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            times.append(now())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            times.append(now())
            control.should_training_stop |= late(times, until)

    trainer = GRPOTrainer(
        model=str(folder), reward_funcs=score,
        args=GRPOConfig(output_dir=str(folder / "trl"), **options),
        train_dataset=Dataset.from_dict({"prompt": data}), callbacks=[Stopwatch()],
    )  # fmt: skip
    timed(trainer)
    trainer.train()
    name = "completions/mean_length"
    return times, [row[name] for row in trainer.state.log_history if name in row]


class Enough(Exception):
    """The steps that were to be measured are done."""


def strop_steps(
    sections: dict[str, Any], folder: Path, until: float = math.inf
) -> tuple[list[Now], list[dict[str, float]]]:
    """The moments between the steps of strop's loop, as `strop train` runs it, and their metrics.

    until: see `late`. Nothing is saved at the end.
    """
    from strop.training import loop
    from strop.training.settings import config

    settings = config.make(sections)
    times, metrics = list[Now](), list[dict[str, float]]()

    class Stopwatch:
        def begin(self, run: Any, before: Any) -> None:
            times.append(now())

        def step(self, run: Any, found: dict[str, float]) -> None:
            times.append(now())
            metrics.append(found)
            if len(metrics) == settings.training.steps or late(times, until):
                raise Enough

        def note(self, text: str) -> None:
            print(text, file=sys.stderr)

    run = loop.start(settings, folder / f"strop-{time.time_ns()}")
    try:
        with contextlib.suppress(Enough):
            loop.go(run, Stopwatch(), lambda *_: {})
    finally:
        run.close()
    return times, metrics


def run_trl(
    case: Case, folder: Path, steps: int, dtype: str, at_once: int
) -> tuple[list[Now], list[float]]:
    """Seconds and answer tokens of every step of TRL's trainer, `at_once` answers at a time."""
    data = prompts(case, case.prompts * steps)
    options = trl_options(case, steps, dtype, at_once)
    times, lengths = trl_steps(folder, options, data, reward)
    return gaps(times), lengths


def run_strop(case: Case, folder: Path, steps: int, dtype: str) -> tuple[list[Now], list[float]]:
    """Seconds and answer tokens of every step of strop's loop."""
    data = folder / "prompts.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": p}) + "\n" for p in prompts(case, case.prompts * steps))
    )
    functions = (f"{Path(__file__).resolve()}:reward",)
    sections = strop_sections(case, folder, steps, dtype, (str(data),), functions)
    times, metrics = strop_steps(sections, folder)
    return gaps(times), [found["completions/mean_length"] for found in metrics]


def strop_sections(
    case: Case, folder: Path, steps: int, dtype: str, files: tuple[str, ...],
    functions: tuple[str, ...],
) -> dict[str, Any]:  # fmt: skip
    """Settings of a run of strop for a case."""
    return {
        "recipe": "grpo", "seed": SEED, "model": {"name": str(folder), "dtype": dtype},
        "data": {"files": files}, "reward": {"functions": functions},
        "training": {"steps": steps, "lr": 1e-5, "rollouts_every": 1, "save_every": 0,
                     "token_budget": TOKEN_BUDGET},
        "evaluation": {"every": 0},
        "algorithm": {"rollout.max_tokens": case.max_tokens,
                      "sampling.num_prompts": case.prompts,
                      "sampling.num_rollouts": case.rollouts},
    }  # fmt: skip


def measure(which: str, name: str, folder: Path, steps: int, dtype: str) -> dict[str, float]:
    """Runs one fresh process; returns its median step, tokens per answer and peak memory."""
    done = subprocess.run(
        [sys.executable, __file__, "--worker", which, "--case", name, "--folder", str(folder),
         "--steps", str(steps), "--dtype", dtype],
        capture_output=True, text=True, check=False, env={**KEEP_FREED, **os.environ},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{which} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def work(which: str, case: Case, folder: Path, steps: int, dtype: str) -> None:
    """Run one measurement in this process; the last printed line has its numbers."""
    if which == "strop":
        seconds, lengths = run_strop(case, folder, steps, dtype)
    else:
        at_once = case.in_parts if which == "trl-parts" else case.answers
        seconds, lengths = run_trl(case, folder, steps, dtype, at_once)
    elapsed, processor = (statistics.median(each) for each in zip(*seconds[2:], strict=True))
    found = {"seconds": elapsed, "processor": processor, "tokens": statistics.mean(lengths)}
    print(json.dumps({**found, "peak_gb": peak_mib() / 1024}))


def compare(name: str, folder: Path, steps: int, rounds: int, dtype: str) -> None:
    """Print one line per variant, and the ratios."""
    case = CASES[name]
    build(case, folder)
    variants = ("trl", "trl-parts", "strop") if case.in_parts < case.answers else ("trl", "strop")
    found: dict[str, list[dict[str, float]]] = {which: [] for which in variants}
    for _ in range(rounds):
        for which in variants:
            found[which].append(measure(which, name, folder, steps, dtype))
    for which, rows in found.items():
        middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        print(f"{name:5s} {which:9s} {middle['processor']:.3f} processor s a step, "
              f"{middle['seconds']:.3f} s elapsed, {middle['tokens']:.1f} tokens an answer, "
              f"peak {middle['peak_gb']:.2f} GB", flush=True)  # fmt: skip
    for which in variants[:-1]:
        for kind in ("processor", "seconds"):
            pairs = zip(found[which], found["strop"], strict=True)
            ratios = [theirs[kind] / ours[kind] for theirs, ours in pairs]
            print(f"{name:5s} strop is {statistics.median(ratios):.2f} times as fast as {which} "
                  f"({min(ratios):.2f} to {max(ratios):.2f}) by {kind}", flush=True)  # fmt: skip


def main() -> None:
    """Compare case by case; or, in a process of its own, measure once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", type=some_of(CASES), default="short,long")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--worker", default="")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.worker:
        case = CASES[options.case[0]]
        work(options.worker, case, options.folder, options.steps, options.dtype)
        return
    print(f"{torch.get_num_threads()} threads; {speed()}")
    for name in options.case:
        compare(name, Path(tempfile.mkdtemp()), options.steps, options.rounds, options.dtype)


if __name__ == "__main__":
    main()
