"""Which families of transformers the local engine drives: a random small model of each.

    OMP_NUM_THREADS=1 python benchmarks/model_families.py [FAMILY ...]

A family counts as driven if the log-probabilities of all tokens of nine requests of different
lengths, drawn in four slots, are those of a plain forward pass within 1e-3 nats, in float32. The
models have four layers of width 16 and otherwise the defaults of their configuration, or what
`OWN` says; families of which this makes no such model are named, and those that take longer than a
minute. The output is Markdown, in three minutes.
"""

import argparse
import math
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from strop.engines.asynchronous import asynchronous
from strop.engines.base import Answer, Request
from strop.engines.local.engine import LocalEngine
from strop.support.errors import UserError

VOCABULARY, LAYERS, NEAR = 24, 4, 1e-3
MOST_WEIGHTS, SECONDS = 3_000_000, 60
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "max_position_embeddings": 64, "initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 0, "sliding_window": 6,
    # of mixtures of experts
    "num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "n_group": 1,
    "topk_group": 1,
    # of compressed keys and values
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    # of inputs of each layer, and older names
    "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "ffn_dim": 24,
    "d_model": 16, "n_embd": 16, "n_layer": LAYERS, "n_head": 4, "num_layers": LAYERS,
    # of state spaces
    "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1,
    "attn_layer_period": 2, "attn_layer_offset": 1,
}  # fmt: skip
COMPRESSED = ("qk_rope_head_dim", "kv_lora_rank")  # such families have keys for each head
# Sizes of what reads images and sound, which gets none of either here.
SENSES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "depth": 1,
    "num_attention_heads": 2, "num_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
    "out_hidden_size": 16, "patch_size": 4, "image_size": 8, "num_position_embeddings": 4,
    "nemo_conv_channels": 8, "num_blocks": 1, "ext_pw_out_channel": 16,
}  # fmt: skip
HYBRID = {"layer_types": ["linear_attention", "full_attention"] * 2}
DELTA = HYBRID | {
    "linear_head_dim": 4, "linear_num_heads": 4, "num_expert_group": 1, "num_experts_per_token": 2,
}  # fmt: skip
# Settings of families whose defaults do not fit the sizes above.
OWN: dict[str, dict[str, Any]] = {
    "bailing_hybrid": DELTA,
    "bamba": {"attn_layer_indices": [1, 3]},
    "codegen": {"rotary_dim": 4},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 32},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0], "intermediate_size": [24] * 4,
        "laurel_rank": 4,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": HYBRID,
    "kimi_linear": DELTA,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "longcat_flash": {
        "num_layers": 2, "head_dim": 4, "ffn_hidden_size": 24, "expert_ffn_hidden_size": 8,
        "zero_expert_num": 2, "moe_topk": 2,
    },
    "mamba2": {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"] * 2, "indexer_n_heads": 4,
        "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "zamba": {"attn_layer_period": 1, "attn_layer_offset": 0},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 4,
        "mamba_ngroups": 1,
    },
    "zaya": {"head_dim": 8, "router_hidden_size": 8, "num_experts_per_tok": 1},
}  # fmt: skip


def settings(config: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Those of these sizes that a configuration takes, and those of its family."""
    kind = type(config)
    known = set(dir(config)) | set(config.to_dict())
    fixed = {name for name in sizes if isinstance(getattr(kind, name, None), property)}
    found = {name: value for name, value in sizes.items() if name in known - fixed}
    if known.issuperset(COMPRESSED):
        found |= {"num_key_value_heads": found["num_attention_heads"]}
        found.pop("head_dim", None)
    return found | OWN.get(config.model_type, {})


def built(family: str) -> Any:
    """A random model of the family. Raises any error of its configuration."""
    kind = CONFIG_MAPPING[family]
    usual = kind()
    chosen = settings(usual, SIZES)
    for name in kind.sub_configs or {}:
        if (part := getattr(usual, name, None)) is not None:
            sizes = SIZES if name == "text_config" else SENSES
            chosen[name] = settings(part, sizes) | {"model_type": part.model_type}
    config = kind(**chosen)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > MOST_WEIGHTS:
        raise ValueError("it has parts of other sizes")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    model(torch.tensor([[3, 4, 5]]))  # some configurations do not fit together
    return model


def requests() -> list[Request]:
    """Nine requests of different lengths."""
    rng = torch.Generator().manual_seed(0)
    sizes = [1 + place % 5 * 3 for place in range(9)]
    ids = [tuple(torch.randint(2, VOCABULARY, (size,), generator=rng).tolist()) for size in sizes]
    return [Request(own, 6 + n % 3 * 4, seed=n) for n, own in enumerate(ids)]


def difference(model: Any, answer: Answer) -> float:
    """The largest difference of a token's log-probability from that of a plain forward pass."""
    size = len(answer.request.ids)
    with torch.no_grad():
        logits = model(torch.tensor([answer.sequence]), use_cache=False).logits[0, size - 1 : -1]
    found = logits.double().log_softmax(-1).gather(1, torch.tensor(answer.ids)[:, None])[:, 0]
    told = torch.tensor([value for event in answer.events for value in event.logp])
    return float((found - told).abs().max())


class TooSlow(BaseException):
    """A family took longer than SECONDS; no library swallows this."""


def stop(*_: Any) -> None:
    """Handle the alarm."""
    raise TooSlow


def look(family: str) -> tuple[str, str]:
    """What came of a family, and why."""
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        return seen(family)
    except TooSlow:
        return "too slow", f"it took longer than {SECONDS} s"
    finally:
        signal.alarm(0)


def seen(family: str) -> tuple[str, str]:
    """The same, in any time."""
    try:
        model = built(family)
    except Exception as error:  # configurations fail in any way
        return "not built", str(error).splitlines()[0][:80] if str(error) else type(error).__name__
    try:
        answers = asynchronous(LocalEngine(model, num_slots=4)).sample(requests())
        gaps = [difference(model, each) for each in answers]
    except UserError as error:
        return "refused", str(error).partition("; generate with")[0].partition(": ")[2] or str(
            error
        )
    far = max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap)
    return ("driven", "") if far < NEAR else ("WRONG", f"{far:.2g} nats from the forward pass")


def main(arguments: Sequence[str]) -> None:
    """Print what came of each family."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*")
    families = parser.parse_args(arguments).families
    if unknown := [each for each in families if each not in CONFIG_MAPPING]:
        parser.error(f"transformers has no family {', '.join(unknown)}")
    asked = families or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    found: dict[str, list[str]] = {}
    for family in (each for each in asked if each in CONFIG_MAPPING):  # not in every version
        what, why = look(family)
        print(f"{family}: {what} {why}", file=sys.stderr, flush=True)
        found.setdefault(what, []).append(f"`{family}`")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}\n")
    for what, families in sorted(found.items()):
        print(f"{what}, {len(families)}: {', '.join(families)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
