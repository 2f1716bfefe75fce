"""Decoding by the local engine on a GPU, compared with the memory bound and with `generate`.

    python benchmarks/gpu/engine.py [--shapes 0.6B,1.7B] [--lengths 256,1024] [--rows 128]
        [--profile] [--device cuda] [--out FILE.csv]

Random Qwen3 models in bfloat16 answer prompts of 8 tokens. For each shape and length it measures
the following, after a warm-up (whose extra time, for compiling and recording, is printed too):

    recorded    the engine by default: passes replayed as CUDA graphs
    uneven      the same with answers of lengths drawn between an eighth and the whole length
    launched    the engine with cuda_graphs=False, for 32 tokens
    generate    transformers' own, without any statistics, for 32 tokens

The bound is the time that a copy on this card takes to move what a step reads once: all weights,
and the keys and values of the rows that have not ended, in the mean over the steps. `agrees` is the
difference of the recorded log-probabilities from those of a plain forward pass, and that of the
launched ones.
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from shapes import SHAPES, bandwidth, card, device_here, model_of, some_of, wait

from strop.engines.base import Request
from strop.engines.local.engine import LocalEngine
from strop.support.tables import write_rows

PROMPT, FEW = 8, 32
HEAD = ("shape", "way", "rows", "length", "ms_a_step", "tokens_a_second", "bound_ms", "share",
        "first_seconds")  # fmt: skip


def answered(engine: LocalEngine, lengths: Sequence[int], want: frozenset[str]) -> dict[int, Any]:
    """Run requests of these lengths to their ends; returns the last event of each."""
    rng = random.Random(0)
    for number, length in enumerate(lengths):
        prompt = tuple(rng.randrange(2, engine.vocab_size) for _ in range(PROMPT))
        request = Request(ids=prompt, seed=number, max_tokens=length, want=want)
        engine.start(number, request)
    found: dict[int, Any] = {}
    while len(found) < len(lengths):
        for event in engine.poll():
            if event.ended:
                found[event.request] = event
    return found


def by_engine(engine: LocalEngine, lengths: Sequence[int], device: str) -> tuple[float, float]:
    """Seconds of the first run, and the median of two more."""
    spent = []
    for _ in range(3):
        wait(device)
        began = time.perf_counter()
        answered(engine, lengths, frozenset({"entropy"}))
        engine.forget()
        wait(device)
        spent.append(time.perf_counter() - began)
    return spent[0], statistics.median(spent[1:])


def bound(model: Any, lengths: Sequence[int], speed: float) -> float:
    """Seconds to read the weights, keys and values of a step, in the mean over the steps."""
    config = model.config
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    of_token = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    tokens = sum(length * (PROMPT + length / 2) for length in lengths) / max(lengths)
    return float((weights + tokens * of_token) / speed)


def rows_of(shape: str, options: Any, speed: float) -> Iterator[dict[str, Any]]:
    """One line per way and length."""
    device, rows = options.device, options.rows
    model = model_of(shape, device, torch.bfloat16)

    def line(
        way: str, length: int, lengths: Sequence[int], first: float, spent: float
    ) -> dict[str, Any]:
        least, steps = bound(model, lengths, speed), max(lengths)
        return {
            "shape": shape, "way": way, "rows": rows, "length": length,
            "ms_a_step": f"{1000 * spent / steps:.3f}",
            "tokens_a_second": round(sum(lengths) / spent),
            "bound_ms": f"{1000 * least:.3f}", "share": f"{least * steps / spent:.3f}",
            "first_seconds": f"{first - spent:.1f}",
        }  # fmt: skip

    began = time.perf_counter()
    engine = LocalEngine(model, num_slots=rows)
    own = engine.model
    print(
        f"{shape}: made in {time.perf_counter() - began:.1f} s; pass of modules: "
        f"{own.why_not_fused or 'no'}; not recorded: {own.why_no_graphs or 'no'}"
    )
    for length in options.lengths:
        for way, lengths in (("recorded", [length] * rows), ("uneven", drawn(length, rows))):
            yield line(way, length, lengths, *by_engine(engine, lengths, device))
    agrees("recorded", engine, model)
    if options.profile:
        profiled(engine, rows, device)
    del engine
    few = [FEW] * rows
    plain = LocalEngine(model, num_slots=rows, cuda_graphs=False)
    yield line("launched", FEW, few, *by_engine(plain, few, device))
    agrees("launched", plain, model)
    del plain
    ids = torch.randint(2, 500, (rows, PROMPT), device=device)
    spent = []
    for _ in range(2):
        wait(device)
        began = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                       min_new_tokens=FEW, max_new_tokens=FEW)  # fmt: skip
        wait(device)
        spent.append(time.perf_counter() - began)
    yield line("generate", FEW, few, *spent)


def drawn(length: int, rows: int) -> list[int]:
    """The lengths of uneven answers."""
    rng = random.Random(1)
    return [rng.randint(max(length // 8, 1), length) for _ in range(rows)]


def agrees(way: str, engine: LocalEngine, model: Any) -> None:
    """Print how far log-probabilities differ from those of a plain pass over the same tokens."""
    found = answered(engine, [48, 33, 17, 5], frozenset())
    rng = random.Random(0)
    gaps = []
    for number in range(4):
        prompt = [rng.randrange(2, engine.vocab_size) for _ in range(PROMPT)]
        event = found[number]
        ids = torch.tensor([[*prompt, *event.ids]], device=model.device)
        with torch.no_grad():
            logp = model(input_ids=ids).logits[0, PROMPT - 1 : -1].float().log_softmax(-1)
        own = logp.gather(-1, ids[0, PROMPT:, None])[:, 0].cpu()
        gaps.append((own - torch.tensor(event.logp)).abs())
    every = torch.cat(gaps)
    print(f"{way} agrees: mean {every.mean():.2e}, largest {every.max():.2e} nats", flush=True)
    engine.forget()


def profiled(engine: LocalEngine, rows: int, device: str) -> None:
    """Print the kernels of some steps."""
    from torch.profiler import ProfilerActivity, profile

    answered(engine, [256] * rows, frozenset({"entropy"}))
    for number in range(rows):
        engine.start(number, Request(ids=(5,) * 100, seed=number, max_tokens=200,
                                     want=frozenset({"entropy"})))  # fmt: skip
    for _ in range(100):
        engine.poll()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device != "cpu" else [])]
    with profile(activities=kinds) as found:
        began = time.perf_counter()
        for _ in range(20):
            engine.poll()
        wait(device)
        spent = time.perf_counter() - began
    print(f"20 steps under the profiler: {1000 * spent / 20:.2f} ms each")
    table = found.key_averages()
    kernels = [each for each in table if each.device_type.name == "CUDA"]
    whole = sum(each.self_device_time_total for each in kernels)
    print(
        f"kernels: {whole / 20000:.3f} ms a step, {sum(e.count for e in kernels) / 20:.0f} of them"
    )
    for each in sorted(kernels, key=lambda e: -e.self_device_time_total)[:22]:
        spent, times = each.self_device_time_total / 20000, each.count / 20
        print(f"  {spent:8.4f} ms {times:6.1f}x {each.key[:100]}")
    host = sorted((e for e in table if e.device_type.name == "CPU"),
                  key=lambda e: -e.self_cpu_time_total)  # fmt: skip
    for each in host[:8]:
        spent, times = each.self_cpu_time_total / 20000, each.count / 20
        print(f"  host {spent:8.4f} ms {times:6.1f}x {each.key[:60]}")
    for each in range(rows):
        engine.cancel(each)


def main() -> None:
    """Print the lines, and write them as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", type=some_of([*SHAPES, *(f"{name} lora" for name in SHAPES)]),
                        default="0.6B,1.7B")  # fmt: skip
    parser.add_argument("--lengths", type=lambda x: [int(n) for n in x.split(",")],
                        default=[256, 1024])  # fmt: skip
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", type=device_here, default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(card(options.device), flush=True)
    speed = bandwidth(options.device)
    lines = list[dict[str, Any]]()
    for shape in options.shapes:
        for line in rows_of(shape, options, speed):
            print("  ".join(f"{key} {value}" for key, value in line.items()), flush=True)
            lines.append(line)
            if options.out:  # after every line, so that they remain if a later one fails
                write_rows(options.out, HEAD, lines)


if __name__ == "__main__":
    main()
