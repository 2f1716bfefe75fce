"""The local engine beside transformers' `generate` and a bare loop; forks beside resubmission.

    OMP_NUM_THREADS=1 python benchmarks/engine.py [--models small,tiny --rows 32 --repeats 3]

Models: `tiny`, the one that ships, and `small`, a random Qwen3 of 5.8 million weights. Prompts have
24 tokens, answers are drawn at temperature 1 from the whole vocabulary, their ends are set:

    equal   2 * rows answers of 96 tokens
    long    64 answers with a long tail: 8 + exponential of mean 24 tokens, at most 192

`generate` and the loop take `rows` prompts at a time, the engine has `rows` slots. The loop is the
least that samples with a cache: a forward pass, softmax, multinomial, for answers of equal length.
No prompt is given twice, so none has its first pass saved.

Forks: 16 kept requests of 24 + 232 tokens (as many as the context of `tiny` has room for) are gone
on from, once or four times each, for 8 tokens; a resubmission gives the same tokens afresh.

Memory: the most places (rows times the longest) that the engine's cache ever has, beside those of a
loop over `rows` prompts at its last step. A place costs both the same.

Variants take turns, so that a busy machine slows all of them. Printed are medians over the repeats
of the processor time of this process, which hardly depends on what else runs, and their ratios.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.generation import StoppingCriteria, StoppingCriteriaList

from strop.rollout.drive import sample
from strop.rollout.engines.base import Request
from strop.rollout.engines.local import LocalEngine
from strop.training import models

PROMPT, EQUAL, PARENT, CHILD = 24, 96, 232, 8
CONTEXT = 512


def small() -> Any:
    """A random Qwen3 with a vocabulary of 4096."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def loaded(name: str) -> Any:
    model = small() if name == "small" else models.load("tiny").model.eval()
    model.generation_config.eos_token_id = None  # `generate` would fill it in
    return model


