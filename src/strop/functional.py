"""The padded front door: recipes as functions of padded tensors, for other trainers and checks.

    advantages("grpo", rewards=r, groups=g, mask=m, params={"eps": 1e-4})            -> [B, T]
    gradient, denominator = selection("entrocraft", advantages=a, groups=g, mask=m,
                                      entropy=h, params={"step": 3, "total_steps": 100})
    loss, metrics = policy_loss("cispo", logp=lp, logp_old=lo, advantages=a, mask=m)
    token_weights("gspo", logp=lp, logp_old=lo, advantages=a, mask=m)                -> [B, T]
    state = next_state("mssr", rewards=r, groups=g, mask=m, entropy=h)  # of the next step's calls

Token tensors are [B, T], rollout tensors [B], turn tensors [B, K]; prompt tokens may be there with
mask 0, and values outside the mask never matter, NaN included. Gradient flows through `logp` (and
`entropy`, `mean_logp`, `values`, `logits` where a recipe reads them) by ordinary autograd. `params`
are the recipe's parameters, TRL's and verl's names for them too; `step` and `total_steps` in them
resolve schedules. Calls of a recipe in phases are those of its last one. `inputs(name, call)` says
which tensors a call takes. Raises UserError for a tensor or parameter that the recipe does not
know, for a missing tensor, by the name that it has here, and for shapes that do not fit.

The same composition of parts runs here and in training: the tensors become one flat batch, the
stage runs, the result is padded again.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from strop import kernel
from strop._padded import Door, open_door
from strop._padded_asked import TEXTS, begun_state, services_for, with_texts
from strop._padded_chains import carried
from strop._padded_compose import (
    compose,
    in_one_group,
    names_of,
    whole_call_names,
    words_called,
)
from strop._padded_factors import known_factors
from strop._padded_given import check_call, of_dtype
from strop._padded_labels import labelled
from strop._padded_names import CALLS
from strop._padded_pairs import pairs_as_rows
from strop._padded_plain import (
    kl_estimators,
    loss_aggregation,
    nucleus_entropy,
    plausible_logp,
    tree_edges,
    tree_rows,
    value_loss_clip,
)
from strop._padded_state import learnt, told
from strop._padded_steps import SEQ, after_series, from_rollouts, over_steps, step_rows
from strop._padded_tournament import PAIR_SCORES, check_table, judged
from strop._padded_turns import TurnsInRows
from strop.errors import UserError

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
    """Rewards [B] that a recipe makes of those that the reward functions gave; NaN: no score.

    rewards: [B], as the reward functions gave them. A recipe with a tournament takes `pair_scores`
    [B, B] in their place: what row i scores in its match with row j, NaN where a judgement failed.
    What a part would ask reward functions or texts for may be given in its place (`speedup`).
    Raises UserError for a recipe whose rewards depend on texts or on anything else of a run.
    """
    given = {"rewards": rewards, "groups": groups, **columns}
    judge, given = judged(given)
    if mask is None and given["groups"] is None and rewards is not None:
        mask = torch.ones(len(of_dtype("rewards", rewards, "float").flatten()), 1)
    door = open_door("rewards", name, params, seed, mask, given, state=state)
    chains, batch = door.chains(), door.batch
    uses = door.names.run_by("rewards")
    check_table(name, door.algorithm, judge, batch.size("B"))
    chains.services = judge.services() if judge else services_for("rewards", name, uses, batch)
    batch = chains.write("reward", uses, batch.set(row_B=batch["index_B"]))
    reward_B = torch.where(batch["scored_B"], batch["reward_B"], torch.nan)
    return door.layout.back_B(batch, reward_B)


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

    rewards: [B]; NaN marks a rollout without a score, which takes part in nothing. groups: [B] any
    ints, ragged, in any order; needed where a part compares rollouts. mask: without it the result
    is one advantage a rollout, [B]. state: of the steps before (`next_state`).

    Recipes that look at turns take `turn_ids` [B, T] with `turn_rewards` [B, K], or rows that are
    turns: `trajectories` [R], `turn_index` [R] with `turn_rewards` [R] and `mask` [R, T]. Without
    a mask the result is one advantage a turn, in the shape of `turn_rewards`. Without `rewards` a
    rollout's is the sum of its turns'. `advantages_seq` [B] in place of rewards are advantages of
    rollouts: what is left of the chain is their credit. `tree` (see `tree_edges`) alone gives a row
    a leaf, a column a level. `steps` [B] names the training step of each row, for what is tracked.
    """
    given = {"rewards": rewards, "groups": groups, **columns}
    names = names_of(name, params, seed, state)
    if given.get("tree") is not None:
        return tree_rows(name, names, mask, given)
    if names.tracks and given.get("steps") is not None:
        how: dict[str, Any] = {"params": params, "seed": seed}
        credit, learn = partial(advantages, name, **how), partial(next_state, name, **how)
        return over_steps(credit, learn, mask, given, state)
    given, known = known_factors(words_called(name), given)
    door = _scored("advantages", name, params, seed, mask, given, state, without=known.parts)
    chains = door.chains()
    batch = chains.write("advantage", door.names.run_by("advantages"), door.batch)
    advantage_BT = known.times(door.back(carried(door.algorithm, chains, batch)))
    one_a_row = mask is None and not isinstance(door.layout, TurnsInRows)
    return advantage_BT.squeeze(1) if one_a_row else advantage_BT


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
    """Returns that a recipe's advantage chain goes by: of tokens [B, T], or of turns.

    Those of tokens are what a critic should have said, before any whitening; those of turns come
    in the shape of `turn_rewards`. which: of several, "return_value_T"; default the last that the
    chain writes. Arguments as in `advantages`. Raises UserError for a recipe without returns.
    """
    given = {"rewards": rewards, "groups": groups, **columns}
    written = names_of(name, params, seed, state).returns()
    if not written or (which and which not in written):
        known = f"it has {', '.join(written)}" if written else "it has none"
        raise UserError(f"returns({name!r}): no {which or 'returns'}; {known}")
    door = _scored("returns", name, params, seed, mask, given, state, which=which)
    found = which or written[-1]
    column = door.chains().write("advantage", door.names.run_by("returns"), door.batch)[found]
    return door.back(column) if found.endswith("_T") else door.layout.back_K(door.batch, column)


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
    """What a recipe carries to its next step: give it to that step's calls as `state`.

    The state of every part that keeps one, by its path ("advantage.subtract_tracked_success"), and
    under "knobs" the options that its controls have set. state: that of the step before; none
    before the first. Tensors as in `advantages`, with those that trackers learn from; `texts` [B],
    a list of prompts, where one learns from these; where a reward part learns, `rewards` are those
    of the reward functions. Without any of them the controls go on by `metrics` alone, such as
    {"entropy": 0.3}. Raises UserError for a recipe whose parts learn what a run alone has.
    """
    metrics, params = ({} if each is None else each for each in (metrics, params))
    check_call(name, params, seed, state)
    names, numbers = compose(name, params, {})
    given = {"rewards": rewards, "groups": groups, **columns}
    has_texts = given.get(TEXTS) is not None
    begun = begun_state(name, names.algorithm, {} if state is None else state, has_texts)
    if mask is None and all(value is None for value in given.values()):
        return told(name, names, numbers, begun, metrics)
    if names.tracks and given.get("steps") is not None:
        for _, own in step_rows(mask, given):
            begun = next_state(name, state=begun, metrics=metrics, params=params, seed=seed, **own)
        return begun
    if has_texts:
        given, begun = with_texts("next_state", name, names, given, begun)
    door = open_door("next_state", name, params, seed, mask, given, state=begun)
    return learnt(name, door, metrics)


