"""Four methods, five seeds, one GPU: a study on a model of 19 million weights that is made first.

    python benchmarks/gpu/study.py [--minutes 9] [--jobs 8] [--work FOLDER] [--out FOLDER]
    python benchmarks/gpu/study.py --small        # tries all of it on a CPU, in a minute or two
    python benchmarks/gpu/study.py --read docs/evidence/gpu/curves.csv

First a Qwen3 of 19 million weights with the characters of `tiny-worked` is trained from scratch on
worked answers to Countdown puzzles, like `tiny-worked` in `tools/build_worked_model.py`: finally on
answers of mixed quality, so that it solves some puzzles but not most. Then `strop compare` trains
it with `grpo`, `gspo`, `dr_grpo` and `cispo`, four updates a step so that clipping acts, and
compares them at equal sampled tokens, by their validation scores.

The last output is a table of pass@1 at the last step at which all runs were scored, which --read
prints again. Several runs share the GPU (--jobs). Every 20 seconds the complete runs are compared
and written to --out (`scores.csv`, `table.md`, and `curves.csv` with every step of every run; by
default docs/evidence/gpu, with --small a folder inside --work), so these results remain if the
program is killed. After --minutes the runs are stopped. The same call
with the same --work resumes: the model and complete runs are reused, others are continued.
"""

import argparse
import itertools
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import build_tiny_model
import build_worked_model
import torch
from command_line import device_here

from strop.comparison.plan import read_plan
from strop.comparison.runs import jobs_of
from strop.comparison.scores import collect
from strop.comparison.table import markdown, write_tables
from strop.comparison.verdict import holm
from strop.evaluation.seeds import over_seeds, paired_difference, paired_p
from strop.support.errors import UserError
from strop.support.tables import read_rows, write_rows

METHODS = "grpo,gspo,dr_grpo,cispo"
CURVES = (
    "reward", "entropy", "completions/mean_length", "clip_ratio/region_mean", "grad_norm",
    "ratio/log_abs_mean", "eval/validation/pass@1", "eval/validation/pass@4", "step_time",
    "timing_s/rollout", "timing_s/update",
)  # fmt: skip
SCORE = "eval/validation/pass@1"
EVIDENCE = Path("docs/evidence/gpu")
PAUSE = 20.0  # seconds between two checks of the runs
SAVING = 40.0  # seconds that runs have to finish their step and save


@dataclass(frozen=True)
class Setting:
    """The sizes of model, training and comparison. options: those of `strop train`."""

    sizes: dict[str, int]
    pretraining_steps: int
    batch_size: int
    learning_rate: float
    methods: str
    seeds: int
    steps: int
    lr: float
    options: tuple[str, ...]


