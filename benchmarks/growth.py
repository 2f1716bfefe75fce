"""How strop's costs grow: with prompts, steps, rollouts of a step, tokens of an answer.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [prompts parquet steps report resume rollouts ...]
                                                  [--sizes 1000,10000 --out growth.csv]

    prompts   start of a run over a JSON Lines file of so many rows (reading, checks, checksum),
              its first and its second step; the shipped model, 32 prompts of 16 answers a step
    parquet   the same over a Parquet file
    steps     steps of 2 prompts of 4 answers, weights that stay unchanged, everything written:
              each 100 steps of one run, up to the largest size
    report    `strop report` of a run of so many steps, with every tenth step's rollouts
    resume    the start of `strop train --resume` of such a run, and a step
    rollouts  a step of so many rollouts of the shipped model, 16 a prompt; also with its files
    tokens    a step of 8 rollouts of so many tokens each, of a random model of 3.3 million weights
              that never ends an answer; 2 prompts

Each curve is measured in its own process, with rising sizes. The measured step is the second one,
as the first fills caches. `cpu_s` is the processor time of the process (user and system), which
hardly depends on other load; `peak_mb` is its peak memory so far, including libraries (about
400 MB); `each_us` is the processor time of one prompt, step, rollout or token.
`python tools/draw_pictures.py growth` draws docs/evidence/growth.csv.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from processes import peak_mib

from strop.support.tables import read_rows, write_rows

FIELDS = ("curve", "what", "size", "cpu_s", "elapsed_s", "peak_mb", "each_us")
BLOCK, PROMPTS, ANSWERS = 100, 2, 4
SIZES = {
    "prompts": (1_000, 10_000, 100_000, 1_000_000),
    "parquet": (1_000, 10_000, 100_000, 1_000_000),
    "steps": (2_000,),
    "report": (500, 2_000, 8_000, 32_000),
    "resume": (500, 2_000, 8_000, 32_000),
    "rollouts": (256, 1_024, 4_096, 16_384),
    "tokens": (16, 64, 256, 1_024, 2_048),
}
QUIET = ("evaluation.every=0", "threads=1")
Point = dict[str, Any]


def used() -> float:
    times = os.times()
    return times.user + times.system


def measured(call: Callable[[], Any], curve: str, what: str, size: int, units: float = 0) -> Point:
    """One row of the table. units: the divisor of the time, by default the size."""
    cpu, started = used(), time.perf_counter()
    call()
    cpu, elapsed = used() - cpu, time.perf_counter() - started
    row = (curve, what, size, round(cpu, 3), round(elapsed, 3), round(peak_mib()), 0.0)
    return dict(zip(FIELDS, (*row[:-1], round(1e6 * cpu / (units or size), 1)), strict=True))


def started(folder: Path, *options: str, recipe: str = "grpo") -> Any:
    from strop.api.options import settings_of
    from strop.training import loop

    return loop.start(settings_of([recipe, *QUIET, *options], {}, None), folder)


def stepped(run: Any) -> Any:
    from strop.training import loop

    with run.torch_set():
        return loop._one_step(run, None)


# ---- prompts


def rows_of(size: int) -> Iterator[dict[str, Any]]:
    for n in range(size):
        a, b, c = n % 97 + 2, n // 97 % 97 + 2, n // 9409 % 97 + 2
        row = {"prompt": f"{a},{b},{c}:{(a + b) * c % 100}=", "answer": f"({a}+{b})*{c}"}
        yield {**row, "numbers": [a, b, c]}


def json_lines(size: int, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows_of(size))


def table(size: int, path: Path) -> None:
    """A Parquet file in row groups of 100,000, written piece by piece."""
    import itertools

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, writer = rows_of(size), None
    while piece := list(itertools.islice(rows, 100_000)):
        found = pa.Table.from_pylist(piece)
        writer = writer or pq.ParquetWriter(path, found.schema)
        writer.write_table(found)
    assert writer is not None
    writer.close()


def prompts(
    size: int, folder: Path, name: str = "prompts", ending: str = "jsonl"
) -> Iterator[Point]:
    path = folder / f"rows.{ending}"
    write = f"import growth, pathlib; growth.{'json_lines' if ending == 'jsonl' else 'table'}"
    made = f"{write}({size}, pathlib.Path({str(path)!r}))"  # in a process with its own memory
    subprocess.run([sys.executable, "-c", made], check=True, cwd=Path(__file__).parent)
    data = (f'data.files=["{path}"]', 'reward.functions=["exact_match"]', "model.name=tiny")
    started(folder / "warm", "training.steps=1").close()  # imports, the grader's first process
    found: list[Any] = []
    options = (*data, "rollout.max_tokens=8", "training.steps=3")
    yield measured(lambda: found.append(started(folder / "run", *options)), name, "start", size)
    (run,) = found
    yield measured(lambda: stepped(run), name, "first step", size, 1)
    yield measured(lambda: stepped(run), name, "step", size, 1)
    run.close()


def parquet(size: int, folder: Path) -> Iterator[Point]:
    yield from prompts(size, folder, "parquet", "parquet")


# ---- steps, report, resume


class Blocks:
    """A watcher that measures every BLOCK steps."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.cpu, self.started = used(), time.perf_counter()

    def begin(self, run: Any, before: Any) -> None:
        self.cpu, self.started = used(), time.perf_counter()

    def step(self, run: Any, metrics: Any) -> None:
        if run.done % BLOCK:
            return
        now = measured(lambda: None, "steps", f"{BLOCK} steps up to", run.done)
        cpu, elapsed = used() - self.cpu, time.perf_counter() - self.started
        each = {"cpu_s": round(cpu, 3), "elapsed_s": round(elapsed, 3)}
        self.points.append({**now, **each, "each_us": round(1e6 * cpu / BLOCK, 1)})
        self.begin(run, None)

    def note(self, text: str) -> None:
        print(text)


