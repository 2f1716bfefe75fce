"""Recipes as functions of padded tensors, for other trainers and checks.

    advantages("grpo", rewards=r, groups=g, mask=m, params={"eps": 1e-4})            -> [B, T]
    gradient, denominator = selection("entrocraft", advantages=a, groups=g, mask=m,
                                      entropy=h, params={"step": 3, "total_steps": 100})
    loss, metrics = policy_loss("cispo", logp=lp, logp_old=lo, advantages=a, mask=m)
    token_weights("gspo", logp=lp, logp_old=lo, advantages=a, mask=m)                -> [B, T]
    state = next_state("mssr", rewards=r, groups=g, mask=m, entropy=h)  # of the next step's calls

Token tensors are [B, T], rollout tensors [B], turn tensors [B, K]; prompt tokens may be included
with mask 0, and values outside the mask never matter, NaN included. Gradient flows through `logp`
(and `entropy`, `mean_logp`, `values`, `logits` where a recipe reads them) by ordinary autograd.

The recipe is a name or a line such as "grpo(beta=0.04)". Keywords that several functions share:

- rewards: [B]; NaN marks a rollout without a score, which all parts ignore.
- groups: [B] any ints, ragged, in any order; needed where a part compares rollouts.
- mask: [B, T], 1 for tokens of the policy, 0 for all others; denominator_mask: tokens that count in
  averages, by default the same.
- logp: [B, T] of the current policy; advantages: [B, T], or [B] with one a rollout.
- params: the recipe's parameters, also by TRL's and verl's names, and options of its stages
  (`loss.dual_clip_c`); `step` and `total_steps` in them resolve schedules.
- seed: of the parts' random draws.
- state: the value that `next_state` returned for the previous step; none for the first step.
- further tensors: those that the recipe reads. `inputs(name, call)` lists them.

For a recipe in phases the functions use its last phase. Every function raises UserError for a
tensor or parameter that the recipe does not know, for a missing tensor, by the name that it has
here, and for shapes that do not fit.

The same composition of parts runs here and in training: the tensors become one flat batch, the
stage runs, the result is padded again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from strop.padded import state as states
from strop.padded.compose import further_inputs, in_one_group, names_of, recipe_of, series_words
from strop.padded.given import PaddedCall, of_dtype
from strop.padded.names import CALLS, PAIR_SCORES
from strop.padded.plain import (
    kl_estimators,
    loss_aggregation,
    nucleus_entropy,
    plausible_logp,
    tree_edges,
    tree_rows,
    value_loss_clip,
)
from strop.padded.rows import PAIRS, known_factors, labelled, pairs_as_rows
from strop.padded.services import TEXTS, check_table, judge_of, services_for, with_texts
from strop.padded.stages import Stage, carried, stage_of
from strop.padded.turns import TurnsInRows
from strop.support.errors import UserError
from strop.training.learner import kernel

__all__ = [
    "UserError",
    "advantages",
    "inputs",
    "kl_estimators",
    "loss_aggregation",
    "loss_parts",
    "next_state",
    "nucleus_entropy",
    "plausible_logp",
    "policy_loss",
    "returns",
    "rewards",
    "selection",
    "token_weights",
    "tree_edges",
    "value_loss_clip",
]
SEQ = "advantages_seq"  # advantages of rollouts, for which the rest of the chain must still run


def rewards(
    name: str,
    *,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Tensor:
    """Rewards [B] that a recipe computes from those of the reward functions; NaN: no score.

    A recipe with a tournament takes `pair_scores` [B, B] in place of rewards: the score of row i in
    its match with row j, NaN where a judgement failed. Columns that a part would compute with
    reward functions or texts may be given instead (`speedup`). Raises UserError for a recipe whose
    rewards depend on texts or on anything else of a run.
    """
    tensors = {"rewards": rewards, "groups": groups, **columns}
    return _rewards(PaddedCall("rewards", name, tensors, mask, params, seed, state))


def advantages(
    name: str,
    *,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Tensor:
    """Advantages [B, T] of a recipe's advantage chain, 0 outside the mask.

    Without a mask the result is one advantage a rollout, [B].

    Recipes that look at turns take `turn_ids` [B, T] with `turn_rewards` [B, K], or rows that are
    turns: `trajectories` [R], `turn_index` [R] with `turn_rewards` [R] and `mask` [R, T]. Without
    a mask the result is one advantage a turn, in the shape of `turn_rewards`. Without `rewards` a
    rollout's reward is the sum of its turns' rewards. `advantages_seq` [B] in place of rewards are
    advantages of rollouts, of which the rest of the chain computes the credit. `tree` alone (see
    `tree_edges`) gives one row a leaf, one column a level. `steps` [B] names the training step of
    each row, for parts that track something over steps.
    """
    tensors = {"rewards": rewards, "groups": groups, **columns}
    return _advantages(PaddedCall("advantages", name, tensors, mask, params, seed, state))


def returns(
    name: str,
    *,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    which: str = "",
    **columns: Any,
) -> Tensor:
    """Returns that a recipe's advantage chain computes: of tokens [B, T], or of turns.

    Returns of tokens are a critic's targets, before any whitening; returns of turns have the shape
    of `turn_rewards`. which: one of several, "return_value_T"; by default the last that the chain
    writes. Tensors as in `advantages`. Raises UserError for a recipe without returns.
    """
    tensors = {"rewards": rewards, "groups": groups, **columns}
    call = PaddedCall("returns", name, tensors, mask, params, seed, state, which=which)
    written = names_of(call.recipe, call.params).returns()
    if not written or (which and which not in written):
        known = f"it has {', '.join(written)}" if written else "it has none"
        raise UserError(f"{call}: no {which or 'returns'}; {known}")
    stage = _scored(call)
    found = which or written[-1]
    column = stage.chains().write("advantage", stage.names.run_by("returns"), stage.batch)[found]
    return stage.back(column) if found.endswith("_T") else stage.layout.back_K(stage.batch, column)


def next_state(
    name: str,
    *,
    state: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
    rewards: Tensor | None = None,
    groups: Tensor | None = None,
    mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    **columns: Any,
) -> dict[str, Any]:
    """The state that a recipe carries to its next step: pass it to that step's calls as `state`.

    It has the state of every part that keeps one, by its path
    ("advantage.subtract_tracked_success"), and under "knobs" the options that its controls have
    set. Tensors as in `advantages`, with those that trackers learn from; `texts` [B], a list of
    prompts, where a part learns from texts; where a reward part learns, `rewards` are those of the
    reward functions. Without any tensors only the controls move, by `metrics` such as {"entropy":
    0.3}. Raises UserError for a recipe whose parts learn from data that only a run has.
    """
    tensors = {"rewards": rewards, "groups": groups, **columns}
    call = PaddedCall("next_state", name, tensors, mask, params, seed, state)
    return states.next_state(call, {} if metrics is None else metrics)


def selection(
    name: str,
    *,
    advantages: Tensor | None = None,
    groups: Tensor | None = None,
    mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> tuple[Tensor, Tensor]:
    """Which tokens keep their gradient and which count in averages, two bool masks [B, T].

    A recipe without selection parts returns the mask twice. Advantages are [B] where a part reads
    one advantage a rollout.
    """
    tensors = {"advantages": advantages, "groups": groups, **columns}
    call = PaddedCall("selection", name, tensors, mask, params, seed, state)
    _needed(call, mask, "mask")
    _needed(call, advantages, "advantages")
    return _selection(call)


def policy_loss(
    name: str,
    *,
    logp: Tensor | None = None,
    advantages: Tensor | None = None,
    mask: Tensor | None = None,
    denominator_mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> tuple[Tensor, dict[str, float]]:
    """The loss [] of a recipe's terms, differentiable, and its metrics.

    The mask marks the tokens with gradient. Without `groups` every row is its own group, unless
    a part reads groups. Metrics are the terms' own (means over their tokens) and `loss/<term>`.

    Methods on pairs take `logp_chosen`, `logp_rejected`, `mask_chosen`, `mask_rejected` and, where
    they have a reference, `logp_ref_chosen` and `logp_ref_rejected` [N, T] in place of rows.
    `logits` with `labels` [B, T] (-100: none) replace `logp`, `entropy` and the mask. Where tensors
    of the policy's own term are missing, the loss is that of the penalties whose tensors are given:
    a bonus or a divergence by itself, over `kept` [B, T] of the mask where it is given.
    `advantages_seq` [B] are advantages of rollouts: they first go through the rest of the advantage
    chain and the selection. `accumulation` in `params`: the number of micro-batches of the update;
    the loss is divided by it.
    """
    tensors = {"logp": logp, "advantages": advantages, **columns}
    call = PaddedCall("policy_loss", name, tensors, mask, params, seed, state, denominator_mask)
    return _loss(_of_rows(call))


def token_weights(
    name: str,
    *,
    logp: Tensor | None = None,
    advantages: Tensor | None = None,
    mask: Tensor | None = None,
    denominator_mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Tensor:
    """c_t = -dL/dlogp_t [B, T]: how hard the loss pushes each sampled token up.

    The token's share of the average is included. Tensors as in `policy_loss`; for pairs the result
    is [2 N, T], the chosen answers first.
    """
    tensors = {"logp": logp, "advantages": advantages, **columns}
    call = PaddedCall("policy_loss", name, tensors, mask, params, seed, state, denominator_mask)
    call = _of_rows(call)
    logp = of_dtype("logp", _needed(call, call.tensors["logp"], "logp"), "float")
    leaf_BT = logp.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss, _ = _loss(call.having(logp=leaf_BT))
        if not loss.requires_grad:
            return torch.zeros_like(leaf_BT)
        (grad_BT,) = torch.autograd.grad(loss, leaf_BT, allow_unused=True, materialize_grads=True)
    return -grad_BT


def loss_parts(
    name: str,
    *,
    logp: Tensor | None = None,
    advantages: Tensor | None = None,
    mask: Tensor | None = None,
    denominator_mask: Tensor | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    term: str = "policy",
    **columns: Any,
) -> dict[str, Tensor]:
    """The values that the parts of one term compute for each token, all [B, T], without gradient.

    kept, counted: bool, the tokens that the term gives a gradient, and those in its averages.
    weights: importance weights that multiply its objective. share: a token's share of the average,
    without weights. objective, log_ratio: of the token. The term's metrics of tokens are added
    ("opsm/dropped_mean" is 1 where an answer was left out). Tensors as in `policy_loss`, but only
    in rows; term: "policy", or the name of another term, "kl" or "entropy".
    """
    tensors = {"logp": logp, "advantages": advantages, **columns}
    call = PaddedCall("policy_loss", name, tensors, mask, params, seed, state, denominator_mask)
    _needed(call, mask, "mask")
    stage = stage_of(call)
    terms = {one.name: one for one in stage.algorithm.terms}
    if not isinstance(term, str) or term not in terms:
        raise UserError(f"recipe {name} has no term {term!r}; it has {', '.join(terms) or 'none'}")
    found = kernel.token_parts(terms[term], stage.batch, stage.rng())
    return {key: stage.back(column.detach()) for key, column in found.items()}


def inputs(name: str, call: str, params: Mapping[str, Any] | None = None) -> dict[str, bool]:
    """The tensors that a function such as `advantages` takes, and whether each must be given.

    All names of the same column are listed (`logp_old`, `logp_prox`); one of them is enough.
    """
    if call not in [*CALLS]:
        raise UserError(f"no call {call!r}; there are {', '.join(CALLS)}")
    given = PaddedCall(call, name, {}, params=params)
    names = names_of(given.recipe, given.params)
    return names.inputs(call) | dict.fromkeys(further_inputs(given.recipe, names, call), False)


def _rewards(call: PaddedCall) -> Tensor:
    judge, rated = judge_of(call)
    if call.mask is None and not rated.has("groups") and call.has("rewards"):
        num = of_dtype("rewards", call.tensors["rewards"], "float").numel()
        rated = replace(rated, mask=torch.ones(num, 1))
    stage = stage_of(rated)
    chains, batch = stage.chains(), stage.batch
    uses = stage.names.run_by("rewards")
    check_table(call, stage.algorithm, judge, batch.size("B"))
    chains.services = judge.services() if judge else services_for(call, uses, batch)
    batch = chains.write("reward", uses, batch.set(row_B=batch["index_B"]))
    reward_B = torch.where(batch["scored_B"], batch["reward_B"], torch.nan)
    return stage.layout.back_B(batch, reward_B)


def _advantages(call: PaddedCall) -> Tensor:
    names = names_of(call.recipe, call.params)
    if call.has("tree"):
        return tree_rows(call, names)
    if names.tracks and call.has("steps"):
        return states.over_steps(_advantages, call)
    tensors, factors = known_factors(recipe_of(call.recipe).words, call.tensors)
    stage = _scored(replace(call, tensors=tensors, without=factors.parts))
    chains = stage.chains()
    batch = chains.write("advantage", stage.names.run_by("advantages"), stage.batch)
    advantage_BT = factors.times(stage.back(carried(stage.algorithm, chains, batch)))
    one_a_row = call.mask is None and not isinstance(stage.layout, TurnsInRows)
    return advantage_BT.squeeze(1) if one_a_row else advantage_BT


def _scored(call: PaddedCall) -> Stage:
    """The stage of a call that starts with rewards, after the earlier steps of a series."""
    call = in_one_group(call)
    if call.has(TEXTS):
        call = with_texts(call, names_of(call.recipe, call.params))
    if call.has(PAIR_SCORES):
        table = {name: call.tensors.get(name) for name in ("groups", PAIR_SCORES)}
        found = _rewards(
            PaddedCall("rewards", call.recipe, table, call.mask, call.params, call.seed)
        )
        groups = table["groups"] if call.has("groups") else torch.zeros(len(found))
        call = call.but(PAIR_SCORES).having(rewards=found, groups=groups)
    return stage_of(states.after_series(call))


def _selection(call: PaddedCall) -> tuple[Tensor, Tensor]:
    stage = stage_of(call)
    batch = stage.chains().select(stage.algorithm.selection, stage.batch)
    return stage.back(batch["gradient_T"]), stage.back(batch["denominator_T"])


def _of_rows(call: PaddedCall) -> PaddedCall:
    """The call of a loss, with pairs and labels converted to rows."""
    tensors = {**call.tensors, "mask": call.mask}
    if not PAIRS.isdisjoint(tensors):
        tensors = pairs_as_rows(tensors)
    if "labels" in tensors:
        tensors = labelled(tensors, inputs(call.recipe, "policy_loss", call.params))
    return replace(call, mask=tensors.pop("mask"), tensors=tensors)


def _loss(call: PaddedCall) -> tuple[Tensor, dict[str, float]]:
    _needed(call, call.mask, "mask")
    if call.has(SEQ):
        call = _from_rollouts(call)
    if series_words(call.recipe):
        call = states.after_series(call)
    stage = stage_of(call)
    terms = stage.algorithm.terms
    tally = kernel.Tally()
    view = kernel.View(kernel.prepare(terms, stage.batch, stage.rng(), tally))
    losses = [kernel.term_loss(term, view, tally, rng=stage.rng()) for term in terms]
    if not losses:
        raise UserError(f"recipe {call.recipe} has no loss terms with these parameters")
    num = stage.names.num_parts
    each = {f"loss/{term}": float(loss) / num for term, loss in tally.losses.items()}
    return torch.stack(losses).sum() / num, {**tally.means(), **each}


def _from_rollouts(call: PaddedCall) -> PaddedCall:
    """A loss's call with advantages of tokens and two masks in place of rollouts' advantages.

    A tensor is passed to every call that takes it. Raises UserError for advantages of both kinds.
    """
    takes = {
        other: inputs(call.recipe, other, call.params)
        for other in ("advantages", "selection", "policy_loss")
    }
    if call.has("advantages"):
        raise UserError(f"give advantages or {SEQ}, not both")
    rest = call.but(SEQ, "advantages").tensors

    def other(name: str, **beside: Any) -> PaddedCall:
        own = {key: value for key, value in rest.items() if key in takes[name]}
        return replace(call, call=name, tensors={**own, **beside}, denominator_mask=None)

    found = _advantages(other("advantages", **{SEQ: call.tensors[SEQ]}))
    kept, counted = _selection(other("selection", advantages=found))
    elsewhere = {*takes["advantages"], *takes["selection"]} - {*takes["policy_loss"]}
    loss = {name: value for name, value in rest.items() if name not in elsewhere}
    counted = counted if call.denominator_mask is None else call.denominator_mask
    tensors = {**loss, "advantages": found}
    return replace(call, tensors=tensors, mask=kept, denominator_mask=counted)


def _needed(call: PaddedCall, tensor: Tensor | None, which: str) -> Tensor:
    if tensor is None:
        raise UserError(f"{call} needs {which}")
    return tensor
