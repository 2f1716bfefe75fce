"""The cost of padding in an update, with long-tailed rows: one pass, cut passes, shared prefixes.

    OMP_NUM_THREADS=1 python benchmarks/padding.py [--repeats 5] [--models tiny,small]

Prompts of 8 random tokens with 8 random answers each, whose lengths are geometric (mean 32, at most
256), on random Qwen3 models. Forward and backward of all rows: padded in one pass; in passes that
`Batch.split` cuts where padding outweighs a pass of so many tokens; as a forest of shared prefixes,
which has no padding; and as `training.share_prefixes=auto` chooses. The ways take turns; the output
has medians of processor seconds, and the machine's speed in float32 matrix products.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from command_line import some_of
from machine import medians, speed
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from strop.batch.batch import Batch, from_padded
from strop.training.learner.policy import Policy

PROMPT, ANSWERS, MEAN, LONGEST, BUDGET = 8, 8, 32, 256, 65536
MODELS = {  # vocabulary, width, inner width, layers, heads; prompts
    "tiny": (32, 96, 256, 3, 3, 32),
    "small": (2048, 256, 768, 6, 8, 8),
}
PASSES = (32, 64, 128, 256, 512)  # the assumed cost of a pass, in tokens


def model_of(name: str) -> Qwen3ForCausalLM:
    """A random model."""
    torch.manual_seed(0)
    vocabulary, width, inner, layers, heads, _ = MODELS[name]
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=layers, head_dim=32, num_attention_heads=heads,
        num_key_value_heads=heads, max_position_embeddings=512, tie_word_embeddings=True,
        attn_implementation="sdpa",
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def rows_of(name: str) -> Batch:
    """Random prompts and answers."""
    vocabulary, prompts = MODELS[name][0], MODELS[name][-1]
    rng = torch.Generator().manual_seed(0)
    rolled = torch.rand(prompts * ANSWERS, generator=rng).log() / math.log(1 - 1 / MEAN)
    length_B = rolled.long().clamp(1, LONGEST)
    width = PROMPT + int(length_B.max())
    ids_BL = torch.randint(2, vocabulary, (len(length_B), width), generator=rng)
    ids_BL[:, :PROMPT] = ids_BL[::ANSWERS, :PROMPT].repeat_interleave(ANSWERS, 0)
    place_L = torch.arange(width)
    mask_BL = (place_L >= PROMPT) & (place_L < PROMPT + length_B[:, None])
    return from_padded({"id_T": ids_BL}, mask_BL)


def push(policy: Policy, batch: Batch, passes: list[Tensor]) -> None:
    """Forward and backward, with the same adjoint for every token."""
    for index_B in passes:
        micro = batch.take(index_B)
        adjoint = torch.full((int(micro["mask_T"].sum()),), 1e-3)
        policy.push(micro, ("logp_T",), lambda rows, _, a=adjoint: {"logp_T": a[rows]}, False, 1.0)


def compare(name: str, repeats: int) -> None:
    """Print one line per way."""
    policy, batch = Policy(model_of(name), token_budget=BUDGET), rows_of(name)
    longest_B, rows_B = batch.padded()
    ways: dict[str, tuple[str, Callable[[], list[Tensor]]]] = {
        "one pass": ("off", lambda: batch.split(BUDGET)),
        **{f"cut at {n}": ("off", lambda n=n: batch.split(BUDGET, n)) for n in PASSES},
        "shared": ("on", lambda: [batch["index_B"]]),
        "auto": ("auto", lambda: policy.micro_batches(batch)),
    }

    def run(share: Any, cut: Callable[[], list[Tensor]]) -> None:
        policy.share = share
        push(policy, batch, cut())

    spent = medians({way: partial(run, *how) for way, how in ways.items()}, repeats)
    print(f"{name}: {batch.size('B')} rows, {batch.size('T')} tokens")
    for way, (share, cut) in ways.items():
        line = f"  {way:10s} {spent[way]:.3f} s"
        if share == "off":
            passes = cut()
            places = sum(int(longest_B[p].max()) * int(rows_B[p].sum()) for p in passes)
            line += f", {len(passes)} passes, {places} places"
        print(line, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", type=some_of(MODELS), default=",".join(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {speed()}")
    for name in options.models:
        compare(name, options.repeats)


if __name__ == "__main__":
    main()
