"""Which families of transformers the local engine drives: a random small model of each.

    OMP_NUM_THREADS=1 python benchmarks/model_families.py [FAMILY ...]

A family counts as driven if the log-probabilities of all tokens of nine requests of different
lengths, drawn in four slots, are those of a plain forward pass within 1e-3 nats, in float32. The
models have four layers of width 16 and otherwise the defaults of their configuration; families
whose defaults make no such model are named. The output is Markdown, in two minutes.
"""

import argparse
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
    "pad_token_id": 0,
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


def built(family: str) -> Any:
    """A random model of the family. Raises any error of its configuration."""
    kind = CONFIG_MAPPING[family]
    known = set(dir(kind())) | set(kind().to_dict())
    sizes = {name: value for name, value in SIZES.items() if name in known}
    if known.issuperset(COMPRESSED):
        sizes |= {"num_key_value_heads": sizes["num_attention_heads"]}
        sizes.pop("head_dim", None)
    config = kind(**sizes)
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


def look(family: str) -> tuple[str, str]:
    """What came of a family, and why."""
    signal.alarm(SECONDS)
    try:
        model = built(family)
    except Exception as error:  # configurations fail in any way
        return "not built", str(error).splitlines()[0][:80] if str(error) else type(error).__name__
    try:
        answers = asynchronous(LocalEngine(model, num_slots=4)).sample(requests())
        far = max(difference(model, each) for each in answers)
    except UserError as error:
        return "refused", str(error).partition(" (")[0].partition(": ")[2] or str(error)
    finally:
        signal.alarm(0)
    return ("driven", "") if far < NEAR else ("WRONG", f"{far:.2g} nats from the forward pass")


def main(arguments: Sequence[str]) -> None:
    """Print what came of each family."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*")
    asked = parser.parse_args(arguments).families or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    found: dict[str, list[str]] = {}
    for family in (each for each in asked if each in CONFIG_MAPPING):
        what, why = look(family)
        print(f"{family}: {what} {why}", file=sys.stderr, flush=True)
        found.setdefault(what, []).append(f"`{family}`")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}\n")
    for what, families in sorted(found.items()):
        print(f"{what}, {len(families)}: {', '.join(families)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
