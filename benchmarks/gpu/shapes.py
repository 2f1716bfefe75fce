"""Random Qwen3 models created on a GPU, and the card's speed, for the programs in this folder."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from command_line import device_here, some_of

__all__ = [
    "SHAPES", "bandwidth", "card", "config_of", "device_here", "model_of", "products", "seconds",
    "some_of", "wait",
]  # fmt: skip

SHAPES = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 512},
    "0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
             "vocab_size": 151_936},
    "1.7B": {"hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144,
             "vocab_size": 151_936},
    "gemma 270M": {"hidden_size": 640, "num_hidden_layers": 18, "num_attention_heads": 4,
                   "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048,
                   "vocab_size": 262_144},
}  # fmt: skip


def config_of(name: str) -> Any:
    """The configuration of a shape, whose head shares the embeddings' weights."""
    from transformers import Gemma3TextConfig, Qwen3Config

    kind: Any = Gemma3TextConfig if name.startswith("gemma") else Qwen3Config
    return kind(
        **SHAPES[name], max_position_embeddings=32_768, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def model_of(shape: str, device: str, dtype: torch.dtype) -> Any:
    """The random model of a shape, `gemma ...` for Gemma 3; with the suffix ` lora`, under adapters
    of rank 16.
    """
    from transformers import Gemma3ForCausalLM, Qwen3ForCausalLM

    torch.manual_seed(0)
    name = shape.removesuffix(" lora")
    kind: Any = Gemma3ForCausalLM if name.startswith("gemma") else Qwen3ForCausalLM
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = kind(config_of(name))
    finally:
        torch.set_default_dtype(before)
    if shape != name:
        import peft

        lora = peft.LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
        peft.get_peft_model(model, lora)
    return model.to(device).eval().requires_grad_(False)


def wait(device: str) -> None:
    """Wait until the device has finished all its work."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], Any], device: str, times: int = 5) -> float:
    """The median seconds of some runs, after one that does not count."""
    run()
    spent = []
    for _ in range(times):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def bandwidth(device: str) -> float:
    """Bytes per second of a copy, counting reads and writes."""
    size = 2**24 if device == "cpu" else 2**30
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source), device)


def products(device: str) -> float:
    """Operations per second of a matrix product in bfloat16."""
    side = 8192 if device != "cpu" else 512
    one, other = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * side**3 / seconds(lambda: one @ other, device, times=10)


def card(device: str) -> str:
    """A line that describes the device."""
    name = "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    return (
        f"{name}, torch {torch.__version__}: copies {bandwidth(device) / 1e12:.2f} TB/s, products "
        f"in bfloat16 {products(device) / 1e12:.0f} TFLOP/s"
    )
