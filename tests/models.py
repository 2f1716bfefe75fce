"""A tiny random model, data and rewards with something to learn; settings of runs on them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3MoeConfig
from transformers.utils.logging import disable_progress_bar

CHARACTERS = "0123456789+-*/(),:= \n"
REWARDS = '''
def digits(completions, **columns):
    """Share of digits in the answer."""
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def even(completions, **columns):
    """1 where an even number of digits was written, else 0: both are common."""
    return [float(sum(c.isdigit() for c in text) % 2 == 0) for text in completions]
'''


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, no chat template."""
    vocabulary = {text: i for i, text in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        clean_up_tokenization_spaces=False, model_max_length=64,
    )  # fmt: skip


def save_model(
    folder: Path, hidden: int = 32, layers: int = 2, seed: int = 0, context: int = 64,
    ours: PreTrainedTokenizerFast | None = None, experts: int = 0,
) -> Path:  # fmt: skip
    """Write a random Qwen3 model and its tokenizer as a Hugging Face folder.

    ours: the tokenizer, by default that of `tokenizer()`. experts: of a mixture, two a token.
    """
    ours = tokenizer() if ours is None else ours
    mixture = {"num_experts": experts, "moe_intermediate_size": hidden, "norm_topk_prob": True,
               "num_experts_per_tok": 2}  # fmt: skip
    config = (Qwen3MoeConfig if experts else Qwen3Config)(
        **(mixture if experts else {}),
        vocab_size=len(ours), hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=2, num_key_value_heads=2,
        head_dim=hidden // 2, max_position_embeddings=context, tie_word_embeddings=True,
        initializer_range=0.1, bos_token_id=None, eos_token_id=ours.eos_token_id,
        pad_token_id=ours.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    disable_progress_bar()
    model.save_pretrained(folder)
    ours.save_pretrained(folder)
    return folder


def save_data(folder: Path, num_rows: int = 12) -> tuple[Path, Path]:
    """Write prompts (train.jsonl) and rewards (rewards.py: `digits`, `even`)."""
    folder.mkdir(parents=True, exist_ok=True)
    data, rewards = folder / "train.jsonl", folder / "rewards.py"
    rows = [{"prompt": f"{n}+{3 * n % 7}:", "answer": str(n)} for n in range(num_rows)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rewards.write_text(REWARDS, encoding="utf-8")
    return data, rewards


def exact_norms(patch: pytest.MonkeyPatch) -> None:
    """Let a float64 model be float64 throughout.

    Norms and routers round to float32 on their own; then no two orders of summing agree to 1e-8.
    """
    real, softmax = torch.Tensor.to, torch.nn.functional.softmax
    patch.setattr(torch.nn.functional, "softmax", lambda x, dim, **_: softmax(x, dim))
    patch.setattr(torch.Tensor, "float", lambda tensor: tensor)
    patch.setattr(
        torch.Tensor, "to", lambda t, *a, **k: t if a == (torch.float32,) else real(t, *a, **k)
    )


@dataclass(frozen=True)
class Lab:
    """A folder with a model, prompts and rewards, and the settings of short runs on them."""

    model: Path
    data: Path
    rewards: Path

    @classmethod
    def make(cls, folder: Path, layers: int = 1) -> "Lab":
        """One layer, as methods and loops see nothing of a model's depth."""
        return cls(save_model(folder / "model", layers=layers), *save_data(folder))

    def raw(self, recipe: str = "grpo", reward: str = "digits", **sections: Any) -> dict[str, Any]:
        """Plain settings: two prompts, four answers of at most six tokens, three steps, of which
        the last is saved; no table of tokens, which takes a fifth of such a run and changes nothing
        in it (test_tokens.py).
        """
        base: dict[str, Any] = {
            "recipe": recipe,
            "model": {"name": str(self.model)},
            "data": {"files": [str(self.data)], "validation_size": 2},
            "reward": {"functions": [f"{self.rewards}:{reward}"]},
            "training": {
                "steps": 3, "lr": 1e-2, "save_every": 0, "rollouts_every": 1, "inspect": 0,
                "token_budget": 48,
            },
            "evaluation": {"every": 0, "num_samples": 2},
            "algorithm": {
                "rollout.max_tokens": 6, "sampling.num_prompts": 2, "sampling.num_rollouts": 4,
            },
        }  # fmt: skip
        for name, section in sections.items():
            mixed = isinstance(section, dict) and name in base
            base[name] = {**base[name], **section} if mixed else section
        return base

    def arguments(self, *more: str) -> list[str]:
        """The same as words of the command line."""
        return [
            "--model", str(self.model), "--data", str(self.data),
            "--reward", f"{self.rewards}:digits", "data.validation_size=2", "training.steps=3",
            "training.lr=1e-2", "training.save_every=1", "training.rollouts_every=1",
            "training.token_budget=48", "evaluation.every=0", "evaluation.num_samples=2",
            "rollout.max_tokens=6", "sampling.num_prompts=2", "sampling.num_rollouts=4", *more,
        ]  # fmt: skip


def without_times(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, without what depends on the machine's speed."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {
            name: value
            for name, value in json.loads(line).items()
            if not name.startswith(("timing_s/", "perf/")) and name != "step_time"
        }
        for line in lines
    ]
