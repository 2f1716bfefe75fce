"""How much attention reads when rollouts of earlier steps run beside new ones; what bands save.

    OMP_NUM_THREADS=1 python benchmarks/uneven_rows.py [--method METHOD --model MODEL --steps 3]

Trains with april_partial_rollout, 16 prompts of 32 in flight, and a learning rate of 0. Steps with
bands (docs/ENGINES.md) and without take turns. For both ways it prints, for all steps together:
decode steps; places of the cache that exist, places that are read, and places that reading every
row up to the longest would take; calls of attention per layer; processor time of this process
inside the engine.
"""

import argparse
import collections
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from strop.api.options import settings_of
from strop.engines.local.engine import LocalEngine
from strop.training import loop

METHOD = "april_partial_rollout(num_prompts=16, chunk=32, num_rollouts=8)"
SETTLE = 4  # steps until the number of deferred rollouts is steady
ONE = 1 << 40  # places that a further call would have to save: never
Counts = collections.Counter[str]


def watch(engine: LocalEngine) -> Counts:
    """Start counting the engine's reads."""
    found: Counts = collections.Counter()
    decode, poll = engine.model.decode, engine.poll

    def counted(tokens: Any, positions: Any, bands: Any) -> Any:
        found["decode steps"] += 1
        found["calls"] += len(bands)
        found["there"] += int((positions + 1).sum())
        found["read"] += sum((end - first) * used for first, end, used in bands)
        found["to the longest"] += len(tokens) * max(band.used for band in bands)
        return decode(tokens, positions, bands)

    def timed(seconds: float | None = None) -> Any:
        started = time.process_time()
        events = poll(seconds)
        found["ms"] += round(1000 * (time.process_time() - started))
        return events

    engine.model.decode = counted  # type: ignore[method-assign]
    engine.poll = timed  # type: ignore[method-assign]
    return found


def main() -> None:
    """Train, count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default=METHOD)
    parser.add_argument("--model", default="tiny-worked")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    words = [
        options.method, f"model.name={options.model}", "training.lr=0.0", "threads=1",
        f"training.steps={SETTLE + 2 * options.steps}", "evaluation.every=0",
        "training.inspect=0", "training.rollouts_every=0",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = loop.start(settings_of(words, {}, None), Path(folder) / "run")
        engine: Any = run.world.engine
        now, bands = watch(engine), engine.slots.bands
        found: dict[str, Counts] = {"bands": Counts(), "one band": Counts()}
        calls = {"bands": bands.call, "one band": ONE}
        for step in range(SETTLE + 2 * options.steps):
            turn = step - SETTLE
            way = "bands" if turn < 0 or (turn + turn // 2) % 2 else "one band"
            bands.call = calls[way]
            now.clear()
            with run.torch_set():
                loop._one_step(run, None)
            if turn >= 0:
                found[way].update(now)
        run.close()
    for way, counts in found.items():
        print(f"{way}: " + ", ".join(f"{name} {number}" for name, number in counts.items()))
    ratio = found["bands"]["ms"] / found["one band"]["ms"]
    print(f"processor time of the engine, bands / one band: {ratio:.2f}")


if __name__ == "__main__":
    main()
