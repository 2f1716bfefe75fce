"""The padded front door: recipes as functions of padded tensors, for other trainers and checks.

    advantages("grpo", rewards=r, groups=g, mask=m, params={"eps": 1e-4})            -> [B, T]
    gradient, denominator = selection("entrocraft", advantages=a, groups=g, mask=m,
                                      entropy=h, params={"step": 3, "total_steps": 100})
    loss, metrics = policy_loss("cispo", logp=lp, logp_old=lo, advantages=a, mask=m)
    token_weights("gspo", logp=lp, logp_old=lo, advantages=a, mask=m)                -> [B, T]

Token tensors are [B, T], rollout tensors [B], turn tensors [B, K]; prompt tokens may be there with
mask 0, and values outside the mask never matter, NaN included. Gradient flows through `logp` (and
`entropy`, `mean_logp`, `values`, `logits` where a recipe reads them) by ordinary autograd. `params`
are the recipe's parameters; `step` and `total_steps` in them resolve schedules. Calls of a recipe
in phases are those of its last one. `inputs(name, call)` says which tensors a call takes. Raises
UserError for a tensor or parameter that the recipe does not know, for a missing tensor, by the name
that it has here, and for shapes that do not fit.

The same composition of parts runs here and in training: the tensors become one flat batch, the
stage runs, the result is padded again.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strop import catalogue, kernel
from strop import part as parts
from strop._fitting import fitting
from strop._loading import attribute
from strop._padded import open_door
from strop._padded_given import check_call, of_dtype, rows_of
from strop._padded_names import CALLS, compose
from strop._padded_pairs import pairs_as_rows
from strop._padded_turns import TurnsInRows
from strop.errors import UserError
from strop.part import Use
from strop.training import pack

__all__ = [
    "UserError",
    "advantages",
    "inputs",
    "kl_estimators",
    "loss_aggregation",
    "policy_loss",
    "selection",
    "token_weights",
    "value_loss_clip",
]


def advantages(
    name: str,
    *,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    **columns: Any,
) -> Tensor:
    """Advantages [B, T] of a recipe's advantage chain, 0 outside the mask.

    rewards: [B]; NaN marks a rollout without a score, which takes part in nothing. groups: [B] any
    ints, ragged, in any order; needed where a part compares rollouts. mask: without it the result
    is one advantage a rollout, [B].

    Recipes that look at turns take `turn_ids` [B, T] with `turn_rewards` [B, K], or rows that are
    turns: `trajectories` [R], `turn_index` [R] with `turn_rewards` [R] and `mask` [R, T]. Without
    a mask the result is one advantage a turn, in the shape of `turn_rewards`. Without `rewards` a
    rollout's is the sum of its turns'.
    """
    given = {"rewards": rewards, "groups": groups, **columns}
    door = open_door("advantages", name, params, seed, mask, given)
    batch = door.chains().write("advantage", door.algorithm.advantage, door.batch)
    advantage_BT = door.back(batch["advantage_T"])
    one_a_row = mask is None and not isinstance(door.layout, TurnsInRows)
    return advantage_BT.squeeze(1) if one_a_row else advantage_BT


def selection(
    name: str,
    *,
    advantages: Tensor,
    groups: Tensor | None = None,
    mask: Tensor,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    **columns: Any,
) -> tuple[Tensor, Tensor]:
    """Which tokens keep their gradient and which count in averages, two bool masks [B, T].

    A recipe without selection parts gives the mask twice. advantages: [B, T], or [B] where a part
    reads one advantage a rollout.
    """
    given = {"advantages": advantages, "groups": groups, **columns}
    door = open_door("selection", name, params, seed, mask, given)
    batch = door.chains().select(door.algorithm.selection, door.batch)
    return door.back(batch["gradient_T"]), door.back(batch["denominator_T"])


def policy_loss(
    name: str,
    *,
    logp: Tensor | None = None,
    advantages: Tensor | None = None,
    mask: Tensor | None = None,
    denominator_mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    **columns: Any,
) -> tuple[Tensor, dict[str, float]]:
    """The loss [] of a recipe's terms, differentiable, and its metrics.

    mask: tokens with gradient; denominator_mask: tokens that count in averages, default the same.
    advantages: [B, T] or [B]. Without `groups` every row is a group of its own, unless a part
    reads groups. Metrics are the terms' own (means over their tokens) and `loss/<term>`.

    Methods on pairs take `logp_chosen`, `logp_rejected`, `mask_chosen`, `mask_rejected` and, where
    they have a reference, `logp_ref_chosen` and `logp_ref_rejected` [N, T] in place of rows.
    """
    given = pairs_as_rows({"logp": logp, "mask": mask, "advantages": advantages, **columns})
    mask = _needed(name, given.pop("mask"), "mask")
    door = open_door("policy_loss", name, params, seed, mask, given, denominator_mask)
    terms = door.algorithm.terms
    view = kernel.View(kernel.prepare(terms, door.batch, door.rng()))
    tally = kernel.Tally()
    losses = [kernel.term_loss(term, view, tally, rng=door.rng()) for term in terms]
    if not losses:
        raise UserError(f"recipe {name} has no loss terms with these parameters")
    each = {f"loss/{term}": float(loss) for term, loss in tally.losses.items()}
    return torch.stack(losses).sum(), {**tally.means(), **each}


def token_weights(
    name: str,
    *,
    logp: Tensor | None = None,
    advantages: Tensor | None = None,
    mask: Tensor | None = None,
    denominator_mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    **columns: Any,
) -> Tensor:
    """c_t = -dL/dlogp_t [B, T]: how hard the loss pushes each sampled token up.

    The share of the average is included. Arguments as in `policy_loss`; of pairs [2 N, T], the
    chosen answers first.
    """
    given = pairs_as_rows({"logp": logp, "mask": mask, "advantages": advantages, **columns})
    logp = of_dtype("logp", _needed(name, given.pop("logp"), "logp"), "float")
    leaf_BT = logp.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss, _ = policy_loss(
            name, logp=leaf_BT, denominator_mask=denominator_mask, params=params, seed=seed, **given
        )
        if not loss.requires_grad:
            return torch.zeros_like(leaf_BT)
        (grad_BT,) = torch.autograd.grad(loss, leaf_BT, allow_unused=True, materialize_grads=True)
    return -grad_BT


def _needed(name: str, tensor: Tensor | None, which: str) -> Tensor:
    if tensor is None:
        raise UserError(f"policy_loss({name!r}) needs {which}")
    return tensor


def loss_aggregation(
    per_token_loss: Tensor,
    mask: Tensor,
    aggregation: str = "token-mean",
    L_max: float | None = None,
) -> Tensor:
    """One number [] from token losses [B, T], as the recipes' `aggregation` makes it.

    aggregation: token-mean, token-sum, seq-mean-token-mean, seq-mean-token-sum, seq-mean, or
    seq-mean-token-sum-norm, which divides by `L_max` (default: the padded width T).
    """
    use = attribute("strop.recipes._base:average")(aggregation)
    mask, given = rows_of(mask, per_token_loss=per_token_loss)
    per_token_loss = given["per_token_loss"]
    batch = pack.from_padded({"loss_T": per_token_loss}, mask)
    length = mask.shape[1] if L_max is None else fitting("L_max", float, None, L_max)
    batch = batch.set(denominator_T=batch["mask_T"], max_length=torch.tensor(length))
    share_T = parts.call(use, batch).value
    return (share_T.to(per_token_loss.dtype) * batch["loss_T"]).sum()


def value_loss_clip(
    *,
    values: Tensor,
    values_old: Tensor | None = None,
    returns: Tensor,
    mask: Tensor,
    clip_value: float = 0.5,
    aggregation: str = "token-mean",
) -> Tensor:
    """The critic's loss [], 0.5 max((V - G)^2, (clip(V, V_old +- clip_value) - G)^2) averaged.

    All [B, T]; differentiable in `values`. clip_value 0: no clip, and no `values_old`.
    """
    old = {} if values_old is None else {"values_old": values_old}
    mask, given = rows_of(mask, values=values, returns=returns, **old)
    names = {"values": "value_T", "returns": "return_T", "values_old": "value_old_T"}
    batch = pack.from_padded({names[name]: column for name, column in given.items()}, mask)
    clip = fitting("clip_value", float, None, clip_value)
    regress = catalogue.load("part", "regress_value")(clip)
    loss_T = -parts.call(Use(regress), batch).value
    loss_BT = pack.to_padded(loss_T, batch["rollout_T"], *mask.shape)
    return loss_aggregation(loss_BT, mask, aggregation)


def kl_estimators(
    *, logp: Tensor, logp_ref: Tensor, mask: Tensor, aggregation: str = "token-mean"
) -> dict[str, Tensor]:
    """Estimates [] of KL(policy || reference) from the sampled tokens: k1, abs, k2 and k3.

    d = logp - logp_ref; k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d - 1. Differentiable in
    `logp`.
    """
    penalty = catalogue.load("part", "penalise_kl_to_reference")
    mask, given = rows_of(mask, logp=logp, logp_ref=logp_ref)
    batch = pack.from_padded({f"{name}_T": column for name, column in given.items()}, mask)
    found = {}
    for kind in ("k1", "abs", "k2", "k3"):
        kl_T = -parts.call(Use(penalty(estimator=kind)), batch).value
        kl_BT = pack.to_padded(kl_T, batch["rollout_T"], *mask.shape)
        found[kind] = loss_aggregation(kl_BT, mask, aggregation)
    return found


def inputs(name: str, call: str, params: Mapping[str, Any] | None = None) -> dict[str, bool]:
    """The tensors that `advantages`, `selection` or `policy_loss` takes, and whether each must be.

    Of names for the same column (`logp_old`, `logp_prox`) all are listed; one of them is enough.
    """
    if call not in [*CALLS]:
        raise UserError(f"no call {call!r}; there are {', '.join(CALLS)}")
    params = {} if params is None else params
    check_call(name, params)
    return compose(name, params, {})[0].inputs(call)
