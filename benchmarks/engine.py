"""The local engine beside transformers' `generate` and a bare loop; branches beside resubmission.

    OMP_NUM_THREADS=1 python benchmarks/engine.py [--models small,tiny --rows 32 --repeats 3]

Models: `tiny`, the shipped one; `small`, a random Qwen3 of 5.8 million weights; `large`, one of
40 million with a vocabulary of 16,384; and `tiny-worked`. Prompts have 24 tokens, answers are
sampled at temperature 1 from the whole vocabulary, and their lengths are fixed:

    equal   2 * rows answers of 96 tokens (not of `large`)
    long    64 answers with a long tail: 8 + exponential of mean 24 tokens, at most 192;
            of `large` 16 + exponential of mean 64, at most 512

`tiny-worked` answers its own puzzles instead, 32 of them 16 times, and stops by itself, as in a
step of `strop train --model tiny-worked`, with the same number of slots, 512.

`generate` and the loop take `rows` prompts at a time, the engine has `rows` slots. The loop is the
simplest one that samples with a cache: a forward pass, softmax, multinomial, until the last of its
rows has ended; tokens that a row samples after its end are not counted. The loop by hand calls no
module either: it fuses the weights of q, k, v and those of gate, up, and has keys and values in
tensors as long as the longest row. Except for `tiny-worked` no prompt is given twice, so that no
prompt's prefill is shared.

Branches: 16 kept requests of 24 + 232 tokens (the largest number that fits into the context of
`tiny`) are continued, once or four times each, for 8 tokens; a resubmission sends the same tokens
again as new requests.

Memory: the largest size of the engine's cache, in places (rows times the longest), beside that of a
loop over `rows` prompts at its last step. A place costs the same in both. --peak prints the peak
memory of a process that makes one run of each and nothing else, and how much of it exceeds the
process's memory with the model loaded; also for the engine with torch's own products
(`model.onednn=false`), for which no weights are packed.

Variants take turns, so that a busy machine slows all of them. The output has medians over the
repeats of the processor time of this process, which hardly depends on other load, and their ratios.
"""

import argparse
import functools
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from machine import medians
from processes import peak_mib
from torch import nn
from transformers import DynamicCache, GenerationConfig, Qwen3Config, Qwen3ForCausalLM
from transformers.generation import StoppingCriteria, StoppingCriteriaList

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Request
from strop.engines.local.causal import cache_name
from strop.engines.local.engine import LocalEngine
from strop.support import linear
from strop.training.learner import models

PROMPT, EQUAL, PARENT, CHILD = 24, 96, 232, 8
CONTEXT = 1024
SIZES = {  # vocabulary, width, width of the MLP, layers, heads of queries and of keys
    "small": (4096, 256, 768, 6, 4, 2),
    "large": (16384, 512, 1536, 10, 8, 4),
}


