"""The update of `strop train` on one GPU: seconds, tokens/s, FLOP utilisation, kernels, waits.

    python benchmarks/gpu/learner.py [--shape 0.6b] [--rows 32] [--answer 1024] [--prompt 16]
        [--token-budget 16384] [--chunk-mib 1024] [--share auto] [--sync] [--kernels]
        [--liger] [--fuse rotary,mlp | --fuse layers] [--plain-norms] [--fused-adamw]
        [--out rows.csv]
    python benchmarks/gpu/learner.py --device cpu --shape tiny --rows 4 --answer 32

A random Qwen3 in bfloat16 with float32 masters learns by grpo from `rows` answers, 4 per prompt,
with the Learner and Policy of a run and training's defaults. After --warm-up updates it prints the
median of --repeats updates, each between two waits for the device. Rows of the table:

    update: forward, backward   all of an update except the optimiser's step
    update: optimiser           clipping, AdamW, copies of the masters, checks
    plain: cross entropy        the model's own logits and torch's cross entropy, same passes
    plain: trunk                the layers alone, with a random gradient at their end
    head: ...                   the head alone on as many states as a pass has: as it is, with
                                passes over the logits in place of its kernels, and with float32
                                products

Utilisation is (6 * weights * tokens + 12 * layers * heads * head size * sum T^2 / 2) / seconds /
peak, with the weights of the layers and, once, the head; for `trunk` without the head, for `head`
the head alone. The peak is that of a product of 8,192^3 in bfloat16, measured here. For the head,
the lines below the table show the largest differences of its columns and gradients from those of
float32 products.

--kernels: the 15 kernels that took longest in an update. --sync: the lines that waited for the
device in an update. --liger: with model.use_liger_kernel. --fuse: what torch.compile compiles
before anything is timed, also for the plain rows: the rotation of queries and keys by their
positions, the product of silu and gate, or whole layers; strop compiles none of these.
--fused-adamw: torch's AdamW in one kernel, which strop does not use. --plain-norms: the layers' own
norms, which strop replaces. --device cpu tries the program, in seconds.
"""

import argparse
import collections
import contextlib
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from shapes import config_of, device_here, products, seconds, some_of, wait
from torch import Tensor, nn

from strop.batch.batch import Batch
from strop.head import chunk, head
from strop.method.chains import Chains, generators, learnable
from strop.recipes.grpo import grpo
from strop.support.devices import why_no_kernels
from strop.support.tables import write_rows
from strop.training.learner import prefix_sharing
from strop.training.learner.models import Loaded, ready
from strop.training.learner.policy import MasterAdamW, Policy
from strop.training.learner.step_models import StepModels
from strop.training.learner.update import Learner

GROUP = 4  # answers to a prompt
SHAPES = {name.lower(): name for name in ("tiny", "0.6B", "1.7B")}
HEAD = ("what", "seconds", "tokens_per_s", "utilisation", "peak_gib")
OPTIONS: Any = None  # the command's options


def make_model() -> Any:
    """A random model, prepared as a run prepares it."""
    from transformers import Qwen3ForCausalLM

    torch.manual_seed(0)
    with torch.device(OPTIONS.device):
        model = Qwen3ForCausalLM(config_of(SHAPES[OPTIONS.shape])).to(torch.bfloat16)
    loaded = Loaded(model, None, "random")
    model = ready(loaded, device=OPTIONS.device, use_liger_kernel=OPTIONS.liger).model
    for module in model.modules():
        if OPTIONS.plain_norms and type(module).__name__.endswith("RMSNorm"):
            vars(module).pop("forward", None)
    fuse(model, OPTIONS.fuse)
    return model


def fuse(model: Any, what: list[str]) -> None:
    """Compile parts of the layers with torch.compile."""
    if "rotary" in what:
        family = sys.modules[type(model).__module__]
        family.apply_rotary_pos_emb = torch.compile(  # type: ignore[attr-defined]
            family.apply_rotary_pos_emb, dynamic=True
        )
    gated = torch.compile(lambda gate, up: nn.functional.silu(gate) * up, dynamic=True)
    for layer in model.model.layers:
        mlp = layer.mlp
        if "mlp" in what:
            mlp.forward = lambda x, mlp=mlp: mlp.down_proj(gated(mlp.gate_proj(x), mlp.up_proj(x)))
        if "layers" in what:
            layer.compile(dynamic=False)


