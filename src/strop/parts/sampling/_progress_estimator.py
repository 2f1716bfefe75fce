"""A small network that estimates how far one frame of an episode is ahead of another."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from strop.batch import segments

WIDTH = 64  # hidden units
PAIRS = 256  # of a step
LR = 1e-3


@dataclass(frozen=True)
class ProgressEstimator:
    """f(a, b) of two frames' features [N, F]: predicted progress of b minus that of a.

    f(a, b) = w2 . gelu(W1 [z_a; z_b] + b1) + b2, z the standardised features
    """

    mean_F: Tensor
    std_F: Tensor
    weights: tuple[Tensor, ...]  # W1, b1, w2, b2

    def __call__(self, from_NF: Tensor, to_NF: Tensor) -> Tensor:
        both = torch.cat([(x - self.mean_F) / self.std_F for x in (from_NF, to_NF)], dim=-1)
        inner, inner_bias, outer, outer_bias = self.weights
        return gelu(both @ inner + inner_bias) @ outer + outer_bias


def fit(
    feature_NF: Tensor, progress_N: Tensor, episode_N: Tensor, num_steps: int, rng: torch.Generator
) -> tuple[ProgressEstimator, float]:
    """An estimator trained on random pairs of frames of one episode, and its mean square error.

    Adam fits f(a, b) to progress_b - progress_a by least squares, in `num_steps` steps of 256 pairs
    of different frames; the error is measured on 256 fresh pairs.
    """
    size = feature_NF.shape[1]
    drawn = torch.randn(2 * size, WIDTH, generator=rng, dtype=torch.float64)
    weights = (
        nn.Parameter(drawn / (2 * size) ** 0.5),
        nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64)),
        nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64)),
        nn.Parameter(torch.zeros((), dtype=torch.float64)),
    )
    std_F = feature_NF.std(0, correction=0)
    std_F = torch.where(std_F > 0, std_F, torch.ones_like(std_F))
    model = ProgressEstimator(feature_NF.mean(0), std_F, weights)
    optimiser = torch.optim.Adam(weights, lr=LR)

    draw = pairs(episode_N)

    def error() -> Tensor:
        a, b = draw(PAIRS, rng)
        wanted = progress_N[b] - progress_N[a]
        return (model(feature_NF[a], feature_NF[b]) - wanted).square().mean()

    with torch.enable_grad():
        for _ in range(num_steps):
            optimiser.zero_grad()
            torch.autograd.backward(error())
            optimiser.step()
    frozen = tuple(weight.detach() for weight in weights)
    model = ProgressEstimator(model.mean_F, std_F, frozen)
    return model, float(error())


def pairs(episode_N: Tensor) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    """A function that draws frames, each with another one of its episode; lone frames are left out.

    Raises ValueError where every episode has one frame only.
    """
    key_N, count = segments.key_of(episode_N)
    size_P = segments.count(key_N, count)
    size_N = size_P[key_N]
    able = (size_N > 1).nonzero().squeeze(1)
    if not able.numel():
        raise ValueError("every episode has one frame only")
    order = torch.argsort(key_N, stable=True)
    start_N = torch.cumsum(size_P, 0)[key_N] - size_N
    place_N = segments.order_within(key_N, count)

    def draw(num: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        first = able[torch.randint(able.numel(), (num,), generator=rng)]
        size = size_N[first]
        # A place other than its own, uniformly: one of the size - 1 that follow it in a circle.
        ahead = 1 + (torch.rand(num, generator=rng) * (size - 1)).long()
        place = (place_N[first] + torch.minimum(ahead, size - 1)) % size
        return first, order[start_N[first] + place]

    return draw
