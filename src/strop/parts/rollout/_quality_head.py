"""A small head on hidden states that predicts success, and how well its scores did so far."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, layer_norm, silu

Head = Mapping[str, Any]
WIDTH, UPDATES = 64, 4  # of the hidden layer; of an observation
BETAS, EPS = (0.9, 0.999), 1e-8
WEIGHTS = ("inner", "inner_bias", "outer", "outer_bias")


def new_head(width: int, rng: torch.Generator) -> dict[str, Any]:
    """A head whose score is 0 for any state; its hidden layer is random."""
    weights = {
        "inner": torch.randn(width, WIDTH, generator=rng) / math.sqrt(width),
        "inner_bias": torch.zeros(WIDTH),
        "outer": torch.zeros(WIDTH),
        "outer_bias": torch.zeros(()),
    }
    moments = {f"{name}/{n}": torch.zeros_like(w) for name, w in weights.items() for n in (1, 2)}
    return {**weights, **moments, "updates": 0}


def scores(head: Head, states_NH: Tensor) -> Tensor:
    """Log-odds [N] of success."""
    wide = layer_norm(states_NH, states_NH.shape[-1:])
    inner = silu(wide @ head["inner"] + head["inner_bias"])
    result: Tensor = inner @ head["outer"] + head["outer_bias"]
    return result


def trained(
    head: Head, states_NH: Tensor, success_N: Tensor, lr: float
) -> tuple[dict[str, Any], float]:
    """The head after some steps of Adam on the cross-entropy, and the loss before them, nats."""
    new, loss = dict(head), 0.0
    for update in range(UPDATES):
        weights = {name: new[name].detach().requires_grad_() for name in WEIGHTS}
        with torch.enable_grad():
            entropy = binary_cross_entropy_with_logits(scores(weights, states_NH), success_N)
            found = torch.autograd.grad(entropy, list(weights.values()))
        loss = float(entropy.detach()) if update == 0 else loss
        new["updates"] += 1
        for name, gradient in zip(WEIGHTS, found, strict=True):
            moments = []
            for n, (beta, moved) in enumerate(zip(BETAS, (gradient, gradient**2), strict=True), 1):
                new[f"{name}/{n}"] = beta * new[f"{name}/{n}"] + (1 - beta) * moved
                moments.append(new[f"{name}/{n}"] / (1 - beta ** new["updates"]))
            new[name] = new[name] - lr * moments[0] / (moments[1].sqrt() + EPS)
    return new, loss


def bins_of(score_N: Tensor, num_bins: int) -> Tensor:
    """The bin [N] int of each score: of equal width in the predicted probability."""
    return (score_N.sigmoid() * num_bins).long().clamp(max=num_bins - 1)


def success_of_bins(hits: Tensor, counts: Tensor) -> Tensor:
    """Probability of success in each bin: the mean of its posterior under a uniform prior."""
    return (1 + hits) / (2 + counts)


def nearest_subset(
    chance: Sequence[float], size: int, target: float, rng: torch.Generator
) -> list[int]:
    """Indices of `size` of these numbers whose mean is near `target`, in order.

    Starts from a random subset and makes the best swap of two until none brings the mean nearer.
    """
    order = torch.randperm(len(chance), generator=rng).tolist()
    kept, rest = order[:size], order[size:]
    total = sum(chance[place] for place in kept)
    while kept and rest:
        off, a, b = min(
            (abs((total - chance[i] + chance[j]) / size - target), a, b)
            for a, i in enumerate(kept)
            for b, j in enumerate(rest)
        )
        if off >= abs(total / size - target) - 1e-12:
            break
        total += chance[rest[b]] - chance[kept[a]]
        kept[a], rest[b] = rest[b], kept[a]
    return sorted(kept)
