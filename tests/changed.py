"""Another legal value for every option, to see that the option does something."""

from typing import Any

from strop.schedule import Constant, Schedule

# Options of text are closed sets; a changed one is the first other that its owner accepts.
WORDS = (
    "hinge", "nll",
    "biased", "unbiased", "zero", "raw", "k2", "k1", "token-sum", "token-mean",
    "seq-mean-token-sum", "sum", "mean_norm", "trajectories", "greedy",
    "similarity", "grpo", "paper", "code", "topk", "quantile", "full", "kept",
    "forward", "anchor", "group", "mean", "trajectory", "uniform", "batch", "tracked", "length",
    "tokens", "vision",
    "first_intra", "reward", "any", "verl", "exponential", "up",
    "sequence", "mask", "linear", "sqrt", "exact", "seq_mean_k1", "k3",
    "prompt", "none",
    "clip", "fixed", "last", "js", "discounted", "HW", "demonstration", "hard", "json", "nsr",
    "logavgexp",
)  # fmt: skip


def candidates(value: Any) -> list[Any]:
    """Other values of the same kind, the likeliest to be legal first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Schedule):
        return [Constant(0.55)]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 if value else 0.01, value + 1.5]
    if isinstance(value, str):
        return [word for word in (*WORDS, value + "x") if word != value]
    if isinstance(value, tuple):
        return [tuple(candidates(item)[0] for item in value) or (1, 2)]  # numbers of any kind
    raise TypeError(f"no other value for {value!r}")


def changed_values(options: dict[str, Any]) -> dict[str, Any]:
    """One other value for every number, switch and schedule."""
    return {k: candidates(v)[0] for k, v in options.items() if not isinstance(v, str)}