def small(folder: Path, steps: int) -> Any:
    sizes = (f"sampling.num_prompts={PROMPTS}", f"sampling.num_rollouts={ANSWERS}")
    return started(folder, *sizes, f"training.steps={steps}", "training.lr=0.0",
                   f"training.save_every={BLOCK}")  # fmt: skip


def steps(size: int, folder: Path) -> Iterator[Point]:
    from strop.training import loop

    run, blocks = small(folder / "run", size), Blocks()
    loop.go(run, blocks, lambda *_: {})
    run.close()
    yield from blocks.points


def pretended(size: int, folder: Path) -> None:
    """A run's folder as if after `size` steps: its first ten, repeated."""
    from strop.training import loop

    run = small(folder, size)
    run.config.training.steps = 10
    loop.go(run, Blocks(), lambda *_: {})
    run.config.training.steps = size
    lines = [json.loads(line) for line in run.record.metrics_path.read_text().splitlines()]
    with run.record.metrics_path.open("w") as file:
        for n in range(size):
            file.write(json.dumps({**lines[n % 10], "step": n + 1}) + "\n")
    for kind in (run.record.rollouts, run.record.tokens):
        content = (kind / "step-000010.parquet").read_bytes()
        for step in range(20, size + 1, 10):
            (kind / f"step-{step:06d}.parquet").write_bytes(content)
    run.done = size
    run.save()
    run.close()


def report(size: int, folder: Path) -> Iterator[Point]:
    from strop.report.page import write_report

    pretended(size, folder / "run")
    write_report([folder / "run"], folder / "warm.html")
    page = folder / "report.html"
    yield measured(lambda: write_report([folder / "run"], page), "report", "whole", size)


def resume(size: int, folder: Path) -> Iterator[Point]:
    from strop.training import loop
    from strop.training.settings import config
    from strop.training.settings.assignments import override

    pretended(size, folder / "run")
    settings = config.load(folder / "run" / "config.toml")
    settings = config.make(override(settings.model_dump(), [f"training.steps={size + 1}"]))
    started: list[Any] = []

    def go_on() -> None:
        started.append(loop.resume(settings, folder / "run"))
        loop.go(started[0], Blocks(), lambda *_: {})

    yield measured(go_on, "resume", "start and a step", size)
    started[0].close()


# ---- rollouts, tokens


def rollouts(size: int, folder: Path) -> Iterator[Point]:
    run = started(folder / "run", f"sampling.num_prompts={size // 16}", "training.steps=4")
    stepped(run)
    yield measured(lambda: stepped(run), "rollouts", "step", size)
    yield measured(lambda: written(run), "rollouts", "step and its files", size)
    run.close()


def written(run: Any) -> None:
    from strop.training import loop

    tokens = loop.Tokens(run.config.training.inspect)
    with run.torch_set():
        batch = loop._one_step(run, tokens).batch
    run.record.write_rollouts(run.done, batch, run.world.services)
    run.record.write_tokens(run.done, tokens, batch, run.world.services)


def tokens(size: int, folder: Path) -> Iterator[Point]:
    model = endless(folder / "model", size + 32)
    run = started(
        folder / "run", f"model.name={model}", "sampling.num_prompts=2",
        "sampling.num_rollouts=4", f"rollout.max_tokens={size}", "training.steps=3",
    )  # fmt: skip
    stepped(run)
    found: list[Any] = []
    point = measured(lambda: found.append(stepped(run)), "tokens", "step", size, 8 * size)
    assert int(found[0].batch["mask_T"].sum()) == 8 * size, "an answer has ended"
    yield point
    run.close()


def endless(folder: Path, context: int) -> Path:
    """A random model with the shipped tokenizer and without an end token."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from strop.training.learner import models

    disable_progress_bar()
    tokenizer = models.tokenizer_of("tiny")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=768, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, tie_word_embeddings=True,
        max_position_embeddings=context, eos_token_id=None, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.eos_token, tokenizer.model_max_length = None, context
    tokenizer.save_pretrained(folder)
    return folder


CURVES: dict[str, Callable[[int, Path], Iterator[Point]]] = {
    "prompts": prompts,
    "parquet": parquet,
    "steps": steps,
    "report": report,
    "resume": resume,
    "rollouts": rollouts,
    "tokens": tokens,
}


def points(curve: str, sizes: Sequence[int]) -> list[Point]:
    """The points that a process of its own measures, printed as they come."""
    command = [sys.executable, __file__, "--one", curve, ",".join(map(str, sizes))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                found.append(json.loads(line))
                print(*found[-1].values(), sep="\t", flush=True)
    if process.returncode:
        sys.exit(f"{curve} failed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curves", nargs="*", help=f"{', '.join(CURVES)}; default: all")
    parser.add_argument("--sizes", help="separated by commas; default: those of the page")
    parser.add_argument("--out", type=Path, help="CSV file; curves measured now replace theirs")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        for size in map(int, given.one[1].split(",")):
            with tempfile.TemporaryDirectory() as folder:
                for point in CURVES[given.one[0]](size, Path(folder)):
                    print(json.dumps(point), flush=True)
        return
    if unknown := [name for name in given.curves if name not in CURVES]:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(CURVES)}")
    print(*FIELDS, sep="\t")
    for curve in given.curves or CURVES:
        sizes = [int(s) for s in given.sizes.split(",")] if given.sizes else SIZES[curve]
        found = points(curve, sizes)
        if given.out:
            others = [row for row in read_rows(given.out) if row["curve"] != curve]
            write_rows(given.out, FIELDS, [*others, *found])


if __name__ == "__main__":
    main()
