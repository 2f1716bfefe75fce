"""AdamW for weights of any precision."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from strop.training.parallel import shards

HALF = (torch.bfloat16, torch.float16)


class MasterAdamW(torch.optim.AdamW):
    """AdamW on float32 copies of half-precision weights, which follow them after each step.

    Near 1 a bfloat16 number has its next neighbour at a distance of 0.004 to 0.008: a step of
    1e-6 would be rounded away, every time. The float32 copy (the master) takes it; the weight is
    the master rounded. Gradients are added up in float32 too: as soon as a backward pass has a
    weight's gradient, it moves to the master, so no half-precision gradient is kept.

    Masters are what `param_groups` holds, so clip those; weights of float32 and above are their
    own masters and nothing is copied. `state_dict` holds the masters: the run goes on exactly.
    """

    def __init__(self, weights: Iterable[nn.Parameter], **options: Any) -> None:
        self.pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # weight, its float32 master
        masters = []
        for weight in weights:
            master = weight
            if weight.dtype in HALF:
                master = nn.Parameter(weight.detach().float())
                self.pairs.append((weight, master))
                weight.register_post_accumulate_grad_hook(_to(master))
            masters.append(master)
        super().__init__(masters, **options)

    def step(self, closure: Any = None) -> Any:
        """Step the masters and copy them into the weights."""
        loss = super().step(closure)
        with torch.no_grad():
            for weight, master in self.pairs:
                weight.copy_(master)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state and the masters, in shards where the weights are."""
        return {**super().state_dict(), "masters": [master.detach() for _, master in self.pairs]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the weights become the rounded masters."""
        state = dict(state_dict)
        masters: list[Tensor] = state.pop("masters")
        super().load_state_dict(shards.parted_state(state, self))
        with torch.no_grad():
            for (weight, master), saved in zip(self.pairs, masters, strict=True):
                shards.put(saved, master)
                weight.copy_(master)


def _to(master: nn.Parameter) -> Any:
    """Returns a hook that moves a weight's new gradient to its master."""

    def move(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient, weight.grad = weight.grad, None
        if master.grad is None:
            master.grad = gradient.float()
        else:
            master.grad.add_(gradient)

    return move
