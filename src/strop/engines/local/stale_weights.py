"""The local engine with stale weights: it samples with those of some steps ago."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from strop.engines.local.engine import LocalEngine
from strop.support.errors import UserError

Weights = dict[str, Tensor]


class StaleWeightsEngine(LocalEngine):
    """Samples with weights `staleness` versions older than the newest that it was given.

    It holds the trained weights of the last `staleness` + 1 versions in main memory, and a copy of
    `model` that it samples from; weights that are not trained are shared with `model`. Until there
    are so many versions, the oldest one, which is the starting weights, is used.

    load_weights(None, version) takes the newest version from `model`; events carry the version of
    the weights that drew them.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any = None, *, staleness: int, **options: Any
    ) -> None:
        self.staleness = staleness
        self.source = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.held: deque[tuple[int, Weights]] = deque(maxlen=staleness + 1)
        frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
        own = copy.deepcopy(model, frozen).requires_grad_(False)
        super().__init__(own, tokenizer, **options)
        self.held.append((self.version, _copied(self.source)))

    def load_weights(self, state: Mapping[str, Tensor] | None, version: int) -> None:
        """Store these weights as the newest ones, and sample with the oldest stored from now on."""
        if state is not None and (missing := sorted(self.source.keys() - state.keys())):
            raise UserError(f"these weights lack {missing[0]} and {len(missing) - 1} more names")
        self.held.append((version, _copied(self.source if state is None else state)))
        self._sample_with(0)

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Inside, the engine samples with the newest weights."""
        self._sample_with(-1)
        try:
            yield
        finally:
            self._sample_with(0)

    def state_dict(self) -> dict[str, Any]:
        """The stored weights, oldest first."""
        return {
            "staleness": self.staleness,
            "versions": [version for version, _ in self.held],
            "weights": [weights for _, weights in self.held],
        }

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Restore a state of `state_dict`. Raises UserError for one of another staleness."""
        saved = state.get("staleness", 0)
        if saved != self.staleness:
            raise UserError(
                f"the checkpoint holds weights for engine.staleness={saved}, the run "
                f"has {self.staleness}: resume with the first, or start a run"
            )
        self.held.clear()
        self.held.extend(zip(state["versions"], state["weights"], strict=True))
        self._sample_with(0)

    def _sample_with(self, place: int) -> None:
        version, weights = self.held[place]
        super().load_weights({**self.model.model.state_dict(), **weights}, version)


def _copied(weights: Mapping[str, Tensor]) -> Weights:
    return {name: weight.detach().to("cpu", copy=True) for name, weight in weights.items()}
