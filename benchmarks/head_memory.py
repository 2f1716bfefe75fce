"""Peak memory and time of the chunked head against `F.cross_entropy` on full float32 logits.

    python benchmarks/head_memory.py [--vocabulary 151936 --hidden 1024 --tokens 4096 --repeats 3]

Each variant computes the gradients of the same hidden states and weight from the same loss:

    cross_entropy   F.cross_entropy(hidden @ weight.T, ids).backward()
    own token       push_loss(...).backward(): each adjoint from its own token's column
    measured        columns(...) first, adjoints from all of them together, then push_loss

Each run is a fresh process; the variants take turns, so a busy machine slows all of them. In the
process a small run of the same variant comes first (libraries, threads). Then the inputs are made,
the kernel's mark of the peak resident set is reset (Linux: 5 into /proc/self/clear_refs), and the
extra memory is that peak (VmHWM) minus the resident set (VmRSS) at the reset. It includes the
gradients of hidden states and weight; the second figure leaves out the weight's gradient (V * D
floats) on both sides. The output has medians over the repeats and their ratios; it includes the
processor time of all threads since, unlike the elapsed time, this hardly depends on other load.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from processes import extra_bytes, output_of
from torch import Tensor

from strop.head.head import Head, columns, push_loss

VARIANTS = ("cross_entropy", "own token", "measured")
TARGETS = {"own token": 1.3, "measured": 1.7}
TARGET_MEMORY = 0.15
MIB = 2**20


def _inputs(vocabulary: int, hidden: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    weight_VD = torch.randn(vocabulary, hidden).mul_(hidden**-0.5).requires_grad_()
    hidden_TD = torch.randn(tokens, hidden).requires_grad_()
    return weight_VD, hidden_TD, torch.randint(vocabulary, (tokens,))


def _step(variant: str, weight_VD: Tensor, hidden_TD: Tensor, id_T: Tensor) -> float:
    """One forward and backward pass; returns the mean of logp, which all variants share."""
    tokens = len(id_T)
    if variant == "cross_entropy":
        loss = F.cross_entropy(hidden_TD @ weight_VD.T, id_T)
        loss.backward()
        return -loss.item()
    head = Head(weight_VD)
    if variant == "own token":

        def own(rows: slice, found: dict[str, Tensor]) -> dict[str, Tensor]:
            ratio_T = (found["logp_T"] - found["logp_T"].detach()).exp()
            return {"logp_T": -ratio_T / tokens}

        loss, found = push_loss(head, hidden_TD, id_T, own)
    else:
        measured = columns(head, hidden_TD, id_T)["logp_T"].requires_grad_()
        ratio = (measured - measured.detach()).mean().exp()  # one ratio for the whole sequence
        (adjoint_T,) = torch.autograd.grad(-ratio, measured)
        loss, found = push_loss(head, hidden_TD, id_T, lambda rows, _: {"logp_T": adjoint_T[rows]})
    loss.backward()
    return found["logp_T"].mean().item()


def _child(variant: str, vocabulary: int, hidden: int, tokens: int) -> None:
    """Measures one run and prints it as JSON."""
    _step(variant, *_inputs(1_000, hidden, 64))
    weight_VD, hidden_TD, id_T = _inputs(vocabulary, hidden, tokens)
    told: list[float] = []

    def timed() -> None:
        start, start_cpu = time.perf_counter(), time.process_time()
        mean_logp = _step(variant, weight_VD, hidden_TD, id_T)
        told[:] = mean_logp, time.perf_counter() - start, time.process_time() - start_cpu

    extra = extra_bytes(timed)
    mean_logp, seconds, cpu = told
    assert weight_VD.grad is not None
    assert hidden_TD.grad is not None
    norms = (weight_VD.grad.norm().item(), hidden_TD.grad.norm().item())
    check = [mean_logp, *norms]
    print(json.dumps({"extra": extra, "seconds": seconds, "cpu": cpu, "check": check}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1_024)
    parser.add_argument("--tokens", type=int, default=4_096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        _child(args.variant, args.vocabulary, args.hidden, args.tokens)
        return
    runs: dict[str, list[dict]] = {variant: [] for variant in VARIANTS}
    for _ in range(args.repeats):
        for variant in VARIANTS:
            runs[variant].append(
                json.loads(output_of(__file__, *sys.argv[1:], "--variant", variant))
            )
    _report(runs, args)


def _report(runs: dict[str, list[dict]], args: argparse.Namespace) -> None:
    """Prints the table; raises if the variants did not compute the same thing."""
    size = (args.tokens, args.hidden, args.vocabulary)
    print(
        f"tokens {size[0]}, hidden {size[1]}, vocabulary {size[2]}, float32, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"medians of {args.repeats}"
    )
    weight = args.vocabulary * args.hidden * 4
    base = {
        key: statistics.median(run[key] for run in runs["cross_entropy"])
        for key in ("extra", "seconds", "cpu")
    }
    for variant, each in runs.items():
        torch.testing.assert_close(
            torch.tensor(each[0]["check"]),
            torch.tensor(runs["cross_entropy"][0]["check"]),
            rtol=1e-3,
            atol=1e-4,
        )
        extra = statistics.median(run["extra"] for run in each)
        seconds = statistics.median(run["seconds"] for run in each)
        cpu = statistics.median(run["cpu"] for run in each)
        line = (
            f"{variant:14} extra {extra / MIB:7.0f} MiB ({extra / base['extra']:6.1%}), without "
            f"weight gradient {(extra - weight) / MIB:7.0f} MiB "
            f"({(extra - weight) / (base['extra'] - weight):6.1%}), time {seconds:6.2f} s "
            f"({seconds / base['seconds']:.2f}x), processor {cpu:6.2f} s ({cpu / base['cpu']:.2f}x)"
        )
        if variant in TARGETS:
            met = extra <= TARGET_MEMORY * base["extra"]
            met = met and seconds <= TARGETS[variant] * base["seconds"]
            line += f"  target {TARGET_MEMORY:.0%}, {TARGETS[variant]}x: {'met' if met else 'NOT'}"
        print(line)


if __name__ == "__main__":
    main()
