"""Computes over padded tensors without a stage: averages, divergences, critics, nuclei, trees."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import Batch, from_padded, to_padded
from strop.catalogue import catalogue
from strop.head import chunk as head_chunk
from strop.method import part as parts
from strop.method.chains import Chains
from strop.method.fitting import fitting
from strop.method.part import Use
from strop.padded.compose import names_of
from strop.padded.given import PaddedCall, rows_of
from strop.padded.names import Names
from strop.padded.rows import distributions_of, ids_of
from strop.support.errors import UserError, check_value
from strop.support.loading import attribute

DEEPEST = 60  # levels of a tree
Path = tuple[int, ...]  # of a tree's node: the branches that lead to it


def loss_aggregation(
    per_token_loss: Tensor,
    mask: Tensor,
    aggregation: str = "token-mean",
    L_max: float | None = None,
) -> Tensor:
    """One number [] from token losses [B, T], as with the recipes' `aggregation`.

    aggregation: token-mean, token-sum, seq-mean-token-mean, seq-mean-token-sum, seq-mean,
    prompt-mean (each row is a prompt of its own), or token-sum-norm and seq-mean-token-sum-norm,
    which divide by `L_max` (default: the padded width T); the others take none.
    """
    use = attribute("strop.recipes._base:average")(aggregation)
    mask, given = rows_of(mask, per_token_loss=per_token_loss)
    per_token_loss = given["per_token_loss"]
    batch = from_padded({"loss_T": per_token_loss}, mask)
    length = mask.shape[1] if L_max is None else fitting("L_max", float, None, L_max)
    if L_max is not None and not aggregation.endswith("-norm"):
        raise UserError(
            f"L_max={L_max}: {aggregation} has no constant, those that end in -norm have; leave it "
            "out"
        )
    if L_max is not None and not 0 < length < math.inf:
        raise UserError(f"L_max is {L_max}: give a number above 0")
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
    batch = from_padded({names[name]: column for name, column in given.items()}, mask)
    clip = fitting("clip_value", float, None, clip_value)
    if clip and values_old is None:
        raise UserError("value_loss_clip needs values_old; clip_value=0 does without it")
    regress = catalogue.load("part", "regress_value")(clip)
    loss_T = -parts.call(Use(regress), batch).value
    loss_BT = to_padded(loss_T, batch["rollout_T"], *mask.shape)
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
    batch = from_padded({f"{name}_T": column for name, column in given.items()}, mask)
    found = {}
    for kind in ("k1", "abs", "k2", "k3"):
        kl_T = -parts.call(Use(penalty(estimator=kind)), batch).value
        kl_BT = to_padded(kl_T, batch["rollout_T"], *mask.shape)
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
    return head_chunk.nucleus_entropy(logq_TV, part.top_p, part.below).reshape(shape)


def plausible_logp(logits: Tensor, token_ids: Tensor, *, kappa: float = 0.02) -> Tensor:
    """Log-probability [B, T] of tokens once implausible ones are cut (lp_reg's `logp_proxy`).

    Tokens up to `kappa` of the largest probability are cut; -1e4 where the token itself is cut.
    logits: [B, T, V] of the policy that drew the answers. token_ids: [B, T].
    """
    part = catalogue.load("part", "score_plausible_tokens")(fitting("kappa", float, None, kappa))
    logq_TV, shape = distributions_of(logits)
    id_T = ids_of("token_ids", token_ids, shape, logq_TV.shape[1]).flatten()
    exp_TV = (logq_TV - logq_TV.max(-1, keepdim=True).values).detach().exp()
    column = head_chunk.column_of("min_p_logp", part.kappa)
    return head_chunk.measure_subset(column, exp_TV, id_T, False)[0].reshape(shape)


def tree_edges(name: str, *, tree: Any, params: Mapping[str, Any] | None = None) -> list[Tensor]:
    """Advantages of a tree's edges as a recipe credits them ("spo_tree"), a tensor for each level.

    tree: nested lists whose numbers are the leaves' scores, [[1, 0], [0, 0]]; NaN: none. An edge of
    advantage 0 is not trained on. Raises UserError for a recipe that credits no tree edges.
    """
    call = PaddedCall("tree_edges", name, {"tree": tree}, params=params)
    return _by_level(*_credited(call, names_of(call.recipe, call.params)))


def tree_rows(call: PaddedCall, names: Names) -> Tensor:
    """Returns advantages [leaves, levels] of the edges on the way to each leaf, 0 after them."""
    given = {"mask": call.mask, **call.tensors}
    beside = [key for key, value in given.items() if value is not None and key != "tree"]
    if beside:
        raise UserError(f"{call}: a tree stands alone, leave {', '.join(beside)} out")
    leaves, credit_T = _credited(call, names)
    rows = torch.tensor([row for row, (path, _) in enumerate(leaves) for _ in path]).long()
    return to_padded(credit_T, rows, len(leaves), max(len(path) for path, _ in leaves))


def _credited(call: PaddedCall, names: Names) -> tuple[list[tuple[Path, float]], Tensor]:
    """Returns a tree's leaves, and the credit of the edges on the way to each, end to end."""
    if not names.credits_edges:
        raise UserError(f"{call}: the recipe credits no edges of a tree")
    check_value(call.tensors["tree"], "tree")
    leaves = list(_leaves_of(call.tensors["tree"]))
    chains = Chains(lambda part, number: torch.Generator())
    batch = chains.write("reward", names.run_by("rewards"), _batch_of(leaves))
    return leaves, batch["credit_T"]


def _leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, float]]:
    """Yields each leaf's score with the branches that lead to it. Raises UserError."""
    if isinstance(tree, bool) or not isinstance(tree, int | float | list | tuple):
        raise UserError(f"tree must be nested lists of scores, there is a {type(tree).__name__}")
    if isinstance(tree, int | float):
        yield path, float(tree)
        return
    if not tree or len(path) >= DEEPEST:
        raise UserError(f"tree has a node without children, or more than {DEEPEST} levels")
    for branch, child in enumerate(tree):
        yield from _leaves_of(child, (*path, branch))


