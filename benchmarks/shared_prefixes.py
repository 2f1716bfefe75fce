"""Common prefixes of rollouts computed once, compared with each rollout on its own.

    python benchmarks/shared_prefixes.py [--device cuda] [--dtype bfloat16] [--cases default,long]
                                         [--repeats 5] [--groups 1]

The rows are those of a step's update, taken from the fourth step of `strop train RECIPE` (grpo for
`default`; the weights stay unchanged), or, for `long`, 16 random answers of 64 tokens after a
random prompt of 512 and a random Qwen3 of 48 million weights. Both ways push the same adjoints back
through the same rows in the passes that the trainer would make: forward and backward. `forward` is
the columns without gradients.

Each run is a fresh process and the ways take turns, so that a busy machine slows both. The output
has medians of seconds (on a CPU of processor time, which hardly depends on other load), their
ratios, the tokens that each way computes, and the extra memory of one forward and backward pass,
gradients included; on a CPU in a process whose freed memory returns to the system at once. In
float32 the two ways must agree: columns, and gradients as a share of the largest, to 1e-5.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from command_line import device_here, some_of
from processes import GIVES_BACK, extra_bytes, output_of
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from strop.batch.batch import Batch, from_padded
from strop.training.learner import prefix_sharing
from strop.training.learner.models import DTYPES
from strop.training.learner.policy import Policy
from strop.training.learner.prefix_sharing import rows_of
from strop.training.loading import load_model
from strop.training.settings import config
from strop.training.settings.sections import TrainingSettings
from strop.training.setup import load_prompts, make_world
from strop.training.step import train_step

STEPS = {"default": "grpo", "spo_tree": "spo_tree", "rose_tree": "rose_tree"}
CASES = (*STEPS, "long")
WAYS = ("off", "on")
TARGETS = {"default": 1.8, "spo_tree": 1.8, "rose_tree": 1.8, "long": 4.0}
NUM_STEPS = 4
NAMES = ("logp_T",)
MIB = 2**20


def of_a_step(recipe: str, device: str, dtype: str) -> tuple[Policy, Batch]:
    """The policy of a run and the rows of the last update of its first steps."""
    made = config.make({"recipe": recipe, "model": {"device": device, "dtype": dtype}})
    algorithm = made.build()
    task = load_prompts(made.data, made.reward)
    world = make_world(made, algorithm, load_model(made), task)
    policy, seen = world.policy, []
    split, update = policy.micro_batches, policy.update
    policy.micro_batches = lambda batch: seen.append(batch) or split(batch)  # type: ignore
    policy.update = lambda lr: {"grad_norm": 0.0, "learning_rate": lr}  # type: ignore
    try:
        state: dict[str, Any] = {}
        for step in range(1, NUM_STEPS + 1):
            state = train_step(world, algorithm, state, step).state
    finally:
        world.services.close()
    policy.micro_batches, policy.update = split, update  # type: ignore
    policy.model.zero_grad()
    kept = {n: c for n, c in seen[-1].columns.items() if not n.startswith("adjoint")}
    return policy, Batch(kept)


def long_answers(device: str, dtype: str, groups: int) -> tuple[Policy, Batch]:
    """A random model, and for each of the groups 16 answers of 64 tokens to a prompt of 512."""
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=8192, hidden_size=640, intermediate_size=2048, num_hidden_layers=9,
        num_attention_heads=10, num_key_value_heads=5, head_dim=64, max_position_embeddings=2048,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(shape).eval().to(device, DTYPES[dtype])
    ids_BL = torch.randint(8192, (16 * groups, 576))
    ids_BL[:, :512] = ids_BL[::16, :512].repeat_interleave(16, 0)
    mask_BL = torch.zeros_like(ids_BL, dtype=torch.bool)
    mask_BL[:, 512:] = True
    return Policy(model), from_padded({"id_T": ids_BL}, mask_BL).to(device)


def make(case: str, options: argparse.Namespace) -> tuple[Policy, Batch]:
    """Policy and rows of a case, with an adjoint for every token."""
    if case == "long":
        policy, batch = long_answers(options.device, options.dtype, options.groups)
    else:
        policy, batch = of_a_step(STEPS[case], options.device, options.dtype)
    policy.token_budget = TrainingSettings().tokens_on(options.device)
    rng = torch.Generator().manual_seed(1)
    adjoint_T = torch.randn(batch.size("T"), generator=rng).to(options.device)
    return policy, batch.set(adjoint_T=adjoint_T / batch.size("B"))


def push(policy: Policy, batch: Batch) -> None:
    """Forward and backward of all micro-batches; gradients accumulate."""
    for index_B in policy.micro_batches(batch):
        micro = batch.take(index_B)
        known = micro["adjoint_T"][micro["mask_T"]]

        def slices(rows: slice, _: Any, known: Tensor = known) -> dict[str, Tensor]:
            return {"logp_T": known[rows]}

        policy.push(micro, NAMES, slices, False, 1.0)


def seconds(run: Callable[[], object], device: str) -> float:
    """Seconds of one call: processor time on a CPU, elapsed time on a GPU."""
    if device == "cpu":
        started = time.process_time()
        run()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def timed(policy: Policy, batch: Batch, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of both kinds of pass, after a small one that does not count."""
    push(policy, batch.take(batch["index_B"][:2]))
    kinds = {
        "both": lambda: push(policy, batch),
        "forward": lambda: policy.columns(batch, NAMES, 1.0),
    }
    return {
        kind: statistics.median(seconds(run, options.device) for _ in range(options.inner))
        for kind, run in kinds.items()
    }


