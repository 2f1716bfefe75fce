"""Build the tiny Countdown model that ships in `strop.assets`, from nothing.

    python tools/build_tiny_model.py [--out DIR] [--steps N]

A character-level Qwen3 model is trained on answers to puzzles of the train split alone; validation
and held-out puzzles are never seen. First it sees right answers. Then, for the last steps, most of
its answers are WRONG ON PURPOSE (`SHARE_RIGHT` are right): well-formed expressions of the given
numbers with another value, drawn uniformly. Without that phase the model would answer as well as it
can, and a three-minute run could hardly improve it. With it, the model still can find right answers
but no longer prefers them, so reinforcement learning has something to find: the preference first,
then better arithmetic.

One thread and one seed: the same machine and library versions give the same bytes. Another
processor may round differently, so there the weights differ slightly.
"""

import argparse
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from strop.assets import model_folder
from strop.environments.countdown import MAX_TOKENS, expressions, puzzles

SEED = 0
NUM_STEPS = 2400
BATCH_SIZE = 128
LEARNING_RATE = 4e-3  # reached after WARMUP_STEPS, then linear to 0
WARMUP_STEPS = 50
WEIGHT_DECAY = 0.1
SHARE_MIXED = 0.1  # share of the steps that also show wrong answers, at the end
SHARE_RIGHT = 0.4  # share of right answers in those steps
MAX_POSITIONS = 128
SIZES = {
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
}  # 0.33 million weights
PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+-*/(),:= \n"
IGNORED = -100  # label of a token that is not learnt
# A function that yields the ids and labels of a number of steps.
Batches = Callable[[PreTrainedTokenizerFast, int], Iterator[tuple[Tensor, Tensor]]]


def build_tokenizer(max_positions: int = MAX_POSITIONS) -> PreTrainedTokenizerFast:
    """One token per character; every other character becomes the unknown token."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNKNOWN, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=max_positions,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, sizes: dict[str, int] = SIZES
) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights."""
    torch.manual_seed(SEED)
    config = Qwen3Config(
        **sizes,
        vocab_size=len(tokenizer),
        head_dim=32,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def draw_answer(row: dict[str, Any], share_right: float, rng: random.Random) -> str:
    """A right answer with chance `share_right`, otherwise a well-formed wrong one."""
    wants_right = rng.random() < share_right
    candidates = expressions(tuple(row["numbers"]))
    return rng.choice([t for t, value in candidates if (value == row["target"]) == wants_right])


def draw_batch(
    rows: Sequence[dict[str, Any]],
    tokenizer: PreTrainedTokenizerFast,
    share_right: float,
    rng: random.Random,
) -> tuple[Tensor, Tensor]:
    """Right-padded ids and labels [BATCH_SIZE, length]; only answers and their ends are learnt."""
    drawn = rng.choices(rows, k=BATCH_SIZE)
    return encode([(row["prompt"], draw_answer(row, share_right, rng)) for row in drawn], tokenizer)


def encode(
    rows: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerFast
) -> tuple[Tensor, Tensor]:
    """Prompts and answers as right-padded ids and labels; answers and their ends are learnt."""
    ids, labels = [], []
    for text, completion in rows:
        prompt = tokenizer.convert_tokens_to_ids(list(text))
        answer = tokenizer.convert_tokens_to_ids([*completion, EOS])
        ids.append(torch.tensor(prompt + answer))
        labels.append(torch.tensor([IGNORED] * len(prompt) + answer))
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad(ids, batch_first=True, padding_value=float(tokenizer.pad_token_id)),
        pad(labels, batch_first=True, padding_value=float(IGNORED)),
    )


def batches(tokenizer: PreTrainedTokenizerFast, num_steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of all steps: right answers, and wrong ones in the last steps."""
    rng, rows = random.Random(SEED), puzzles("train")
    for step in range(num_steps):
        share_right = 1.0 if step < num_steps * (1 - SHARE_MIXED) else SHARE_RIGHT
        yield draw_batch(rows, tokenizer, share_right, rng)


def train(
    model: Qwen3ForCausalLM,
    batches: Iterable[tuple[Tensor, Tensor]],
    num_steps: int,
    learning_rate: float,
) -> None:
    """Trains in place by supervised learning, one batch a step; prints the loss every 100 steps."""
    start = time.perf_counter()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY
    )
    for step, (ids, labels) in zip(range(num_steps), batches, strict=False):
        lr = learning_rate * min(1, (step + 1) / WARMUP_STEPS) * (1 - step / num_steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        logits = model(input_ids=ids[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            seconds = time.perf_counter() - start
            print(
                f"step {step + 1}/{num_steps}  loss {loss.item():.3f}  {seconds:.0f} s", flush=True
            )


def save(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, max_new_tokens: int
) -> None:
    """Write weights (bfloat16), configuration and tokenizer in Hugging Face layout."""
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)


def weights_hash(model: Qwen3ForCausalLM) -> str:
    """sha256 of the weights' bytes, in the order of their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode() + weight.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def build(
    num_steps: int,
    max_positions: int = MAX_POSITIONS,
    sizes: dict[str, int] = SIZES,
    batches: Batches = batches,
    learning_rate: float = LEARNING_RATE,
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Trained model and tokenizer, the same on every call."""
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(max_positions)
    model = build_model(tokenizer, sizes)
    train(model, batches(tokenizer, num_steps), num_steps, learning_rate)
    return model, tokenizer


def main(
    name: str = "tiny",
    build: Callable[[int], tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]] = build,
    num_steps: int = NUM_STEPS,
    max_new_tokens: int = MAX_TOKENS,
) -> None:
    """Build and save."""
    parser = argparse.ArgumentParser(description=f"Build the model {name}.")
    parser.add_argument("--out", type=Path, default=model_folder(name), help="folder to write")
    parser.add_argument("--steps", type=int, default=num_steps, help="training steps")
    arguments = parser.parse_args()
    model, tokenizer = build(arguments.steps)
    save(model, tokenizer, arguments.out, max_new_tokens)
    print(f"wrote {arguments.out}  weights {weights_hash(model)[:16]}")


if __name__ == "__main__":
    main()
