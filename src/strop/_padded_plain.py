"""Functions of the padded door that need no recipe's name: averages, critics, nuclei, trees."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strop import catalogue
from strop import part as parts
from strop._fitting import fitting
from strop._loading import attribute
from strop._padded_compose import compose
from strop._padded_given import check_call, rows_of
from strop._padded_labels import distributions_of, ids_of
from strop._padded_names import Names
from strop._padded_tree import batch_of, by_level, leaves_of
from strop.chains import Chains
from strop.errors import UserError
from strop.loss import head_subset
from strop.part import Use
from strop.training import pack


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


def nucleus_entropy(logits: Tensor, *, top_p: float = 0.8, variant: str = "paper") -> Tensor:
    """Entropy [B, T] of the likeliest tokens of mass `top_p` (siren), from logits [B, T, V].

    Differentiable. variant: "paper", or "code": without the token that crosses `top_p`.
    """
    if variant not in ("paper", "code"):
        raise UserError(f"nucleus_entropy: variant is paper or code, not {variant!r}")
    mass = fitting("top_p", float, None, top_p)
    part = catalogue.load("part", "pull_nucleus_entropy")(top_p=mass, below=variant == "code")
    logq_TV, shape = distributions_of(logits)
    return head_subset.nucleus_entropy(logq_TV, part.top_p, part.below).reshape(shape)


def plausible_logp(logits: Tensor, token_ids: Tensor, *, kappa: float = 0.02) -> Tensor:
    """Log-probability [B, T] of tokens once implausible ones are cut (lp_reg's `logp_proxy`).

    Tokens up to `kappa` of the largest probability are cut, -1e4 where the token itself is one.
    logits: [B, T, V] of the policy that drew the answers. token_ids: [B, T].
    """
    part = catalogue.load("part", "score_plausible_tokens")(fitting("kappa", float, None, kappa))
    logq_TV, shape = distributions_of(logits)
    id_T = ids_of("token_ids", token_ids, shape, logq_TV.shape[1]).flatten()
    exp_TV = (logq_TV - logq_TV.max(-1, keepdim=True).values).detach().exp()
    column = head_subset.column_of("min_p_logp", part.kappa)
    return head_subset.measure_subset(column, exp_TV, id_T, False)[0].reshape(shape)


def tree_edges(name: str, *, tree: Any, params: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Advantages of a tree's edges as a recipe credits them ("spo_tree"), a tensor for each level.

    tree: nested lists whose numbers are the leaves' scores, [[1, 0], [0, 0]]; NaN: none. An edge of
    advantage 0 is not trained on. Raises UserError for a recipe that backs up no tree.
    """
    params = {} if params is None else params
    check_call(name, params)
    return by_level(*_credited("tree_edges", name, compose(name, params, {})[0], tree))


def tree_rows(name: str, names: Names, mask: Any, given: Mapping[str, Any]) -> Tensor:
    """The same [leaves, levels]: a row has the edges on the way to its leaf, 0 after them."""
    beside = [key for key, value in {"mask": mask, **given}.items() if value is not None]
    if beside != ["tree"]:
        others = ", ".join(key for key in beside if key != "tree")
        raise UserError(f"advantages({name!r}): a tree stands alone, leave {others} out")
    leaves, credit_T = _credited("advantages", name, names, given["tree"])
    rows = torch.tensor([row for row, (path, _) in enumerate(leaves) for _ in path]).long()
    return pack.to_padded(credit_T, rows, len(leaves), max(len(path) for path, _ in leaves))


def _credited(
    call: str, name: str, names: Names, tree: Any
) -> tuple[list[tuple[tuple[int, ...], float]], Tensor]:
    """A tree's leaves, and what the edges on the way to each have earned, one after another."""
    if not names.credits_edges:
        raise UserError(f"{call}({name!r}): the recipe credits no edges of a tree")
    leaves = list(leaves_of(tree))
    chains = Chains(lambda part, number: torch.Generator())
    batch = chains.write("reward", names.run_by("rewards"), batch_of(leaves))
    return leaves, batch["credit_T"]