def prompts(model: Any, number: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.config.vocab_size
    return [
        tuple(torch.randint(3, vocabulary, (PROMPT,), generator=generator).tolist())
        for _ in range(number)
    ]


def lengths(kind: str, rows: int, room: int) -> list[int]:
    if kind == "equal":
        return [min(EQUAL, room)] * (2 * rows)
    generator = torch.Generator().manual_seed(2)
    drawn = torch.empty(64).exponential_(1 / 24, generator=generator)
    return [min(8 + int(x), 192, room) for x in drawn.tolist()]


class EndsAt(StoppingCriteria):
    """Rows end after so many new tokens each."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = torch.tensor(ends) + PROMPT

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self.ends


def by_engine(model: Any, rows: int) -> Callable[[Any, Sequence[int]], int]:
    engine = LocalEngine(model, num_slots=rows)

    def run(asked: Sequence[tuple[int, ...]], ends: Sequence[int]) -> int:
        requests = [
            Request(ids, end, seed=n) for n, (ids, end) in enumerate(zip(asked, ends, strict=True))
        ]
        return sum(len(e.ids) for found in sample(engine, requests) for e in found.events)

    return run


def by_generate(model: Any, rows: int) -> Callable[[Any, Sequence[int]], int]:
    def run(asked: Sequence[tuple[int, ...]], ends: Sequence[int]) -> int:
        made = 0
        for first in range(0, len(asked), rows):
            ids, some = torch.tensor(asked[first : first + rows]), ends[first : first + rows]
            settings = GenerationConfig(
                do_sample=True, top_k=0, top_p=1.0, temperature=1.0, max_new_tokens=max(some),
                pad_token_id=0,
            )  # fmt: skip
            with torch.no_grad():
                told = model.generate(
                    ids, attention_mask=torch.ones_like(ids), generation_config=settings,
                    stopping_criteria=StoppingCriteriaList([EndsAt(some)]),
                )  # fmt: skip
            assert told.shape[1] == PROMPT + max(some)
            made += sum(some)
        return made

    return run


def by_loop(model: Any, rows: int) -> Callable[[Any, Sequence[int]], int]:
    def run(asked: Sequence[tuple[int, ...]], ends: Sequence[int]) -> int:
        made = 0
        with torch.no_grad():
            for first in range(0, len(asked), rows):
                ids, cache = torch.tensor(asked[first : first + rows]), DynamicCache()
                for _ in range(ends[first]):
                    said = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    ids = torch.multinomial(said.logits[:, -1].float().softmax(-1), 1)
                    made += len(ids)
        return made

    return run


def seconds(run: Callable[[], Any]) -> float:
    begun = time.process_time()
    run()
    return time.process_time() - begun


def taking_turns(variants: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median processor seconds of each; every one is run once before."""
    found: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(repeats + 1):
        for name, run in variants.items():
            spent = seconds(run)
            if turn:
                found[name].append(spent)
    return {name: statistics.median(spent) for name, spent in found.items()}


def speed(name: str, model: Any, rows: int, repeats: int) -> None:
    room = model.config.max_position_embeddings - PROMPT
    for kind in ("equal", "long"):
        ends = lengths(kind, rows, room)
        asked = prompts(model, len(ends))
        makers = {"engine": by_engine, "generate": by_generate}
        makers |= {"loop": by_loop} if kind == "equal" else {}
        runs = {key: make(model, rows) for key, make in makers.items()}
        variants = {key: functools.partial(run, asked, ends) for key, run in runs.items()}
        spent = taking_turns(variants, repeats)
        made = sum(ends)
        rates = "  ".join(f"{key} {made / each:.0f}" for key, each in spent.items())
        ratios = "  ".join(
            f"engine / {key} {each / spent['engine']:.2f}"
            for key, each in spent.items()
            if key != "engine"
        )
        print(f"{name} {kind}: tokens/s {rates};  {ratios}", flush=True)


class Measured(LocalEngine):
    """Counts its steps, and knows the most places that its cache has had."""

    most = steps = 0

    def step(self) -> Any:
        found = super().step()
        cache = self.slots.cache
        self.steps += 1
        self.most = max(self.most, cache.lines * cache.places)
        return found


def memory(name: str, model: Any, rows: int) -> None:
    room = model.config.max_position_embeddings - PROMPT
    for kind, bound in (("equal", None), ("long", None), ("long", rows * 48)):
        ends = lengths(kind, rows, room)
        engine = Measured(model, num_slots=rows, max_cached_tokens=bound)
        pairs = zip(prompts(model, len(ends)), ends, strict=True)
        sample(engine, [Request(ids, end, seed=1) for ids, end in pairs])
        whole = rows * (PROMPT + max(ends) - 1)
        limit = "" if bound is None else f", engine.cache_tokens={bound}"
        print(
            f"{name} {kind}{limit}: {engine.most} places, rows * longest {whole}, ratio "
            f"{engine.most / whole:.2f}; {engine.steps} steps"
        )


def forks(name: str, model: Any, repeats: int) -> None:
    """Of kept parents, and of their tokens as new requests, in one engine."""
    parent = min(PARENT, model.config.max_position_embeddings - PROMPT - CHILD)
    engine = LocalEngine(model, num_slots=16 * 5)
    ids = [
        engine.submit(Request(prompt, parent, seed=n, keep=True))
        for n, prompt in enumerate(prompts(model, 16))
    ]
    finish(engine)
    tokens = {id: tuple(engine.known[id].tokens) for id in ids}

    def go_on(number: int, fork: bool) -> None:
        children = []
        for seed, id in enumerate(ids * number):
            if fork:
                child = engine.fork(id, len(tokens[id]), seed=100 + seed, max_tokens=CHILD)
            else:
                child = engine.submit(Request(tokens[id], CHILD, seed=100 + seed))
            children.append(child)
        finish(engine)
        for child in children:
            engine.release(child)

    for number in (1, 4):
        variants = {
            "fork": functools.partial(go_on, number, True),
            "resubmission": functools.partial(go_on, number, False),
        }
        fork, again = taking_turns(variants, repeats).values()
        print(
            f"{name} {number} of {PROMPT + parent} tokens: fork {1000 * fork:.0f} ms, "
            f"resubmission {1000 * again:.0f} ms, ratio {fork / again:.2f}",
            flush=True,
        )


def finish(engine: LocalEngine) -> None:
    while engine.busy():
        engine.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="small,tiny")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.models.split(","):
        model = loaded(name)
        speed(name, model, options.rows, options.repeats)
        forks(name, model, options.repeats)
        memory(name, model, options.rows)


if __name__ == "__main__":
    main()
