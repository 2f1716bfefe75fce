"""Makes a flat batch of a call's padded tensors for a recipe's stage, and pads results again."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, level_of
from strop.method.algorithm import Algorithm
from strop.method.chains import Chains
from strop.padded.compose import compose
from strop.padded.given import Layout, PaddedCall, mask_of, of_dtype
from strop.padded.names import ANSWERED, CALLS, CREDITING, STRUCTURE, Names
from strop.padded.turns import layout_of
from strop.support.errors import UserError

REWARDS = ("reward_B", "reward_BM", "reward_K", "reward_T")  # a run refuses infinite ones


@dataclass(frozen=True)
class Stage:
    """The composed algorithm of a call with its names, and the batch that its stage runs on."""

    call: PaddedCall
    batch: Batch
    layout: Layout
    names: Names

    @property
    def algorithm(self) -> Algorithm:
        return self.names.algorithm

    def back(self, values_T: Tensor) -> Tensor:
        """Lays token values out in the shape of the mask."""
        return self.layout.back(self.batch, values_T)

    def rng(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.call.seed)

    def chains(self) -> Chains:
        """Returns the chains that run this call's parts, with its seed and its state."""
        return Chains(lambda name, number: self.rng(), state=dict(self.call.state))


def stage_of(call: PaddedCall) -> Stage:
    """Composes the recipe, checks the tensors, and makes a batch of them.

    Raises UserError for a tensor that the call does not take, that is missing, or that does not
    fit.
    """
    names, tensors, mask_BT = _composed(call)
    names.refuse(call, tensors)
    tensors = {key: of_dtype(key, value, names.dtype(key)) for key, value in tensors.items()}
    layout, tensors = _layout_of(mask_of("mask", mask_BT), tensors)
    if "steps" in tensors and "steps" not in names.fills:
        raise UserError(
            f"{call}: steps are the turns of trajectories: give these, without turn_index, or "
            "leave steps out"
        )
    batch = _batch_of(call, names, layout, tensors)
    stages = (CALLS[call.call][0], *(("control",) if call.call == "next_state" else ()))
    return Stage(call, batch, layout, at_step(names, stages, call.recipe, batch))


def _composed(call: PaddedCall) -> tuple[Names, dict[str, Any], Any]:
    """Returns names with the algorithm to run, tensors under usual names, and the mask."""
    there = {key: value for key, value in call.tensors.items() if value is not None}
    names, tensors = compose(call.recipe, call.params, there)
    mask_BT = call.mask
    if "mask" in tensors:
        if mask_BT is not None:
            raise UserError("the mask is given twice: leave it out where steps are given whole")
        mask_BT = tensors.pop("mask")
    names = names.with_knobs(call.state.get("knobs", {}))
    names = dataclasses.replace(names, which=call.which) if call.which else names
    names = (
        names.without_answered(tensors) if call.call in ANSWERED else names.without(call.without)
    )
    if call.call == "advantages" and "advantages_seq" in tensors:
        names = names.from_rollouts()
        tensors["rewards"] = tensors.pop("advantages_seq")
    if call.call == "policy_loss" and "values" not in tensors:
        return _without_policy(names.without_critic, tensors, mask_BT)
    return names, tensors, mask_BT


def _layout_of(
    mask_BT: Tensor | None, tensors: dict[str, Tensor]
) -> tuple[Layout, dict[str, Tensor]]:
    """Finds the layout of the rows, and the remaining tensors, which are columns."""
    if mask_BT is None or not tensors.keys().isdisjoint(STRUCTURE):
        return layout_of(mask_BT, tensors)
    return Layout(mask_BT), tensors


