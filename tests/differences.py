"""Central differences of a function that stops gradients, in float64."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def detached(tape: list[Tensor], replay: bool) -> Iterator[None]:
    """Record what `detach` returns, or hand the recorded values out again in the same order.

    So a numeric derivative moves only what a gradient flows through.
    """
    plain, place = Tensor.detach, iter(tape)

    def detach(self: Tensor) -> Tensor:
        if replay:
            return next(place)
        tape.append(plain(self).clone())
        return tape[-1]

    Tensor.detach = detach
    try:
        yield
    finally:
        Tensor.detach = plain


def gradient_by_differences(
    loss: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The gradient of `loss` at `at` by autograd, and by central differences of its value."""
    analytic, tape = _by_autograd(loss, at)
    directions = torch.eye(at.numel(), dtype=at.dtype).view(-1, *at.shape)
    return analytic, _along(loss, at, directions, step, tape).view(at.shape)


def slopes_by_differences(
    loss: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6, num: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of `loss` at `at` by autograd; its slopes [num] in random directions, by that
    gradient and by central differences.

    An entry of the gradient that is wrong is wrong in every direction, for none is at right angles
    to it. It is found where its error is not small beside the whole slope: callers compare closely.
    """
    analytic, tape = _by_autograd(loss, at)
    rng = torch.Generator().manual_seed(0)
    directions = torch.randn(num, *at.shape, generator=rng, dtype=at.dtype)
    by_gradient = (directions * analytic).flatten(1).sum(1)
    return analytic, by_gradient, _along(loss, at, directions, step, tape)


def _by_autograd(loss: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The gradient, and what was detached on the way."""
    leaf = at.clone().requires_grad_()
    tape: list[Tensor] = []
    with detached(tape, replay=False):
        value = loss(leaf)
    (analytic,) = torch.autograd.grad(value, leaf)
    return analytic, tape


def _along(
    loss: Callable[[Tensor], Tensor], at: Tensor, directions: Tensor, step: float,
    tape: list[Tensor],
) -> Tensor:  # fmt: skip
    """The slope of `loss` in each direction."""
    found = []
    for direction in directions:
        values = []
        for sign in (1, -1):
            with torch.no_grad(), detached(tape, replay=True):
                values.append(float(loss(at + sign * step * direction)))
        found.append((values[0] - values[1]) / (2 * step))
    return torch.tensor(found, dtype=at.dtype)
