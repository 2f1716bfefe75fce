"""Build a tiny mixture of experts from a shipped model: every expert starts as its layer's MLP.

    python tools/build_tiny_moe.py FOLDER [--model tiny] [--experts 8] [--top-k 2] [--noise 0.02]

The model is a Qwen3-MoE with the weights and the tokenizer of a shipped Qwen3 (sparse upcycling,
arXiv 2212.05055). As gates sum to 1, it answers like the model that it was made from, except for
the noise that distinguishes the experts. Routers are random, so load is uneven and small steps
move tokens to other experts.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from strop.assets import model_folder

ROUTER_STD = 0.3


def upcycled(name: str, experts: int, top_k: int, noise: float) -> Qwen3MoeForCausalLM:
    """The mixture of the shipped model of that name."""
    dense = AutoModelForCausalLM.from_pretrained(model_folder(name), dtype=torch.float32)
    given = {
        name: value for name, value in dense.config.to_dict().items()
        if name not in ("model_type", "architectures", "transformers_version", "dtype")
    }  # fmt: skip
    config = Qwen3MoeConfig(
        **given, num_experts=experts, num_experts_per_tok=top_k, norm_topk_prob=True,
        moe_intermediate_size=dense.config.intermediate_size, mlp_only_layers=[],
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config)
    model.load_state_dict(
        {n: _weight(n, w, dense.state_dict(), noise) for n, w in model.state_dict().items()}
    )
    model.generation_config = dense.generation_config
    return model


def _weight(name: str, like: Tensor, dense: dict[str, Tensor], noise: float) -> Tensor:
    """A weight of the mixture, made from those of the dense model."""
    if name in dense:
        return dense[name]
    if name.endswith("gate.weight"):
        return ROUTER_STD * torch.randn_like(like)
    layer, _, which = name.partition("experts.")
    parts = ("gate", "up") if which == "gate_up_proj" else ("down",)
    own = torch.cat([dense[f"{layer}{part}_proj.weight"] for part in parts])
    return own + noise * torch.randn_like(like)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.02)
    given = parser.parse_args()
    model = upcycled(given.model, given.experts, given.top_k, given.noise)
    model.save_pretrained(given.folder)
    AutoTokenizer.from_pretrained(model_folder(given.model)).save_pretrained(given.folder)
    print(f"{given.folder}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M weights")


if __name__ == "__main__":
    main()
