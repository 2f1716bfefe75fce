"""Copies of the trained weights that the loop keeps: a reference, an anchor, an explorer.

One rule moves all of them, part of the way to the policy. Controls set when and how far
(`strop.method.part.COPIES`), and the checkpoint holds every copy that has moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strop.engines.base import Engine
from strop.method.part import knobs_of_copy
from strop.support.errors import UserError
from strop.training.learner.policy import Policy
from strop.training.parallel import shards

Weights = dict[str, Tensor]


@dataclass
class WeightCopies:
    """The copies of a run, by name. policy: whose weights they follow.

    rounded: the weights of another policy, where a copy of higher precision moves in their place.
    """

    policy: Policy
    copies: dict[str, Weights] = field(default_factory=dict)
    rounded: dict[str, Weights] = field(default_factory=dict)

    def keep(self, name: str) -> None:
        """Make a copy of the current weights, in main memory unless they are sharded."""
        masters = self.policy.masters()
        self.copies[name] = {each: _copied(weight) for each, weight in masters.items()}

    def watch(self, name: str, other: Policy) -> None:
        """Use the weights of another policy as the copy."""
        own = other.model.state_dict()
        self.copies[name] = {each: own[each] for each in self.policy.masters()}

    @torch.no_grad()
    def follow(self, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        """Move the copies whose knobs say so; the policy continues from its anchor."""
        for name, weights in self.copies.items():
            step, share = knobs_of_copy(name)
            if now.get(step, 0) == before.get(step, 0):
                continue
            if now.get(share, 1.0) != 1:
                self._widen(name)
            move(weights, self.policy.masters(), now.get(share, 1.0))
            self._round(name)
            if name == "anchor":
                self.policy.take(weights)

    def _widen(self, name: str) -> None:
        """From here on keep a copy in the precision that the optimiser steps.

        An average moves by less than the distance between two bfloat16 numbers: rounded after
        each move, it would stay where it is.
        """
        masters, own = self.policy.masters(), self.copies[name]
        narrow = {
            each: weight for each, weight in own.items() if weight.dtype != masters[each].dtype
        }
        for each, weight in narrow.items():
            own[each] = _copied(weight.to(masters[each].dtype))
        self.rounded.setdefault(name, {}).update(narrow)

    def _round(self, name: str) -> None:
        """Give the other policy a copy's weights in its own precision."""
        for each, weight in self.rounded.get(name, {}).items():
            shards.put(self.copies[name][each], weight)

    def moved(self, knobs: Mapping[str, float]) -> dict[str, Weights]:
        """The copies that differ from the starting weights, for a checkpoint."""
        return {n: own for n, own in self.copies.items() if knobs.get(knobs_of_copy(n)[0], 0)}

    @torch.no_grad()
    def load(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Restore a copy from a checkpoint. Raises UserError for one of another model."""
        own = self.copies[name]
        if set(weights) != set(own):
            raise UserError(f"the checkpoint's {name} is of another model or method: keep both")
        if any(weights[each].dtype != weight.dtype for each, weight in own.items()):
            self._widen(name)  # it is an average
        for each, weight in own.items():
            shards.put(weights[each], weight)
        self._round(name)

    @contextmanager
    def exploring(self, engine: Engine) -> Iterator[None]:
        """Inside, the engine samples with the explorer's weights.

        They stand in the policy's own model meanwhile, so the device holds no second model.
        """
        own = self.policy.trained()
        held = {name: weight.detach().clone() for name, weight in own.items()}
        _put(self.copies["explorer"], own)
        engine.load_weights(None, engine.version)
        try:
            yield
        finally:
            _put(held, own)
            engine.load_weights(None, engine.version)


def move(weights: Weights, policy: Mapping[str, Tensor], share: float) -> None:
    """weights <- weights + share (policy - weights); share 1 copies the policy bit for bit."""
    for name, own in weights.items():
        if share == 1:
            shards.put(policy[name], own)
        else:
            own.mul_(1 - share).add_(shards.parted(policy[name], own).to(own.device), alpha=share)


def _copied(weight: Tensor) -> Tensor:
    if shards.is_sharded(weight):
        return weight.detach().clone()
    return weight.detach().to("cpu", copy=True)


@torch.no_grad()
def _put(weights: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    for name, weight in into.items():
        weight.copy_(weights[name])