def _batch_of(
    call: PaddedCall, names: Names, layout: Layout, tensors: Mapping[str, Tensor]
) -> Batch:
    """Makes the flat batch of the tensors, with the columns that follow from others."""
    gradient_BT, counts_BT = layout.mask_BT, mask_of("denominator_mask", call.denominator_mask)
    counts_BT = gradient_BT if counts_BT is None else counts_BT
    if counts_BT.shape != gradient_BT.shape:
        raise UserError(f"denominator_mask must be {list(gradient_BT.shape)} like the mask")
    columns: dict[str, Tensor] = {"gradient_T": gradient_BT, "denominator_T": counts_BT}
    columns["max_length"] = torch.tensor(gradient_BT.shape[1], device=gradient_BT.device)
    given_as = dict[str, str]()
    for key, value in tensors.items():
        found = _columns(key, value, layout, names, call.call)
        if "logp_old_T" in found:
            _check_old(call, key, found["logp_old_T"], gradient_BT)
        given_as |= dict.fromkeys(found, key)
        columns |= found
    reads, batch = names.reads(call.call), layout.batch(columns, gradient_BT | counts_BT)
    for column in REWARDS:
        if column in given_as and bool(batch[column].isinf().any()):
            name = given_as[column]
            raise UserError(f"{call}: {name} must be finite, or NaN where there is no score")
    batch = _with_turn_rewards(batch, reads)
    batch = _with_outcome(batch) if call.call in CREDITING else batch
    if "groups" in tensors:
        batch = batch.set(uid_P=tensors["groups"].unique().to(batch["uid_P"].device))
    if "scored_B" in reads and "scored_B" not in batch:
        batch = batch.set(scored_B=torch.ones_like(batch["group_B"], dtype=torch.bool))
    return _with_advantage_B(call.call, batch) if "advantage_B" in reads else batch


def _check_old(call: PaddedCall, name: str, old_BT: Tensor, mask_BT: Tensor) -> None:
    """Raises UserError for NaN among the old log-probabilities of tokens with gradient: in a run it
    marks tokens that no engine drew, whose ratio is 1.
    """
    wrong_BT = old_BT.isnan() & mask_BT
    if bool(wrong_BT.any()):
        row, token = wrong_BT.nonzero()[0].tolist()
        raise UserError(f"{call}: {name} is NaN at row {row}, token {token}, inside the mask")


def _without_policy(
    names: Names, given: dict[str, Any], mask_BT: Any
) -> tuple[Names, dict[str, Any], Any]:
    """Returns names, tensors and mask of the penalties alone, where no policy term can run.

    `kept` narrows their mask.
    """
    rest = {key: value for key, value in given.items() if key != "kept"}
    fed, rest = names.for_given(rest)
    if "kept" not in given:
        return fed, rest, mask_BT
    if fed is names:
        raise UserError("kept is of a bonus by itself; a whole loss takes the mask")
    kept_BT, mask_BT = mask_of("kept", given["kept"]), mask_of("mask", mask_BT)
    if kept_BT is None or mask_BT is None or kept_BT.shape != mask_BT.shape:
        raise UserError("kept must be [B, T] like the mask")
    return fed, rest, mask_BT & kept_BT.to(mask_BT.device)


def _with_turn_rewards(batch: Batch, read: Mapping[str, bool]) -> Batch:
    """Adds a reward of each turn where one is read and only its tokens' rewards are given."""
    if "reward_K" not in read or "reward_K" in batch or "reward_T" not in batch:
        return batch
    per_turn = (batch["reward_T"], batch["turn_T"], batch.size("K"), batch["mask_T"])
    return batch.set(reward_K=segments.total(*per_turn))


def _with_outcome(batch: Batch) -> Batch:
    """Adds rewards; where only those of turns, tokens or components are given, their sum."""
    if "reward_B" in batch:
        return batch
    if "reward_BM" in batch:
        none_B = batch["reward_BM"].isnan().all(1)
        return batch.set(**_rewards(torch.where(none_B, torch.nan, batch["reward_BM"].nansum(1))))
    if "reward_T" in batch:
        per_token = (batch["reward_T"], batch["rollout_T"], batch.size("B"), batch["mask_T"])
        return batch.set(**_rewards(segments.total(*per_token)))
    total_B = segments.total(batch["reward_K"], batch["rollout_K"], batch.size("B"))
    return batch.set(**_rewards(total_B))