FULL = Setting(
    sizes={"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
           "num_attention_heads": 16, "num_key_value_heads": 8},
    pretraining_steps=3000, batch_size=256, learning_rate=1e-3,
    methods=METHODS, seeds=5, steps=50, lr=1e-4,
    options=("rollout.max_tokens=128", "sampling.num_prompts=32", "sampling.num_rollouts=8",
             "training.num_slots=1024", "training.token_budget=8192",
             "evaluation.every=10", "evaluation.max_prompts=256",
             "evaluation.num_samples=4"),
)  # fmt: skip
SMALL = Setting(
    sizes={"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 2, "num_key_value_heads": 2},
    pretraining_steps=240, batch_size=32, learning_rate=4e-3,
    methods="grpo,gspo", seeds=2, steps=4, lr=3e-4,
    options=("rollout.max_tokens=48", "sampling.num_prompts=8", "sampling.num_rollouts=8",
             "evaluation.every=2", "evaluation.max_prompts=16", "evaluation.num_samples=4"),
)  # fmt: skip


def drawn(work: tuple[int, bool, int]) -> list[tuple[Any, Any]]:
    """Batches of a few steps, in another process: seed, whether of mixed quality, batch size."""
    seed, mixed, batch_size = work
    tokenizer = build_tiny_model.build_tokenizer(build_worked_model.MAX_POSITIONS)
    found = build_worked_model.draw_sorted(tokenizer, mixed, random.Random(seed), batch_size)
    return [(ids.numpy(), labels.numpy()) for ids, labels in found]


def pretrain(setting: Setting, device: str, folder: Path, processes: int) -> None:
    """Train the model, and save it."""
    began, steps, chunk = time.monotonic(), setting.pretraining_steps, build_worked_model
    starts = range(0, steps, chunk.SORTED_BATCHES)
    work = [(first, chunk.is_mixed(first, steps), setting.batch_size) for first in starts]
    build_worked_model.supervised_puzzles()  # once, before the processes are copied
    with multiprocessing.get_context("fork").Pool(processes) as pool:  # before the GPU is touched

        def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for ids, labels in itertools.chain.from_iterable(pool.imap(drawn, work)):
                yield torch.from_numpy(ids).to(device), torch.from_numpy(labels).to(device)

        torch.set_float32_matmul_precision("high")
        tokenizer = build_tiny_model.build_tokenizer(build_worked_model.MAX_POSITIONS)
        model = build_tiny_model.build_model(tokenizer, setting.sizes).to(device)
        build_tiny_model.train(model, batches(), steps, setting.learning_rate)
    build_tiny_model.save(model.cpu(), tokenizer, folder, build_worked_model.MAX_TOKENS)
    weights = sum(weight.numel() for weight in model.parameters())
    del model
    if device != "cpu":
        torch.cuda.empty_cache()  # the runs need it
    print(f"{weights / 1e6:.1f} million weights, {steps} steps of {setting.batch_size} answers in "
          f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip


def look(folder: Path, out: Path) -> str | None:
    """Write the runs' current results; returns the table of the complete runs, if there are any.

    None where the comparison has not started: then nothing is written.
    """
    try:
        plan = read_plan(folder)
    except UserError:
        return None
    jobs = jobs_of(plan, folder)
    for job in jobs:
        scored = all(job.scores_file(step).exists() for step in plan.scoring.at)
        job.state = "done" if job.ended.exists() and scored else "waiting"
    write_curves(jobs, out / "curves.csv")
    rows, _ = collect(plan, jobs)
    if not rows:
        return ""
    write_tables(plan, rows, out)
    return markdown(plan, rows)


def write_curves(jobs: list[Any], path: Path) -> None:
    """Write one line per step of every run, with the answer tokens sampled so far."""
    rows = []
    for job in jobs:
        file, sampled = job.folder / "metrics.jsonl", 0.0
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            found = json.loads(line)
            sampled += found.get("data/tokens_sampled", 0)
            row = {"method": job.entry.label, "seed": job.seed, "step": found["step"]}
            row |= {"sampled": round(sampled)}
            rows.append(row | {name: _short(found.get(name)) for name in CURVES})
    write_rows(path, ("method", "seed", "step", "sampled", *CURVES), rows)


def paired(curves: Path) -> str:
    """The table of pass@1 at the last step at which all runs were scored, or most of them were;
    every method is compared with the first one on the seeds that all have.
    """
    scores: dict[int, dict[tuple[str, str], float]] = {}
    for row in read_rows(curves):
        if row[SCORE]:
            place = row["method"], row["seed"]
            scores.setdefault(int(row["step"]), {})[place] = float(row[SCORE])
    most = max(map(len, scores.values()), default=0)
    step = max((step for step, found in scores.items() if len(found) == most), default=0)
    methods = list(dict.fromkeys(method for method, _ in scores.get(step, ())))
    seeds = [
        seed for seed in dict.fromkeys(seed for _, seed in scores.get(step, ()))
        if all((method, seed) in scores[step] for method in methods)
    ]  # fmt: skip
    if not seeds:
        return "no seed is scored for all methods"
    of = {name: [scores[step][name, seed] for seed in seeds] for name in methods}
    p_values = holm([paired_p(of[name], of[methods[0]]) for name in methods[1:]])
    lines = [f"| step {step}, {len(seeds)} seeds | pass@1 | minus {methods[0]} | p |",
             "| --- | --- | --- | --- |"]  # fmt: skip
    for name, p in zip(methods, [None, *p_values], strict=True):
        own = over_seeds(of[name], within=(0, 1))
        line = f"| {name} | {own:.3f} "
        if p is None:
            lines.append(f"{line}| | |")
            continue
        gap = paired_difference(of[name], of[methods[0]], within=(0, 1))
        lines.append(f"{line}| {gap:+.3f} | {p:.3f} |")
    return "\n".join(lines)


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def compare(setting: Setting, options: argparse.Namespace, model: Path, last: float) -> None:
    """Train and compare until all is done, or until `last` on the clock."""
    folder = options.work / "comparison"
    methods = options.methods.split(",")
    command = [
        sys.executable, "-m", "strop", "compare", *methods, "--model", str(model),
        "--task", "worked_countdown", "--seeds", str(options.seeds), "--steps", str(options.steps),
        "--by", "sampled", "--jobs", str(options.jobs), "--out", str(folder), *setting.options,
        f"training.lr={options.lr}", f"plan.num_minibatches={options.updates}",
        f"model.device={options.device}",
    ]  # fmt: skip
    print(" ".join(command[1:]), flush=True)
    child = subprocess.Popen(command)
    try:
        while child.poll() is None and time.monotonic() < last:
            wait(child, min(PAUSE, max(last - time.monotonic(), 0.1)))
            look(folder, options.out)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            wait(child, SAVING)
            child.kill()
            child.wait()
    table = look(folder, options.out)
    if table is not None:  # otherwise the table there is of another comparison
        print(paired(options.out / "curves.csv"), flush=True)
    if child.returncode:  # otherwise it has printed the table
        print(table or "no run is complete", flush=True)


def wait(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait until the child has ended, at most so many seconds."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def main() -> None:
    """Make the model, compare the methods and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny, on a CPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="in all; then runs are stopped")
    parser.add_argument("--work", type=Path, help="folder of model and runs; the same one resumes")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--read", type=Path, help="only print the paired table of this curves.csv")
    parser.add_argument("--methods", default="")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--lr", type=float, default=0.0)
    parser.add_argument("--updates", type=int, default=4, help="updates per step")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time (8; --small: 2)")
    parser.add_argument("--device", type=device_here, help="default: cuda; --small: cpu")
    parser.add_argument("--pretraining-steps", type=int, default=0)
    options = parser.parse_args()
    if options.read:
        if not options.read.is_file():
            parser.error(f"--read takes the curves.csv of a study, and {options.read} is no file")
        print(paired(options.read))
        return
    began = time.monotonic()
    setting = SMALL if options.small else FULL
    for name in ("methods", "seeds", "steps", "lr", "pretraining_steps"):
        if not getattr(options, name):
            setattr(options, name, getattr(setting, name))
    options.jobs = options.jobs or (2 if options.small else 8)
    try:
        options.device = options.device or ("cpu" if options.small else device_here("cuda"))
    except argparse.ArgumentTypeError as error:
        parser.error(f"--device {error}, and so does --small")
    options.work = options.work or Path(tempfile.mkdtemp(prefix="study-"))
    options.out = options.out or (options.work / "results" if options.small else EVIDENCE)
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"work folder {options.work}, torch {torch.__version__}", flush=True)
    model = options.work / "model"
    if not (model / "tokenizer_config.json").exists():  # written last
        changed = {**vars(setting), "pretraining_steps": options.pretraining_steps}
        pretrain(Setting(**changed), options.device, model, 2 if options.small else 12)
    compare(setting, options, model, began + 60 * options.minutes - SAVING)
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
