"""Layers with routed experts: records or replays which experts the tokens of a pass get.

    y = sum_{e in S} g_e FFN_e(x),   S = the k experts of the largest scores s(x),   g from s over S

A replayed pass uses a given S. Gates still come from the router's current scores, over S, so that
they agree with the current weights and have a gradient.

A router is any module of the model that calls `torch.topk` for k of all experts; a short pass finds
them. That call (the last one, where groups of experts are ranked before) is intercepted, and the
rest of the pass is the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

UNKNOWN = -1  # in place of an expert: the router chooses
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names in configurations
ATTRIBUTE = "strop_experts"


@dataclass
class Watch:
    """One pass: the experts to replay [tokens, layers, k], and each layer's router's own choice."""

    replayed: Tensor | None = None
    own: dict[int, Tensor] = field(default_factory=dict)

    def chosen(self) -> Tensor:
        """The routers' own choices [tokens, layers * k], an int16 each, likeliest first."""
        found = [self.own[layer] for layer in sorted(self.own)]
        return torch.stack(found, dim=1).flatten(1)

    def used(self) -> Tensor:
        """The experts that the pass used, in the same form."""
        if self.replayed is None:
            return self.chosen()
        own = self.chosen().view_as(self.replayed)
        return torch.where(self.replayed < 0, own, self.replayed.to(own.dtype)).flatten(1)


class Experts:
    """The state that all routers of a model share. Outside of `watching` a pass is unchanged."""

    def __init__(self, num_layers: int, num_experts: int, top_k: int) -> None:
        self.num_layers, self.num_experts, self.top_k = num_layers, num_experts, top_k
        self.now: Watch | None = None

    @contextmanager
    def watching(self, replayed: Tensor | None = None) -> Iterator[Watch]:
        """Record passes inside the context. replayed: [tokens, layers * k], UNKNOWN: no replay."""
        if replayed is not None:
            replayed = replayed.view(-1, self.num_layers, self.top_k)
        before, self.now = self.now, Watch(replayed)
        try:
            yield self.now
        finally:
            self.now = before

    def is_router_call(self, scores: Any, k: Any) -> bool:
        """Whether a call of `topk` is a router's choice."""
        return bool(k == self.top_k and scores.shape[-1] == self.num_experts)

    def load(self, used_TW: Tensor) -> Tensor:
        """Share of the tokens that each expert got [layers, experts]; a layer's sum is k."""
        used_TLK = used_TW.view(-1, self.num_layers, self.top_k)
        used_TLK = used_TLK[(used_TLK >= 0).all(-1).all(-1)].long()
        place = torch.arange(self.num_layers, device=used_TW.device)[:, None] * self.num_experts
        flat = (used_TLK + place).flatten()
        count = torch.bincount(flat, minlength=self.num_layers * self.num_experts)
        return count.view(self.num_layers, -1).double() / max(len(used_TLK), 1)

    def mismatch(self, one_TW: Tensor, other_TW: Tensor) -> Tensor:
        """Share of the layers [T] in which a token has different experts; NaN where unknown."""
        shape = (-1, self.num_layers, self.top_k)
        one, other = (each.view(shape).long().sort(-1).values for each in (one_TW, other_TW))
        known = (one[..., 0] >= 0).all(-1) & (other[..., 0] >= 0).all(-1)
        differs = (one != other).any(-1).float().mean(-1)
        return torch.where(known, differs, torch.nan)


def balance(logits: tuple[Tensor, ...], load_LE: Tensor) -> Tensor:
    """A token's term of the load-balancing loss [T]: E sum_e load_e p_e, mean over layers."""
    terms = [
        each.float().softmax(-1) @ load_E.to(each.device, torch.float32)
        for each, load_E in zip(logits, load_LE, strict=True)
    ]
    return load_LE.shape[1] * torch.stack(terms).mean(0)


class _Choosing(TorchFunctionMode):
    """Inside a router: records its choice, and replaces it where another one is given.

    before: the number of similar calls that come before the choice.
    """

    def __init__(self, experts: Experts, watch: Watch, layer: int, before: int) -> None:
        super().__init__()
        self.experts, self.watch, self.layer, self.before = experts, watch, layer, before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in (torch.topk, torch.Tensor.topk):
            return found
        scores, k = _arguments(*args, **(kwargs or {}))
        if not self.experts.is_router_call(scores, k):
            return found
        self.before -= 1
        if self.before >= 0:
            return found
        own = found.indices
        self.watch.own[self.layer] = own.detach().view(-1, k).to(torch.int16)
        if self.watch.replayed is None:
            return found
        given = self.watch.replayed[:, self.layer].to(own.dtype).view_as(own)
        index = torch.where(given < 0, own, given)
        return torch.return_types.topk((scores.gather(-1, index), index))


def _arguments(input: Any, k: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    return input, k


def experts_of(model: Any) -> Experts | None:
    """The shared state of a model's routers; None where it has none. The search runs once."""
    if getattr(model, "config", None) is None:
        return None
    if not hasattr(model, ATTRIBUTE):
        setattr(model, ATTRIBUTE, _found(model))
    return getattr(model, ATTRIBUTE)


def _found(model: Any) -> Experts | None:
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    numbers = [getattr(config, name, None) for name in EXPERTS]
    num_experts = next((number for number in numbers if number), None)
    top_k = getattr(config, "num_experts_per_tok", None)
    if not num_experts or not top_k:
        return None
    experts = Experts(0, num_experts, top_k)
    calls = _calls(model, experts)
    routers = list(dict.fromkeys(calls))
    experts.num_layers = len(routers)
    for layer, router in enumerate(routers):
        setattr(router, ATTRIBUTE, (experts, layer, calls.count(router) - 1))
        router.__class__ = _watched(type(router))
    return experts if routers else None


class _Finding(TorchFunctionMode):
    """Finds the modules that choose experts in their pass."""

    def __init__(self, experts: Experts, inside: list[nn.Module]) -> None:
        super().__init__()
        self.experts, self.inside, self.found = experts, inside, list[nn.Module]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        chooses = func in (torch.topk, torch.Tensor.topk)
        if chooses and self.experts.is_router_call(*_arguments(*args, **(kwargs or {}))):
            self.found.append(self.inside[-1])
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def _calls(model: Any, experts: Experts) -> list[nn.Module]:
    """The modules that choose experts in a pass, in the order of the layers."""
    inside: list[nn.Module] = []
    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(lambda each, _: inside.append(each)))
        hooks.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    ids = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    try:
        with _Finding(experts, inside) as finding:
            model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return finding.found


_CLASSES: dict[type, type] = {}


def _watched(kind: Any) -> type:
    """The class of a router whose pass is recorded and replayed inside `watching`."""

    def forward(router: Any, *args: Any, **options: Any) -> Any:
        experts, layer, before = getattr(router, ATTRIBUTE)
        if experts.now is None:
            return kind.forward(router, *args, **options)
        with _Choosing(experts, experts.now, layer, before):
            return kind.forward(router, *args, **options)

    if kind not in _CLASSES:
        _CLASSES[kind] = type(f"Watched{kind.__name__}", (kind,), {"forward": forward})
    return _CLASSES[kind]
