"""Steps of the local engine beside a bare loop's, and how much a stream of rollouts reads.

    OMP_NUM_THREADS=1 python benchmarks/engine_steps.py [--repeats 8]

Steps: `tiny`, 32 prompts of 24 tokens, answers of 96; engine and loop of benchmarks/engine.py
take turns. The output has the median processor time of a step, without prefill, and of the engine's
work besides the forward pass. To compare two versions, let them take turns.

Stream: `tiny-worked`, 16 prompts of 8 answers in flight, 8 more answers whenever 8 have ended, and
new weights every 50 of 250 steps, as in an asynchronous run. It counts numbers that do not depend
on load: calls of attention per layer and step; places of the cache that exist and that are read;
rows moved; tokens of prompts, of the prefill passes with padding, and these passes.
"""

import argparse
import collections
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from engine import EQUAL, loaded, prompts, puzzle
from transformers import DynamicCache

from strop.engines.base import Request
from strop.engines.local.causal import cache_name
from strop.engines.local.engine import LocalEngine
from strop.training.learner import models

Counts = collections.Counter[str]


def by_engine(engine: LocalEngine, asked: list[tuple[int, ...]]) -> Iterator[None]:
    """One step per iteration; the first, with the prefill, runs before."""
    for number, own in enumerate(asked):
        engine.start(number, Request(own, EQUAL, seed=number))
    engine.poll()
    while engine.known:
        yield
        engine.poll()


def by_loop(model: Any, asked: list[tuple[int, ...]]) -> Iterator[None]:
    """The same for the loop."""
    ids, name, cache = torch.tensor(asked), cache_name(model), DynamicCache()
    for number in range(EQUAL):
        if number:
            yield
        with torch.no_grad():
            said = model(ids, **{name: cache}, use_cache=True, logits_to_keep=1)
            ids = torch.multinomial(said.logits[:, -1].float().softmax(-1), 1)


def seconds_of(turns: Iterator[None]) -> list[float]:
    next(turns)
    found = []
    over = False
    while not over:
        started = time.thread_time()
        over = next(turns, 0) == 0
        found.append(time.thread_time() - started)
    return found


def steps(repeats: int) -> None:
    model = loaded("tiny")
    asked = prompts(model, 32)
    engine, beside = (LocalEngine(model, num_slots=32) for _ in range(2))
    logits = torch.zeros(32, model.config.vocab_size)
    beside.model.decode = lambda tokens, *_: logits  # type: ignore[method-assign]
    ways: dict[str, Callable[[], Iterator[None]]] = {
        "engine": lambda: by_engine(engine, asked),
        "loop": lambda: by_loop(model, asked),
        "engine without the forward pass": lambda: by_engine(beside, asked),
    }
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way, run in ways.items():
            spent[way] += seconds_of(run()) if turn else []
            if not turn:
                collections.deque(run(), maxlen=0)
    for way, found in spent.items():
        print(f"{way}: {1e6 * statistics.median(found):.0f} microseconds a step")


def watch(engine: LocalEngine) -> Counts:
    found: Counts = collections.Counter()
    model, slots = engine.model, engine.slots
    decode, fill, move = model.decode, model._fill, slots._move

    def decoded(tokens: Any, positions: Any, bands: Any) -> Any:
        found["steps"] += 1
        found["calls"] += len(bands)
        found["there"] += int((positions + 1).sum())
        found["read"] += sum((end - first) * used for first, end, used in bands)
        return decode(tokens, positions, bands)

    def filled(parts: Any) -> None:
        widths = [part.end - part.start for part in parts]
        found["prompt passes"] += 1
        found["prompt tokens"] += sum(widths)
        found["padded"] += len(widths) * max(widths)
        fill(parts)

    def moved(source: Any, target: Any) -> None:
        found["rows moved"] += len(source)
        move(source, target)

    model.decode, model._fill, slots._move = decoded, filled, moved  # type: ignore[method-assign]
    return found


def stream(number: int = 250, every: int = 50) -> Counts:
    made = models.load("tiny-worked")
    drawn = random.Random(0)
    engine = LocalEngine(made.model, num_slots=512)
    found = watch(engine)
    started = 0

    def begin() -> None:
        nonlocal started
        ids = tuple(made.tokenizer.encode(puzzle(drawn)))
        for _ in range(8):
            engine.start(started, Request(ids, 160, seed=started, stop_ids=made.stop_ids))
            started += 1

    for _ in range(16):
        begin()
    ended = 0
    for step in range(1, number + 1):
        for event in engine.poll():
            if event.ended:
                ended += 1
                if not ended % 8:
                    begin()
        if not step % every:
            engine.load_weights(None, engine.version + 1)
    return found


def main() -> None:
    """Measure, count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps(options.repeats)
    print(", ".join(f"{name} {number}" for name, number in stream().items()))


if __name__ == "__main__":
    main()