def weighed(policy: Policy, batch: Batch, options: argparse.Namespace) -> dict[str, float]:
    """Peak extra bytes of a forward and backward pass, after a small one."""
    push(policy, batch.take(batch["index_B"][:2]))
    policy.model.zero_grad()
    if options.device == "cpu":
        return {"extra": extra_bytes(lambda: push(policy, batch))}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    push(policy, batch)
    return {"extra": torch.cuda.max_memory_allocated() - before}


def differences(policy: Policy, batch: Batch) -> dict[str, float]:
    """Largest difference between the ways in columns, and in gradients over the largest one."""
    columns, gradients = [], []
    for way in WAYS:
        policy.share = way
        columns.append(policy.columns(batch, NAMES, 1.0)["logp_T"])
        push(policy, batch)
        named = policy.model.named_parameters()
        gradients.append({n: p.grad.clone() for n, p in named if p.grad is not None})
        policy.model.zero_grad()
    largest = max(float(gradient.abs().max()) for gradient in gradients[0].values())
    apart = max(float((gradients[1][n] - g).abs().max()) for n, g in gradients[0].items())
    return {
        "columns": float((columns[1] - columns[0]).abs().max()),
        "gradients": apart / largest,
        "tokens": batch.size("T"),
        "nodes": rows_of(batch["id_T"], *batch.contexts()).num_nodes,
        "rows": batch.size("B"),
        "shares": float(prefix_sharing.worthwhile(batch, "auto", policy.width) is not None),
    }


def child(case: str, way: str, what: str, options: argparse.Namespace) -> None:
    """Measure one thing in this process and print it."""
    policy, batch = make(case, options)
    policy.share = "on" if way == "on" else "off"
    measures = {"differences": lambda: differences(policy, batch)}
    measures |= {
        "timed": lambda: timed(policy, batch, options),
        "weighed": lambda: weighed(policy, batch, options),
    }
    print(json.dumps(measures[what]()))


def fresh(case: str, way: str, what: str) -> dict[str, float]:
    """The result of a fresh process."""
    environment = GIVES_BACK if what == "weighed" else {}
    told = output_of(__file__, *sys.argv[1:], "--child", case, way, what, **environment)
    found: dict[str, float] = json.loads(told.strip().splitlines()[-1])
    return found


def report(case: str, options: argparse.Namespace) -> bool:
    """Print a case's lines; returns whether the two ways agree."""
    same = fresh(case, "off", "differences")
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.repeats):
        for way in WAYS:
            runs[way].append(fresh(case, way, "timed"))
    off, on = ({k: statistics.median(run[k] for run in runs[w]) for k in runs[w][0]} for w in WAYS)
    before, after = (fresh(case, way, "weighed")["extra"] for way in WAYS)
    ratio = off["both"] / on["both"]
    target = TARGETS.get(case, 0.0)
    met = "" if not target else f", target {target}: {'met' if ratio >= target else 'NOT met'}"
    agrees = max(same["columns"], same["gradients"]) < 1e-5
    print(
        f"{case}: {same['rows']:.0f} rows, {same['tokens']:.0f} tokens, {same['nodes']:.0f} "
        f"distinct prefixes; auto shares: {'yes' if same['shares'] else 'no'}\n"
        f"  forward and backward {off['both']:.4g} s -> {on['both']:.4g} s, {ratio:.2f} times as "
        f"fast{met}\n"
        f"  forward {off['forward']:.4g} s -> {on['forward']:.4g} s, "
        f"{off['forward'] / on['forward']:.2f} times as fast\n"
        f"  memory {before / MIB:.0f} MiB -> {after / MIB:.0f} MiB, {after / before:.2f} times\n"
        f"  columns differ by {same['columns']:.1e}, gradients by {same['gradients']:.1e}",
        flush=True,
    )
    return agrees or options.dtype != "float32"


def main() -> None:
    """Print a few lines per case; exit code 1 if the two ways do not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--device", type=device_here, default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--cases", type=some_of(CASES), default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=3, help="processes of each way")
    parser.add_argument("--inner", type=int, default=3, help="passes in a process")
    parser.add_argument("--groups", type=int, default=1, help="prompts of the case long")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child, options)
        return
    print(f"{options.device}, {options.dtype}, {torch.get_num_threads()} threads, "
          f"torch {torch.__version__}, medians of {options.repeats}")  # fmt: skip
    agreed = [report(case, options) for case in options.cases]
    sys.exit(0 if all(agreed) else 1)


if __name__ == "__main__":
    main()
