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
    leaf = at.clone().requires_grad_()
    tape: list[Tensor] = []
    with detached(tape, replay=False):
        value = loss(leaf)
    (analytic,) = torch.autograd.grad(value, leaf)
    numeric = torch.zeros_like(at)
    for place in range(at.numel()):
        values = []
        for sign in (1, -1):
            moved = at.clone()
            moved.view(-1)[place] += sign * step
            with torch.no_grad(), detached(tape, replay=True):
                values.append(float(loss(moved)))
        numeric.view(-1)[place] = (values[0] - values[1]) / (2 * step)
    return analytic, numeric