def _batch_of(leaves: Sequence[tuple[Path, float]]) -> Batch:
    """Makes one rollout of each leaf, with a turn of one token for each edge on the way to it."""
    nodes = sorted({path[:depth] for path, _ in leaves for depth in range(len(path) + 1)})
    key = {node: number for number, node in enumerate(nodes)}
    edges = [(row, path[:depth]) for row, (path, _) in enumerate(leaves)
             for depth in range(len(path))]  # fmt: skip
    num = len(leaves)
    score_B = torch.tensor([score for _, score in leaves], dtype=torch.float64)
    scored_B = ~score_B.isnan()
    zero_B = torch.zeros(num, dtype=torch.int64)
    return Batch({
        "turn_T": torch.arange(len(edges)), "mask_T": torch.ones(len(edges), dtype=torch.bool),
        "rollout_K": torch.tensor([row for row, _ in edges], dtype=torch.int64),
        "index_K": torch.tensor([len(node) for _, node in edges], dtype=torch.int64),
        "state_K": torch.tensor([key[node] for _, node in edges], dtype=torch.int64),
        "group_B": zero_B, "uid_P": zero_B[:1], "draw_P": zero_B[:1],
        "reward_B": score_B.nan_to_num(), "outcome_B": score_B.nan_to_num(), "scored_B": scored_B,
    })  # fmt: skip


def _by_level(leaves: Sequence[tuple[Path, float]], credit_T: Tensor) -> list[Tensor]:
    """Returns the credit of every edge: one tensor a level, edges in the tree's order."""
    found: dict[Path, float] = {}
    numbers = iter(credit_T.tolist())
    for path, _ in leaves:
        for depth in range(len(path)):
            number = next(numbers)
            found.setdefault(path[: depth + 1], number)
    levels: list[list[float]] = [[] for _ in range(max(map(len, found), default=0))]
    for path in sorted(found):
        levels[len(path) - 1].append(found[path])
    return [torch.tensor(level, dtype=torch.float64) for level in levels]