def make_batch(vocabulary: int) -> Batch:
    """The answers of a step, scored, with advantages, in the form that an update gets."""
    rng = torch.Generator().manual_seed(0)
    rows, length = OPTIONS.rows, OPTIONS.prompt + OPTIONS.answer
    row_B = torch.arange(rows)
    groups = -(-rows // GROUP)
    ids_BL = torch.randint(2, vocabulary, (rows, length), generator=rng)
    ids_BL[:, : OPTIONS.prompt] = ids_BL[row_B // GROUP * GROUP, : OPTIONS.prompt]
    mask_T = (torch.arange(length) >= OPTIONS.prompt).repeat(rows)
    logp_T = torch.where(mask_T, -torch.tensor(float(vocabulary)).log(), 0)
    columns = {
        "turn_T": row_B.repeat_interleave(length), "mask_T": mask_T, "id_T": ids_BL.flatten(),
        "origin_T": torch.where(mask_T, 0, 1), "version_T": torch.zeros(rows * length).long(),
        "logp_sampler_T": logp_T, "logp_behavior_T": logp_T,
        "rollout_K": row_B, "index_K": torch.zeros_like(row_B),
        "group_B": row_B // GROUP, "rollout_uid_B": row_B, "scored_B": row_B >= 0,
        "reward_B": torch.rand(rows, generator=rng), "truncated_B": row_B < 0,
        "uid_P": torch.arange(groups), "draw_P": torch.zeros(groups).long(),
        "step": torch.tensor(1), "num_steps": torch.tensor(10),
        "max_length": torch.tensor(OPTIONS.answer),
    }  # fmt: skip
    algorithm = grpo()
    batch = Batch(columns).to(OPTIONS.device)
    batch = Chains(generators(0, 1)).credit(algorithm.advantage, batch)
    return learnable(batch)


class Flops:
    """Utilisation of a forward and a backward pass, by the formula above."""

    def __init__(self, model: Any, peak: float) -> None:
        self.peak, self.config = peak, model.config
        self.head = self.config.vocab_size * self.config.hidden_size
        self.layers = sum(p.numel() for p in model.model.layers.parameters())

    def share(
        self, seconds: float, lengths: list[int], layers: bool = True, head: int = 0
    ) -> float:
        """Share of the peak. head: number of tokens whose logits are computed."""
        config, tokens = self.config, sum(lengths)
        pairs = sum(length**2 / 2 for length in lengths)
        width = config.num_attention_heads * config.head_dim
        attention = 12 * config.num_hidden_layers * width * pairs
        done = (6 * self.layers * tokens + attention) if layers else 0.0
        return (done + 6 * self.head * head) / seconds / self.peak


def timed_update(learner: Learner, batch: Batch) -> Iterator[tuple[float, float]]:
    """Yields the seconds of one update after another: of its passes and of the optimiser's step."""
    policy, algorithm = learner.models.policy, grpo()
    update, spent = Policy.update, [0.0]

    def timed(lr: float) -> dict[str, float]:
        wait(OPTIONS.device)
        started = time.perf_counter()
        found = update(policy, lr)
        wait(OPTIONS.device)
        spent[0] = time.perf_counter() - started
        return found

    policy.update = timed  # type: ignore[method-assign]
    while True:
        wait(OPTIONS.device)
        started = time.perf_counter()
        learner.learn(algorithm, batch)
        wait(OPTIONS.device)
        yield time.perf_counter() - started - spent[0], spent[0]


def peak_gib() -> float:
    """The peak memory on the device since the last call."""
    if OPTIONS.device == "cpu":
        return 0.0
    found = torch.cuda.max_memory_allocated(OPTIONS.device) / 2**30
    torch.cuda.reset_peak_memory_stats(OPTIONS.device)
    return found


def plain_rows(
    model: Any, policy: Policy, batch: Batch, flops: Flops
) -> Iterator[tuple[str, Callable[[], object], Callable[[float], float], int]]:
    """The rows of the model without strop, in strop's passes: name, call, utilisation, tokens."""
    sizes = [len(index_B) for index_B in policy.micro_batches(batch)]
    length = OPTIONS.prompt + OPTIONS.answer
    ids_BL = batch["id_T"].view(-1, length)
    tokens = OPTIONS.rows * length
    lengths = [length] * OPTIONS.rows

    def cross_entropy() -> None:
        for ids_NL in ids_BL.split(sizes):
            logits_NLV = model(input_ids=ids_NL, use_cache=False).logits[:, :-1]
            wanted = ids_NL[:, 1:].flatten()
            nn.functional.cross_entropy(logits_NLV.flatten(0, 1).float(), wanted).backward()
            del logits_NLV
        policy.optimiser.zero_grad()  # type: ignore[union-attr]

    def trunk() -> None:
        for ids_NL in ids_BL.split(sizes):
            states = model.model(input_ids=ids_NL, use_cache=False).last_hidden_state
            states.backward(torch.ones_like(states))
        policy.optimiser.zero_grad()  # type: ignore[union-attr]

    yield ("plain: cross entropy", cross_entropy,
           lambda s: flops.share(s, lengths, head=tokens), tokens)  # fmt: skip
    yield "plain: trunk", trunk, lambda s: flops.share(s, lengths), tokens


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Inside, these functions of the head return False, so it uses neither kernels nor products."""
    before = {name: getattr(chunk, name) for name in names}
    try:
        for name in names:
            setattr(chunk, name, lambda *_: False)
        yield
    finally:
        for name, value in before.items():
            setattr(chunk, name, value)


WAYS = {
    "head: as it is": (), "head: passes over logits": ("measured_by_kernels",),
    "head: float32 products": ("measured_by_kernels", "multiplies_bfloat16"),
}  # fmt: skip


class HeadAlone:
    """The head on random states of as many tokens as a pass has."""

    def __init__(self, model: Any, tokens: int) -> None:
        self.own = head.head_of(model)
        vocabulary, width = self.own.weight.shape
        place = {"device": OPTIONS.device}
        states = torch.randn(tokens, width, **place).to(self.own.weight.dtype)
        self.states = states.requires_grad_()
        self.ids = torch.randint(vocabulary, (tokens,), **place)
        self.on = torch.randn(tokens, **place)
        self.names = ("logp_T",)

    def push(self) -> dict[str, Tensor]:
        """Columns and gradients."""
        self.states.grad = None
        loss, found = head.push_loss(
            self.own, self.states, self.ids,
            lambda rows, _: dict.fromkeys(self.names, self.on[rows]), self.names,
        )  # fmt: skip
        loss.backward()
        return found

    def results(self, master: Tensor) -> dict[str, Tensor]:
        """Copies of all results of `push`, with the entropy; master: that of the head's weight."""
        self.names = ("logp_T", "entropy_T")
        found = {name: value.clone() for name, value in self.push().items()}
        assert self.states.grad is not None
        assert master.grad is not None
        found |= {"dL/dh": self.states.grad.float(), "dL/dW": master.grad.clone()}
        self.names, master.grad = ("logp_T",), None
        return found


def show_waits(work: Callable[[], object]) -> None:
    """Print which lines waited for the device, most often first."""
    found: collections.Counter[tuple[str, str]] = collections.Counter()

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchroniz" not in str(message):
            return
        frames = traceback.extract_stack()[:-1]
        places = [f"{f.filename.rpartition('/strop/')[2]}:{f.lineno}" for f in frames
                  if "/strop/" in f.filename and "/benchmarks/" not in f.filename]  # fmt: skip
        last = frames[-1]
        found[places[-1] if places else "-", f"{Path(last.filename).name}:{last.lineno}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    print(f"\nwaits for the device in one update: {found.total()}")
    for (place, last), times in found.most_common(40):
        print(f"{times:5d}  {place:50s} {last}")


def show_kernels(work: Callable[[], object]) -> None:
    """Print the kernels that took longest."""
    from torch.profiler import ProfilerActivity, profile

    gpu = OPTIONS.device != "cpu"
    kinds = [ProfilerActivity.CUDA] if gpu else [ProfilerActivity.CPU]
    with profile(activities=kinds) as found:
        work()
        wait(OPTIONS.device)
    spent = {
        each.key: (each.self_device_time_total if gpu else each.self_cpu_time_total, each.count)
        for each in found.key_averages()
    }
    total = sum(micros for micros, _ in spent.values())
    print(f"\nkernels of one update, {total / 1e6:.3f} s together")
    for name, (micros, count) in sorted(spent.items(), key=lambda i: -i[1][0])[:15]:
        print(f"{micros / 1e3:9.1f} ms {micros / total:6.1%} {count:6d}  {name[:110]}")


def arguments() -> Any:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", type=device_here, default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="0.6b")
    for name, value in {
        "rows": 32,
        "answer": 1024,
        "prompt": 16,
        "repeats": 3,
        "warm-up": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--token-budget", type=int, default=0)
    parser.add_argument("--chunk-mib", type=int, default=0)
    parser.add_argument("--share", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--seconds", type=float, default=80, help="after these no new row starts")
    parser.add_argument("--fuse", type=some_of(("rotary", "mlp", "layers")), default=[],
                        help="rotary, mlp, layers, joined by commas")  # fmt: skip
    for name in ("plain-norms", "liger", "fused-adamw", "sync", "kernels"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


class Table:
    """The rows, which are printed and written as they are added."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        print("| what | seconds | tokens/s | utilisation | peak, GiB |")
        print("| --- | --- | --- | --- | --- |")
        peak_gib()

    def add(self, what: str, seconds: float, tokens: int, share: float) -> None:
        """Add, print and write a row."""
        row = (what, seconds, tokens / seconds, share, peak_gib())
        print("| {} | {:.4f} | {:.0f} | {:.1%} | {:.1f} |".format(*row), flush=True)
        self.rows.append(dict(zip(HEAD, row, strict=True)))
        if OPTIONS.out:
            write_rows(OPTIONS.out, HEAD, self.rows)


def make_policy(model: Any) -> Policy:
    """A run's policy, with training's defaults."""
    share = OPTIONS.share if not prefix_sharing.why_not(model) else "off"
    budget = OPTIONS.token_budget or (16384 if OPTIONS.device != "cpu" else 2048)
    policy = Policy(model, token_budget=budget, share=share)
    one_kernel = {"fused": True} if OPTIONS.fused_adamw else {}
    policy.optimiser = MasterAdamW(list(policy.parameters()), lr=0.0, **one_kernel)
    return policy


def time_plain(table: Table, policy: Policy, batch: Batch, flops: Flops, end: float) -> None:
    """Add the rows of the model without strop; none is started after `end`."""
    for what, passed, utilisation, number in plain_rows(policy.model, policy, batch, flops):
        if time.perf_counter() > end:
            return
        try:
            spent = seconds(passed, OPTIONS.device, OPTIONS.repeats)
        except torch.cuda.OutOfMemoryError:
            policy.optimiser.zero_grad()  # type: ignore[union-attr]
            print(f"| {what} | out of memory |")
            continue
        table.add(what, spent, number, utilisation(spent))


def time_head(table: Table, policy: Policy, flops: Flops, tokens: int) -> None:
    """Add the rows of the head, and print how far its numbers differ from float32 products."""
    alone = HeadAlone(policy.model, tokens)
    for what, names in WAYS.items():
        with without(*names):
            spent = seconds(alone.push, OPTIONS.device, OPTIONS.repeats)
        table.add(what, spent, tokens, flops.share(spent, [], layers=False, head=tokens))
    policy.optimiser.zero_grad()  # type: ignore[union-attr]
    master = dict(policy.masters())["model.embed_tokens.weight"]
    with without(*WAYS["head: float32 products"]):
        wanted = alone.results(master)
    for name, value in alone.results(master).items():
        far, most = (float(each.abs().max()) for each in (value - wanted[name], wanted[name]))
        print(f"head, {name}: differs by {far:.2e} at most, largest is {most:.2e}")


def main() -> None:
    """Print the tables."""
    global OPTIONS
    OPTIONS = arguments()
    started = time.perf_counter()
    gpu = OPTIONS.device != "cpu"
    if OPTIONS.chunk_mib:
        for module in (chunk, head):
            module.CHUNK_BYTES = module.CHUNK_BYTES_ELSEWHERE = OPTIONS.chunk_mib * 2**20
    peak, model = products(OPTIONS.device), make_model()
    flops = Flops(model, peak)
    kernels = not why_no_kernels(next(model.parameters()).device)
    card = torch.cuda.get_device_name(OPTIONS.device) if gpu else "CPU"
    print(f"{card}, torch {torch.__version__}, peak {peak / 1e12:.0f} TFLOP/s, kernels of the head "
          f"{'run' if kernels else 'do not run'}; {OPTIONS.shape}: "
          f"{(flops.layers + flops.head) / 1e9:.2f} B weights; {vars(OPTIONS)}")  # fmt: skip
    policy, batch = make_policy(model), make_batch(model.config.vocab_size)
    updates = timed_update(Learner(StepModels(policy, 1.0), 1e-6, generators(0, 1)), batch)
    length, answers = OPTIONS.prompt + OPTIONS.answer, OPTIONS.rows * OPTIONS.answer
    tokens = OPTIONS.rows * length
    print(f"{OPTIONS.rows} rows of {length} tokens in {len(policy.micro_batches(batch))} passes; "
          f"made after {time.perf_counter() - started:.1f} s")  # fmt: skip
    table = Table()
    for _ in range(OPTIONS.warm_up):
        next(updates)
    pairs = [next(updates) for _ in range(OPTIONS.repeats)]
    work, step = (statistics.median(each) for each in zip(*pairs, strict=True))
    share = flops.share(work, [length] * OPTIONS.rows, head=answers)
    table.add("update: forward, backward", work, tokens, share)
    table.add("update: optimiser", step, tokens, 0.0)
    if OPTIONS.sync and gpu:
        show_waits(lambda: next(updates))
    if OPTIONS.kernels:
        show_kernels(lambda: next(updates))
    time_plain(table, policy, batch, flops, started + OPTIONS.seconds)
    time_head(table, policy, flops, min(policy.token_budget, answers))
    print(f"all of it took {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