def _scored(
    call: str,
    name: str,
    params: Any,
    seed: int,
    mask: Any,
    given: dict[str, Any],
    state: Any,
    **how: Any,
) -> Door:
    """The door of a call that begins with rewards, after the steps that a series tells of."""
    given = in_one_group(name, given)
    if given.get(TEXTS) is not None:
        given, state = with_texts(call, name, names_of(name, params, seed, state), given, state)
    if given.get(PAIR_SCORES) is not None:
        scores, groups = given.pop(PAIR_SCORES), given["groups"]
        found = rewards(
            name, groups=groups, mask=mask, params=params, seed=seed, **{PAIR_SCORES: scores}
        )
        given |= {"rewards": found, "groups": torch.zeros(len(found)) if groups is None else groups}
    given, state = after_series(next_state, name, params, seed, mask, given, state)
    return open_door(call, name, params, seed, mask, given, state=state, **how)


def selection(
    name: str,
    *,
    advantages: Tensor,
    groups: Tensor | None = None,
    mask: Tensor,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> tuple[Tensor, Tensor]:
    """Which tokens keep their gradient and which count in averages, two bool masks [B, T].

    A recipe without selection parts gives the mask twice. advantages: [B, T], or [B] where a part
    reads one advantage a rollout.
    """
    given = {"advantages": advantages, "groups": groups, **columns}
    door = open_door("selection", name, params, seed, mask, given, state=state)
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
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> tuple[Tensor, dict[str, float]]:
    """The loss [] of a recipe's terms, differentiable, and its metrics.

    mask: tokens with gradient; denominator_mask: tokens that count in averages, default the same.
    advantages: [B, T] or [B]. Without `groups` every row is a group of its own, unless a part
    reads groups. Metrics are the terms' own (means over their tokens) and `loss/<term>`.

    Methods on pairs take `logp_chosen`, `logp_rejected`, `mask_chosen`, `mask_rejected` and, where
    they have a reference, `logp_ref_chosen` and `logp_ref_rejected` [N, T] in place of rows.
    `logits` with `labels` [B, T] (-100: none) stand for `logp`, `entropy` and the mask. Where the
    policy's own term lacks what it needs, the loss is that of the penalties for which all is there:
    a bonus or a divergence by itself, over `kept` [B, T] of the mask where it is given.
    `advantages_seq` [B] are advantages of rollouts: they go through the rest of the advantage chain
    and the selection first. `accumulation` in `params`: of how many micro-batches of an update this
    is one; the loss is divided by it.
    """
    given = pairs_as_rows({"logp": logp, "mask": mask, "advantages": advantages, **columns})
    if "labels" in given:
        given = labelled(given, inputs(name, "policy_loss", params))
    mask = _needed(name, given.pop("mask"), "mask")
    if given.get(SEQ) is not None:
        how: dict[str, Any] = {"params": params, "seed": seed, "state": state}
        takes = {call: inputs(name, call, params) for call in _UP_TO_THE_LOSS}
        credit, choose = partial(_credit, name, **how), partial(selection, name, **how)
        given, mask, counted = from_rollouts(credit, choose, takes, mask, given)
        denominator_mask = counted if denominator_mask is None else denominator_mask
    given, state = after_series(next_state, name, params, seed, mask, given, state)
    door = open_door("policy_loss", name, params, seed, mask, given, denominator_mask, state)
    terms = door.algorithm.terms
    view = kernel.View(kernel.prepare(terms, door.batch, door.rng()))
    tally = kernel.Tally()
    losses = [kernel.term_loss(term, view, tally, rng=door.rng()) for term in terms]
    if not losses:
        raise UserError(f"recipe {name} has no loss terms with these parameters")
    num = door.names.num_parts
    each = {f"loss/{term}": float(loss) / num for term, loss in tally.losses.items()}
    return torch.stack(losses).sum() / num, {**tally.means(), **each}


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
    if "labels" in given:
        given = labelled(given, inputs(name, "policy_loss", params))
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
    """What the parts of one term give for each token, all [B, T] and without gradient.

    kept, counted: bool, the tokens that the term gives a gradient, and those in its averages.
    weights: importance weights that its objective is multiplied by. share: a token's part of the
    average, without them. objective, log_ratio: of the token. Beside them the term's metrics that
    are of tokens ("opsm/dropped_mean" is 1 where an answer was left out). Arguments as in
    `policy_loss`; term: the name of another one, "kl" or "entropy".
    """
    given = {"logp": logp, "advantages": advantages, **columns}
    mask = _needed(name, mask, "mask")
    door = open_door("policy_loss", name, params, seed, mask, given, denominator_mask, state)
    terms = {one.name: one for one in door.algorithm.terms}
    if not isinstance(term, str) or term not in terms:
        raise UserError(f"recipe {name} has no term {term!r}; it has {', '.join(terms) or 'none'}")
    found = kernel.token_parts(terms[term], door.batch, door.rng())
    return {key: door.back(column.detach()) for key, column in found.items()}


def _needed(name: str, tensor: Tensor | None, which: str) -> Tensor:
    if tensor is None:
        raise UserError(f"policy_loss({name!r}) needs {which}")
    return tensor


def inputs(name: str, call: str, params: Mapping[str, Any] | None = None) -> dict[str, bool]:
    """The tensors that `advantages`, `selection` or `policy_loss` takes, and whether each must be.

    Of names for the same column (`logp_old`, `logp_prox`) all are listed; one of them is enough.
    """
    if call not in [*CALLS]:
        raise UserError(f"no call {call!r}; there are {', '.join(CALLS)}")
    names = names_of(name, params)
    return names.inputs(call) | dict.fromkeys(whole_call_names(name, names, call), False)


_credit = advantages  # where a parameter has that name
_UP_TO_THE_LOSS = ("advantages", "selection", "policy_loss")
