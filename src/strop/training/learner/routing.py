"""Experts in the learner's passes: what they replay, what their routers choose, and their balance.

A column of experts is [T, layers * k]. Row t holds the experts that processed token t's position.
"""

import math
from collections.abc import Container
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, to_padded
from strop.batch.columns import OF_EXPERTS
from strop.engines.base import EXPERTS, Engine
from strop.support.errors import UserError
from strop.support.experts import UNKNOWN, Experts, Watch, balance
from strop.training.learner.prefix_sharing import Forest, Layout

Replay = Literal["disabled", "R2", "R3"]
OF_ENGINE, OLD, NOW = "experts_behavior_T", "experts_old_T", "experts_T"
REPLAYED = {"disabled": "", "R2": OLD, "R3": OF_ENGINE}  # the column that each mode replays
LOAD, BALANCE = "router_load", "router_balance_T"
MISMATCH = "router_mismatch_T"  # a column that `Policy.push` measures beside the requested ones
KNUTH = 0x2545F4914F6CDD1D  # an odd multiplier of 62 bits


class Pass(NamedTuple):
    """Hidden states [M, width] of a pass, and their rows before and after every policy token.

    logits: the routers' logits [M, experts] by layer, if they were requested.
    """

    states: Tensor
    before_T: Tensor
    after_T: Tensor
    logits: tuple[Tensor, ...] = ()


def ids_by_experts(batch: Batch, name: str) -> Batch:
    """The batch with new token ids, which are equal where both tokens and their experts are.

    Contexts then share a prefix only as far as they replay the same experts.
    """
    if name not in batch:
        return batch
    odd_W = 2 * torch.arange(batch[name].shape[1], device=batch[name].device) + 1
    key_T = ((batch[name].long() + 2) * odd_W * KNUTH).sum(1)
    key_T = (key_T ^ (key_T >> 29)) * KNUTH + batch["id_T"]
    return batch.set(id_T=torch.unique(key_T, return_inverse=True)[1])


def token_of(forest: Forest, batch: Batch) -> Tensor:
    """For each node of the forest of the batch's contexts, a token [nodes] that it stands for."""
    first_C = segments.first(*batch.contexts())
    return first_C[forest.context_N] + forest.depth_N


def placed(batch: Batch, name: str, layout: Layout | None) -> Tensor:
    """A column of experts in the token order of a pass over the batch: [M, layers * k]."""
    if layout is not None:
        return batch[name][token_of(layout.forest, batch)]
    return to_padded(batch[name], *batch.contexts(), fill=UNKNOWN).flatten(0, 1)


def back(batch: Batch, found_MW: Tensor, layout: Layout | None) -> Tensor:
    """A result of a pass [M, ...] as a column of the batch's tokens."""
    context_T, num = batch.contexts()
    position_T = segments.place_in_run(context_T, num)
    if layout is not None:
        return found_MW[layout.forest.node_CL[context_T, position_T]]
    return found_MW[context_T * (found_MW.shape[0] // num) + position_T]


def check(mode: Replay, reads: frozenset[str], policy: Any, engine: Engine, kind: str) -> None:
    """Raise UserError for what a model, its adapters or the engine cannot do with experts.

    reads: the columns that the method reads.
    """
    read = sorted(OF_EXPERTS & reads)
    if not REPLAYED[mode] and not read:
        return
    asked = f"model.router_replay={mode}" if REPLAYED[mode] else f"a part that reads {read[0]}"
    if policy.experts is None:
        raise UserError(
            f"{asked} needs a mixture of experts, and {type(policy.model).__name__} has no router "
            "that strop finds: leave it out"
        )
    if policy.adapters:
        raise UserError(
            f"{asked} does not go with several adapters, under which a token has several experts: "
            "leave it or roles.play out"
        )
    needs_engine = mode == "R3" or OF_ENGINE in read
    if needs_engine and EXPERTS not in engine.capabilities:
        raise UserError(
            f"{asked} needs the experts that the engine chose, and the engine {kind!r} does not "
            "report them: take engine.kind=local, or model.router_replay=R2"
        )


def to_note(reads: Container[str], batch: Batch, policy: Any) -> frozenset[str]:
    """The column of experts to refresh, if any, for a step whose terms read the columns `reads`."""
    balances = BALANCE in reads and OF_ENGINE not in batch
    return frozenset({OLD}) if policy.replay == OLD or balances else frozenset()


def mismatch(batch: Batch, experts: Experts, watch: Watch, passed: Pass) -> dict[str, Tensor]:
    """MISMATCH [policy tokens]: share of layers whose router chose other experts than recorded.

    It is taken at the position before a token, which predicts it. Empty where none were recorded.
    """
    name = OF_ENGINE if OF_ENGINE in batch else OLD
    if name not in batch:
        return {}
    mask_T = batch["mask_T"]
    follows_T = segments.place_in_run(*batch.contexts())[mask_T] > 0
    recorded = batch[name][mask_T.nonzero().squeeze(1) - follows_T.long()]
    return {MISMATCH: experts.mismatch(watch.chosen()[passed.before_T], recorded)}


def balances(batch: Batch, passed: Pass) -> Tensor:
    """BALANCE [policy tokens], with gradient to the routers."""
    return balance(passed.logits, batch[LOAD]).index_select(0, passed.before_T)


def with_load(batch: Batch, experts: Experts) -> Batch:
    """The batch with the load of its experts over all tokens, where they are recorded."""
    recorded = [name for name in (OF_ENGINE, OLD) if name in batch]
    if not recorded:
        return batch
    return batch.set(**{LOAD: experts.load(batch[recorded[0]])})


def load_metrics(batch: Batch) -> dict[str, float]:
    """How evenly experts were used; docs/METRICS.md has the formulas. Empty without a load."""
    if LOAD not in batch:
        return {}
    share_LE = batch[LOAD] / batch[LOAD].sum(-1, keepdim=True).clamp(min=1e-9)
    number = share_LE.shape[1]
    most_L = share_LE.amax(-1) * number
    entropy_L = torch.special.entr(share_LE).sum(-1) / math.log(number) if number > 1 else most_L
    found = {
        "router/max_load": float(most_L.mean()),
        "router/load_entropy": float(entropy_L.mean()),
        "router/frac_dead_experts": float((share_LE == 0).double().mean()),
    }
    each = {f"router/max_load/layer_{layer}": most for layer, most in enumerate(most_L.tolist())}
    return found | each
