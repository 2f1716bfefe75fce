"""Where the local engine spends its time, by kind of operator and by Python function.

    OMP_NUM_THREADS=1 python benchmarks/engine_profile.py [--model large --kind long --answers 48]

Model, prompts and lengths are those of benchmarks/engine.py. There are three runs after a warm-up:
one without a profiler, one under torch's profiler, whose shares are of the time of all operators,
and one under cProfile with processor time, which overstates the cost of Python.

Beside them it prints the least that a step needs: the time to read all weights once, at the pace of
a product with the largest of them, which no processor cache holds.
"""

import argparse
import cProfile
import pstats
import statistics
import time
from collections import Counter
from typing import Any

import torch
from engine import answering, kinds_of, lengths, loaded, prompts
from torch.profiler import ProfilerActivity, profile

from strop.engines.local.engine import LocalEngine

KINDS = {  # by the beginning of an operator's name; operators in none of them are "all else"
    "linear layers": ("mkldnn::_linear", "aten::mm", "aten::addmm", "aten::linear"),
    "packing weights": ("mkldnn::_reorder",),
    "attention": ("aten::_scaled_dot", "aten::scaled_dot"),
    "writing the cache": ("aten::index_copy_",),
    "drawing": ("aten::exp_", "aten::cumsum", "aten::searchsorted", "aten::amax", "aten::gather"),
    "views": ("aten::view", "aten::slice", "aten::transpose", "aten::as_strided", "aten::reshape",
              "aten::unsqueeze", "aten::select", "aten::expand", "aten::narrow", "aten::_unsafe"),
    "norms, rotary embedding, gates": (
        "aten::mul", "aten::add", "aten::pow", "aten::mean", "aten::sum", "aten::rsqrt",
        "aten::silu", "aten::neg", "aten::cat", "aten::div", "aten::sub",
    ),
}  # fmt: skip


def by_operator(run: Any) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    spent: Counter[str] = Counter()
    for each in found.key_averages():
        kind = next((kind for kind, of in KINDS.items() if each.key.startswith(of)), "all else")
        spent[kind] += each.self_cpu_time_total
    print("\nof the time of all operators")
    for kind, microseconds in spent.most_common():
        print(f"  {kind:32s}{microseconds / spent.total():7.1%}")


def by_function(run: Any, number: int) -> None:
    found = cProfile.Profile(time.process_time)
    found.enable()
    run()
    found.disable()
    stats: Any = pstats.Stats(found)
    lines = sorted(stats.stats.items(), key=lambda item: -item[1][2])
    python = sum(own for (file, *_), (_, _, own, *_) in lines if file != "~") / stats.total_tt
    print(
        f"\nof processor time, each function without those that it calls; Python's own {python:.1%}"
    )
    for (file, line, name), (_, calls, own, *_) in lines[:number]:
        where = f"{'/'.join(file.split('/')[-2:])}:{line} " if line else ""
        print(f"  {own / stats.total_tt:6.1%} {calls:8d} calls  {where}{name}")


def reading(model: Any) -> tuple[float, float]:
    """Seconds to read all weights, and GB/s, at the pace of one row times the largest weight."""
    largest = max(model.parameters(), key=lambda each: each.numel()).detach()
    row = torch.ones(1, largest.shape[1])
    spent = []
    for _ in range(12):
        started = time.process_time()
        torch.nn.functional.linear(row, largest)
        spent.append(time.process_time() - started)
    pace = 4 * largest.numel() / statistics.median(spent)
    return 4 * sum(each.numel() for each in model.parameters()) / pace, pace / 1e9


def passes_of(engine: LocalEngine) -> int:
    """The passes that an engine has made, over prompts and over new tokens."""
    found = engine.passes.as_dict()
    return int(found["prefill/passes"] + found["decode/passes"])


def main() -> None:
    """Run three times, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="large")
    parser.add_argument("--kind", default="long")
    parser.add_argument("--answers", type=int, default=48)
    parser.add_argument("--functions", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = loaded(options.model)
    kind = options.kind if options.kind in kinds_of(options.model) else kinds_of(options.model)[0]
    room = model.config.max_position_embeddings - 24
    ends = lengths(options.model, kind, 32, room)[: options.answers]
    asked = prompts(model, len(ends))
    engine = LocalEngine(model, num_slots=32)
    generate = answering(engine)
    generate(asked[:4], ends[:4])
    before = passes_of(engine)
    started = time.process_time()
    made = generate(asked, ends)
    spent = time.process_time() - started
    steps = passes_of(engine) - before
    seconds, pace = reading(model)
    print(
        f"{options.model} {kind}: {made} tokens in {steps} passes, {made / spent:.0f} tokens/s; a "
        f"pass takes {1000 * spent / steps:.1f} ms, reading all weights {1000 * seconds:.1f} ms "
        f"({pace:.1f} GB/s)"
    )
    by_operator(lambda: generate(asked, ends))
    by_function(lambda: generate(asked, ends), options.functions)


if __name__ == "__main__":
    main()