def random_model(vocabulary: int, width: int, wide: int, layers: int, heads: int, keys: int) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=wide, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=keys, head_dim=64,
        max_position_embeddings=CONTEXT, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def loaded(name: str, onednn: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    if name in SIZES:
        model = random_model(*SIZES[name])
    else:
        model = models.load(name, onednn=False).model.eval()
    model.to(dtype)
    if onednn:
        linear.use_in(model)  # for all variants; a model that strop loads has it too
    model.generation_config.eos_token_id = None  # `generate` would fill it in
    return model


def prompts(model: Any, number: int) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(1)
    vocabulary = model.config.vocab_size
    return [
        tuple(torch.randint(3, vocabulary, (PROMPT,), generator=generator).tolist())
        for _ in range(number)
    ]


def lengths(name: str, kind: str, rows: int, room: int) -> list[int]:
    if kind == "equal":
        return [min(EQUAL, room)] * (2 * rows)
    least, mean, most = (16, 64, 512) if name == "large" else (8, 24, 192)
    generator = torch.Generator().manual_seed(2)
    drawn = torch.empty(64).exponential_(1 / mean, generator=generator)
    return [min(least + int(x), most, room) for x in drawn.tolist()]


class EndsAt(StoppingCriteria):
    """Ends each row after its own number of new tokens."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = torch.tensor(ends) + PROMPT

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self.ends


def by_engine(model: Any, rows: int) -> Callable[[Any, Sequence[int]], int]:
    return answering(LocalEngine(model, num_slots=rows))


def answering(engine: LocalEngine) -> Callable[[Any, Sequence[int]], int]:
    def run(asked: Sequence[tuple[int, ...]], ends: Sequence[int]) -> int:
        requests = [
            Request(ids, end, seed=n) for n, (ids, end) in enumerate(zip(asked, ends, strict=True))
        ]
        return sum(
            len(e.ids) for found in asynchronous(engine).sample(requests) for e in found.events
        )

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
    name = cache_name(model)

    def run(asked: Sequence[tuple[int, ...]], ends: Sequence[int]) -> int:
        with torch.no_grad():
            for first in range(0, len(asked), rows):
                ids, cache = torch.tensor(asked[first : first + rows]), DynamicCache()
                for _ in range(max(ends[first : first + rows])):
                    said = model(ids, **{name: cache}, use_cache=True, logits_to_keep=1)
                    ids = torch.multinomial(said.logits[:, -1].float().softmax(-1), 1)
        return sum(ends)

    return run


def by_hand(model: Any, rows: int) -> Callable[[Any, Sequence[int]], int]:
    """The same loop on plain tensors, as one would write it for a Qwen3."""
    config, linear_of, norm = model.config, nn.functional.linear, nn.functional.rms_norm
    size, heads, keys = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    layers = [
        (each, torch.cat([m.weight for m in (a.q_proj, a.k_proj, a.v_proj)]).detach(),
         torch.cat([each.mlp.gate_proj.weight, each.mlp.up_proj.weight]).detach())
        for each in model.model.layers for a in [each.self_attn]
    ]  # fmt: skip
    embedded = model.model.embed_tokens.weight

    def normed(x: torch.Tensor, module: Any) -> torch.Tensor:
        return norm(x, module.weight.shape, module.weight, module.variance_epsilon)

    def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def forward(ids: torch.Tensor, at: int, cache: torch.Tensor) -> torch.Tensor:
        wide = ids.shape[1]
        x = embedded[ids]
        cos, sin = model.model.rotary_emb(x, torch.arange(at, at + wide)[None])
        for number, (layer, qkv, gate_up) in enumerate(layers):
            own = layer.self_attn
            all_heads = linear_of(normed(x, layer.input_layernorm), qkv)
            all_heads = all_heads.view(len(ids), wide, -1, size).transpose(1, 2)
            q, k, v = all_heads.split([heads, keys, keys], 1)
            cache[number, 0, :, :, at : at + wide] = turned(normed(k, own.k_norm), cos, sin)
            cache[number, 1, :, :, at : at + wide] = v
            seen = nn.functional.scaled_dot_product_attention(
                turned(normed(q, own.q_norm), cos, sin), *cache[number, :, :, :, : at + wide],
                is_causal=wide > 1, enable_gqa=heads > keys,
            )  # fmt: skip
            x = x + linear_of(seen.transpose(1, 2).flatten(2), own.o_proj.weight)
            gate, up = linear_of(normed(x, layer.post_attention_layernorm), gate_up).chunk(2, -1)
            x = x + linear_of(nn.functional.silu(gate) * up, layer.mlp.down_proj.weight)
        return linear_of(normed(x[:, -1], model.model.norm), model.lm_head.weight)

    def run(asked: Sequence[tuple[int, ...]], ends: Sequence[int]) -> int:
        with torch.no_grad():
            for first in range(0, len(asked), rows):
                ids, some = torch.tensor(asked[first : first + rows]), ends[first : first + rows]
                shape = (len(layers), 2, len(ids), keys, PROMPT + max(some), size)
                cache, at = torch.empty(shape, dtype=model.dtype), 0
                for _ in range(max(some)):
                    logits = forward(ids, at, cache)
                    at += ids.shape[1]
                    ids = torch.multinomial(logits.float().softmax(-1), 1)
        return sum(ends)

    return run


def puzzle(drawn: random.Random, end: str = "\n") -> str:
    """A random prompt of Countdown; end: what follows the target, by default as `tiny-worked`."""
    numbers = [str(drawn.randint(1, 10)) for _ in range(drawn.choice([3, 4, 4]))]
    return f"{','.join(numbers)}:{drawn.randint(5, 50)}{end}"


def worked(repeats: int) -> None:
    """Compares the engine and the loop with padded prompts on a step's answers of `tiny-worked`."""
    found = models.load("tiny-worked")
    drawn = random.Random(0)
    asked = [tuple(found.tokenizer.encode(puzzle(drawn))) for _ in range(32)]
    engine = LocalEngine(found.model, num_slots=512)
    requests = [
        Request(ids, 160, seed=n, stop_ids=found.stop_ids) for n, ids in enumerate(asked * 16)
    ]

    def by_the_engine() -> list[int]:
        return [
            sum(len(e.ids) for e in each.events) for each in asynchronous(engine).sample(requests)
        ]

    ends = by_the_engine()
    wide = max(map(len, asked))
    padded = [(0,) * (wide - len(ids)) + ids for ids in asked * 16]
    loop = functools.partial(by_loop(found.model, 512), padded, ends)
    spent = medians({"engine": by_the_engine, "loop": loop}, repeats)
    print(
        f"tiny-worked: {len(ends)} answers, mean {statistics.mean(ends):.0f}, longest {max(ends)};"
        f" tokens/s engine {sum(ends) / spent['engine']:.0f}  loop {sum(ends) / spent['loop']:.0f};"
        f"  engine / loop {spent['loop'] / spent['engine']:.2f}; engine {spent['engine']:.2f} s"
    )


def kinds_of(name: str) -> tuple[str, ...]:
    return ("long",) if name == "large" else ("equal", "long")


def speed(name: str, model: Any, rows: int, repeats: int) -> None:
    room = model.config.max_position_embeddings - PROMPT
    for kind in kinds_of(name):
        ends = lengths(name, kind, rows, room)
        asked = prompts(model, len(ends))
        makers = {"engine": by_engine, "loop": by_loop, "loop by hand": by_hand}
        makers |= {"generate": by_generate} if name != "large" else {}
        runs = {key: make(model, rows) for key, make in makers.items()}
        variants = {key: functools.partial(run, asked, ends) for key, run in runs.items()}
        spent = medians(variants, repeats)
        made = sum(ends)
        rates = "  ".join(f"{key} {made / each:.0f}" for key, each in spent.items())
        ratios = "  ".join(
            f"engine / {key} {each / spent['engine']:.2f}"
            for key, each in spent.items()
            if key != "engine"
        )
        print(f"{name} {kind}: tokens/s {rates};  {ratios}", flush=True)


class Measured(LocalEngine):
    """Counts its steps, and records the largest size of its cache."""

    most = steps = 0

    def poll(self, seconds: float | None = None) -> Any:
        found = super().poll(seconds)
        self.steps += 1
        self.most = max(self.most, self.slots.cache.num_bytes())
        return found


def memory(name: str, model: Any, rows: int) -> None:
    config = model.config
    room = config.max_position_embeddings - PROMPT
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    place = numbers * model.dtype.itemsize  # bytes
    for kind, bound in (("equal", None), ("long", None), ("long", rows * 48)):
        if kind not in kinds_of(name):
            continue
        ends = lengths(name, kind, rows, room)
        bound = max(bound, 2 * (PROMPT + max(ends))) if bound else None
        engine = Measured(model, num_slots=rows, max_cached_tokens=bound)
        pairs = zip(prompts(model, len(ends)), ends, strict=True)
        asynchronous(engine).sample([Request(ids, end, seed=1) for ids, end in pairs])
        whole = rows * (PROMPT + max(ends) - 1)
        limit = "" if bound is None else f", engine.cache_tokens={bound}"
        most = engine.most // place
        print(
            f"{name} {kind}{limit}: {most} places, rows * longest {whole}, ratio "
            f"{most / whole:.2f}; {engine.steps} steps",
            flush=True,
        )


def peaks(name: str, rows: int, dtype: str) -> None:
    """Prints the peak memory of the processes, and how much exceeds the loaded model's."""
    found = {}
    for way in ("engine", "unpacked", "loop"):
        command = [sys.executable, __file__, "--rows", str(rows), "--dtype", dtype]
        command += ["--alone", f"{name}:{way}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[way] = [float(word) for word in done.stdout.split()]
    print(f"{name} {kinds_of(name)[-1]}: peak memory of the process; beyond the loaded model's")
    for way, told in found.items():
        ratios = (here / there for here, there in zip(told, found["loop"], strict=True))
        cells = zip(told, ratios, strict=True)
        print(f"    {way:10s}" + "; ".join(f"{mb:6.0f} MB, {x:.2f} of the loop" for mb, x in cells))


def alone(name: str, way: str, rows: int, dtype: str) -> None:
    model = loaded(name, way != "unpacked", getattr(torch, dtype))
    ends = lengths(name, "long", rows, model.config.max_position_embeddings - PROMPT)
    run = (by_loop if way == "loop" else by_engine)(model, rows)
    asked = prompts(model, len(ends))
    with torch.no_grad():
        model(torch.tensor(asked[:1]))
    before = peak_mib()
    run(asked, ends)
    print(peak_mib(), peak_mib() - before)


def branches(name: str, model: Any, repeats: int) -> None:
    """Compares continuing kept parents with sending their tokens as new requests, in one engine."""
    parent = min(PARENT, model.config.max_position_embeddings - PROMPT - CHILD)
    engine = LocalEngine(model, num_slots=16 * 5)
    ids = range(16)
    for id, prompt in zip(ids, prompts(model, 16), strict=True):
        engine.start(id, Request(prompt, parent, seed=id, keep=True))
    finish(engine)
    # without the last: a child that continues all tokens takes over the slot, and the parent ends
    tokens = {id: tuple(engine.known[id].tokens[:-1]) for id in ids}

    def go_on(number: int, branch: bool) -> None:
        for seed, id in enumerate([*ids] * number):
            request = Request(tokens[id], CHILD, seed=100 + seed, keep=branch)
            engine.start(100 + seed, request, (id, len(tokens[id])) if branch else None)
        finish(engine)
        for child in range(100, 100 + 16 * number):
            engine.cancel(child)

    for number in (1, 4):
        variants = {
            "branch": functools.partial(go_on, number, True),
            "resubmission": functools.partial(go_on, number, False),
        }
        branch, again = medians(variants, repeats).values()
        print(
            f"{name} {number} of {PROMPT + parent} tokens: branch {1000 * branch:.0f} ms, "
            f"resubmission {1000 * again:.0f} ms, ratio {branch / again:.2f}",
            flush=True,
        )


def finish(engine: LocalEngine) -> None:
    while any(row.status != "ended" for row in engine.known.values()):
        engine.poll()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="small,tiny")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                        help="of the random models and of tiny")  # fmt: skip
    parser.add_argument("--peak", action="store_true")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        alone(*options.alone.split(":"), options.rows, options.dtype)
        return
    for name in options.models.split(","):
        if options.peak:
            peaks(name, options.rows, options.dtype)
        elif name == "tiny-worked":
            worked(options.repeats)
        else:
            model = loaded(name, dtype=getattr(torch, options.dtype))
            speed(name, model, options.rows, options.repeats)
            if name != "large":
                branches(name, model, options.repeats)
            memory(name, model, options.rows)


if __name__ == "__main__":
    main()