def _columns(key: str, value: Tensor, layout: Layout, names: Names, call: str) -> dict[str, Tensor]:
    """Returns the batch columns that the tensor with the name `key` fills."""
    mask_BT = layout.mask_BT
    column = value.to(mask_BT.device)
    if key == "advantages" and column.shape == (mask_BT.shape[0], 1):  # as TRL's loss has them
        column = column.squeeze(1)
    filled = names.filled(key, call, column.dim())
    level, where = level_of(filled[0]), dict(names.known[filled[0]].where)
    whole_row = key in names.own and filled[0].endswith("_T") and column.dim() == 1
    if whole_row or (key in ("advantages", *where) and column.dim() == 1):
        level = "B"
    axes = layout.axes(level) + filled[0].endswith(("_TV", "_BM"))
    wanted = layout.shape(level)
    if filled == ("reward_weight_BM",) and column.dim() == 1:  # one a reward, for all rollouts
        column = column.expand(*wanted, -1)
    if column.dim() != axes or column.shape[: len(wanted)] != wanted:
        raise UserError(
            f"{key} must be {list(wanted)} to fit the mask {list(mask_BT.shape)}; it is "
            f"{list(column.shape)}"
        )
    if key == "rewards":
        found = _rewards(column)
        # other calls are given advantages, which rewards do not replace
        return found if call in CREDITING else {n: found[n] for n in found if n != "advantage_B"}
    if key == "groups":
        return {"group_B": torch.unique(column, return_inverse=True)[1]}
    if key == "advantages":
        column = column.detach()
        if column.dim() == 2:
            return {"advantage_T": column}
        return {"advantage_T": column[:, None].expand(mask_BT.shape), "advantage_B": column}
    if filled == ("preferred_B",) and call == "policy_loss":
        _check_preferred(key, column)
    if key in where:
        column = column if column.dim() == 2 else column[:, None].expand_as(mask_BT)
        return {filled[0]: torch.where(column, where[key], 0)}
    if whole_row:  # a name of the recipe's own: one number for all tokens of the row
        column = column[:, None].expand(mask_BT.shape)
    if filled[0].endswith("_TV"):
        inside = mask_BT.bool()[..., None]
        column = torch.log_softmax(torch.where(inside, column, column.new_zeros(())), dim=-1)
    return {name: column if name in names.with_gradient else column.detach() for name in filled}


def _check_preferred(name: str, preferred_B: Tensor) -> None:
    """Raises UserError for several answers without a rejected one: without pairs the loss is 0."""
    several = preferred_B.numel() > 1
    if several and bool((preferred_B > 0).any()) and not bool((preferred_B < 0).any()):
        raise UserError(
            f"{name} marks preferred answers and no rejected ones: it is 1 where an answer is "
            "preferred, -1 where it is rejected, and 0 where it is neither"
        )


def _rewards(reward_B: Tensor) -> dict[str, Tensor]:
    reward_B = reward_B.detach()
    scored_B = ~reward_B.isnan()
    reward_B = torch.where(scored_B, reward_B, 0)
    names = ("reward_B", "outcome_B", "advantage_B")
    return {"scored_B": scored_B, **dict.fromkeys(names, reward_B)}


def _with_advantage_B(call: str, batch: Batch) -> Batch:
    """Adds one advantage a rollout, also from advantages [B, T]."""
    if "advantage_B" in batch:
        return batch
    arguments = (batch["advantage_T"], batch["rollout_T"], batch.size("B"), batch["mask_T"])
    high_B = segments.extreme(*arguments, largest=True)
    if bool((segments.extreme(*arguments, largest=False) != high_B).any()):
        raise UserError(f"{call} reads one advantage a rollout: give advantages as [B]")
    return batch.set(advantage_B=high_B)


def at_step(names: Names, stages: tuple[str, ...], name: str, batch: Batch) -> Names:
    """Replaces schedules by their numbers at the given step. Raises UserError without a step."""
    if "step" in batch and "num_steps" in batch:
        algorithm = names.algorithm.at_step(int(batch["step"]), int(batch["num_steps"]))
        return dataclasses.replace(names, algorithm=algorithm)
    for path in names.schedules:
        if path.split(".")[0] in stages:
            raise UserError(
                f"recipe {name}: {path} is a schedule; give step and total_steps in params"
            )
    return names


def carried(algorithm: Algorithm, chains: Chains, batch: Batch) -> Tensor:
    """Multiplies advantages [T] by the plan's factors, after updates with `turn_change_K`."""
    advantage_T: Tensor = batch["advantage_T"]
    if algorithm.plan is None or "turn_change_K" not in batch:
        return advantage_T
    plan = chains.call("plan", algorithm.plan, batch).value
    change_T = batch["turn_change_K"].nan_to_num()[batch["turn_T"]]
    none_T, factor_T = torch.zeros_like(change_T), torch.ones_like(advantage_T)
    update = next(plan, None)
    while update is not None:
        factor_T = torch.where(update.tokens_T, update.factor_T, factor_T)
        changed_T = torch.where(update.tokens_T, change_T, none_T)
        try:
            update = plan.send((batch, {"logp_old_T": none_T, "logp_T": changed_T}))
        except StopIteration:
            update = None
    return advantage_T * factor_T
