"""Build the tiny Countdown model that ships in `strop.assets`, from nothing.

    python tools/build_tiny_model.py [--out DIR] [--steps N]

A character-level Qwen3 model is trained on answers to the train split alone; validation and
held-out puzzles are never seen. Two answers in three are WRONG ON PURPOSE: a well-formed
expression of the given numbers with another value, drawn uniformly. So the model knows the form of
an answer and has met right ones, but prefers none, and reinforcement learning has something to
find: the shipped model is right in about one answer in five, a good one in far more.

One thread, one seed: the same machine and library versions give the same bytes. Other processors
round differently, so there the weights differ slightly.
"""

import argparse
import hashlib
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from strop.assets import tiny_model_path
from strop.tasks.countdown import expressions, prompt_text, puzzles

SEED = 0
NUM_STEPS = 1500
BATCH_SIZE = 128
LEARNING_RATE = 3e-3
WARMUP_STEPS = 50
SHARE_RIGHT = 1 / 3
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+-*/(),:= \n"
IGNORED = -100


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character; every other character becomes the unknown token."""
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, UNK, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, hidden: int = 96, layers: int = 3, heads: int = 4, mlp: int = 256) -> Qwen3ForCausalLM:
    """A Qwen3 model with random weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def draw_answer(row: dict, rng: random.Random, share_right: float = SHARE_RIGHT) -> str:
    """A right answer with chance `share_right`, otherwise a well-formed wrong one."""
    wants_right = rng.random() < share_right
    candidates = expressions(tuple(row["numbers"]))
    return rng.choice([t for t, value in candidates if (value == row["target"]) == wants_right])


def draw_batch(rows: list, tokenizer: PreTrainedTokenizerFast, rng: random.Random, size: int = BATCH_SIZE, share_right: float = SHARE_RIGHT) -> tuple[Tensor, Tensor]:
    """Right-padded ids and labels [size, length]; only answers and their ends are learnt."""
    chosen = [rng.choice(rows) for _ in range(size)]
    vocab = tokenizer.get_vocab()
    prompts = [[vocab[c] for c in prompt_text(r["numbers"], r["target"])] for r in chosen]
    answers = [[vocab[c] for c in draw_answer(r, rng, share_right)] + [vocab[EOS]] for r in chosen]
    length = max(len(p) + len(a) for p, a in zip(prompts, answers))
    ids = torch.full((size, length), vocab[PAD]); labels = torch.full((size, length), IGNORED)
    for i, (p, a) in enumerate(zip(prompts, answers)):
        ids[i, : len(p) + len(a)] = torch.tensor(p + a)
        labels[i, len(p) : len(p) + len(a)] = torch.tensor(a)
    return ids, labels
def train(model, tokenizer, num_steps, bs=BATCH_SIZE, lr=LEARNING_RATE, share=SHARE_RIGHT, tail=0.15, wd=0.1, report=None):
    rng = random.Random(SEED); rows = puzzles("train")
    opt = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=wd)
    t0=time.time(); ema=None
    for s in range(num_steps):
        f = min(1, (s+1)/WARMUP_STEPS) * (1-s/num_steps)
        for g in opt.param_groups: g["lr"]=lr*f
        ids, labels = draw_batch(rows, tokenizer, rng, bs, 1.0 if s < num_steps*(1-tail) else share)
        logits = model(input_ids=ids[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0,1), labels[:,1:].flatten(), ignore_index=IGNORED)
        opt.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step()
        if s%100==99:
            print(s+1, round(loss.item(),4), f"{time.time()-t0:.0f}s cpu {time.process_time():.0f}", flush=True)
        if report and s+1 in (int(num_steps*(1-tail)), int(num_steps*(1-tail/2)), num_steps): report()
