"""Padded tensors under their public names to one flat batch of a recipe's stage, and back."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop import segments
from strop._padded_compose import compose
from strop._padded_given import check_call, mask_of, of_dtype
from strop._padded_names import ANSWERED, CALLS, CREDITING, Names
from strop._padded_turns import Layout, layout_of
from strop.algorithm import Algorithm
from strop.batch import Batch, level_of
from strop.chains import Chains
from strop.columns import has_gradient
from strop.errors import UserError
from strop.schedule import Schedule


@dataclass(frozen=True)
class Door:
    """One call: the composed algorithm with its names, and the batch."""

    batch: Batch
    seed: int
    layout: Layout
    names: Names
    state: Mapping[str, Any]

    @property
    def algorithm(self) -> Algorithm:
        return self.names.algorithm

    def back(self, values_T: Tensor) -> Tensor:
        """Token values in the shape of what was given."""
        return self.layout.back(self.batch, values_T)

    def rng(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def chains(self) -> Chains:
        """Runs this call's parts: each draws from the same seed, with the state that was given."""
        return Chains(lambda name, number: self.rng(), state=dict(self.state))


def open_door(
    call: str,
    name: str,
    params: Mapping[str, Any] | None,
    seed: int,
    mask_BT: Tensor | None,
    given: Mapping[str, Any],
    denominator_BT: Tensor | None = None,
    state: Mapping[str, Any] | None = None,
    which: str = "",
    without: Collection[str] = (),
) -> Door:
    """The door of a call; `without`: labels of advantage parts in whose place factors are given."""
    params = {} if params is None else params
    state = {} if state is None else state
    check_call(name, params, seed, state)
    names, given = compose(name, params, {k: v for k, v in given.items() if v is not None})
    if "mask" in given:
        if mask_BT is not None:
            raise UserError("the mask is given twice: leave it out where steps are given whole")
        mask_BT = given.pop("mask")
    names = names.with_knobs(state.get("knobs", {}))
    names = dataclasses.replace(names, which=which) if which else names
    names = names.answered(given) if call in ANSWERED else names.without(without)
    if call == "advantages" and "advantages_seq" in given:
        names = names.begun()
        given["rewards"] = given.pop("advantages_seq")
    if call == "policy_loss" and "values" not in given:
        names, given, mask_BT = _without_policy(names.without_critic, given, mask_BT)
    names.refuse(call, name, given)
    given = {key: of_dtype(key, value, names.dtype(key)) for key, value in given.items()}
    layout, given = layout_of(mask_of("mask", mask_BT), given)
    gradient_BT, counts_BT = layout.mask_BT, mask_of("denominator_mask", denominator_BT)
    counts_BT = gradient_BT if counts_BT is None else counts_BT
    if counts_BT.shape != gradient_BT.shape:
        raise UserError(f"denominator_mask must be {list(gradient_BT.shape)} like the mask")
    columns: dict[str, Tensor] = {"gradient_T": gradient_BT, "denominator_T": counts_BT}
    columns["max_length"] = torch.tensor(gradient_BT.shape[1], device=gradient_BT.device)
    for key, value in given.items():
        columns |= _columns(key, value, layout, names, call)
    reads = names.reads(call)
    batch = _with_turn_rewards(layout.batch(columns, gradient_BT | counts_BT), reads)
    batch = _with_outcome(batch) if call in CREDITING else batch
    if "groups" in given:
        batch = batch.set(uid_P=given["groups"].unique().to(batch["uid_P"].device))
    if "scored_B" in reads and "scored_B" not in batch:
        batch = batch.set(scored_B=torch.ones_like(batch["group_B"], dtype=torch.bool))
    batch = _with_advantage_B(call, batch) if "advantage_B" in reads else batch
    stages = (CALLS[call][0], *(("control",) if call == "next_state" else ()))
    algorithm = at_step(names.algorithm, stages, name, batch)
    return Door(batch, seed, layout, dataclasses.replace(names, algorithm=algorithm), state)


def _without_policy(
    names: Names, given: dict[str, Any], mask_BT: Any
) -> tuple[Names, dict[str, Any], Any]:
    """Names, tensors and mask where only terms beside the policy's are fed; `kept` narrows it."""
    rest = {key: value for key, value in given.items() if key != "kept"}
    fed, rest = names.fed(rest)
    if "kept" not in given:
        return fed, rest, mask_BT
    if fed is names:
        raise UserError("kept is of a bonus by itself; a whole loss takes the mask")
    kept_BT, mask_BT = mask_of("kept", given["kept"]), mask_of("mask", mask_BT)
    if kept_BT is None or mask_BT is None or kept_BT.shape != mask_BT.shape:
        raise UserError("kept must be [B, T] like the mask")
    return fed, rest, mask_BT & kept_BT.to(mask_BT.device)


def _with_turn_rewards(batch: Batch, read: Mapping[str, bool]) -> Batch:
    """The batch with a reward of each turn where one is read and only its tokens' are given."""
    if "reward_K" not in read or "reward_K" in batch or "reward_T" not in batch:
        return batch
    per_turn = (batch["reward_T"], batch["turn_T"], batch.size("K"), batch["mask_T"])
    return batch.set(reward_K=segments.total(*per_turn))


def _with_outcome(batch: Batch) -> Batch:
    """The batch with rewards; where only turns, tokens or components are given, their sum."""
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
    """The batch columns that one tensor given as `key` fills."""
    mask_BT = layout.mask_BT
    column = value.to(mask_BT.device)
    filled = names.filled(key, call, column.dim())
    level, where = level_of(filled[0]), dict(names.known[filled[0]].where)
    whole_row = key in names.own and filled[0].endswith("_T") and column.dim() == 1
    if whole_row or (key in ("advantages", *where) and column.dim() == 1):
        level = "B"
    axes = layout.axes(level) + filled[0].endswith(("_TV", "_BM"))
    wanted = layout.shape(level)
    if column.dim() != axes or column.shape[: len(wanted)] != wanted:
        raise UserError(
            f"{key} must be {list(wanted)} to fit the mask {list(mask_BT.shape)}; it is "
            f"{list(column.shape)}"
        )
    if key == "rewards":
        found = _rewards(column)
        # elsewhere advantages are given, and rewards do not stand in for them
        return found if call in CREDITING else {n: found[n] for n in found if n != "advantage_B"}
    if key == "groups":
        return {"group_B": torch.unique(column, return_inverse=True)[1]}
    if key == "advantages":
        column = column.detach()
        if column.dim() == 2:
            return {"advantage_T": column}
        return {"advantage_T": column[:, None].expand(mask_BT.shape), "advantage_B": column}
    if key in where:
        column = column if column.dim() == 2 else column[:, None].expand_as(mask_BT)
        return {filled[0]: torch.where(column, where[key], 0)}
    if whole_row:  # a word of the recipe's own: one number for all tokens of the row
        column = column[:, None].expand(mask_BT.shape)
    if filled[0].endswith("_TV"):
        inside = mask_BT.bool()[..., None]
        column = torch.log_softmax(torch.where(inside, column, column.new_zeros(())), dim=-1)
    return {name: column if has_gradient(name) else column.detach() for name in filled}


def _rewards(reward_B: Tensor) -> dict[str, Tensor]:
    reward_B = reward_B.detach()
    scored_B = ~reward_B.isnan()
    reward_B = torch.where(scored_B, reward_B, 0)
    names = ("reward_B", "outcome_B", "advantage_B")
    return {"scored_B": scored_B, **dict.fromkeys(names, reward_B)}


def _with_advantage_B(call: str, batch: Batch) -> Batch:
    """The batch with one advantage a rollout, also where [B, T] was given."""
    if "advantage_B" in batch:
        return batch
    arguments = (batch["advantage_T"], batch["rollout_T"], batch.size("B"), batch["mask_T"])
    high_B = segments.extreme(*arguments, largest=True)
    if bool((segments.extreme(*arguments, largest=False) != high_B).any()):
        raise UserError(f"{call} reads one advantage a rollout: give advantages as [B]")
    return batch.set(advantage_B=high_B)


def at_step(algorithm: Algorithm, stages: tuple[str, ...], name: str, batch: Batch) -> Algorithm:
    """The algorithm with its schedules replaced by their numbers at the given step."""
    if "step" in batch and "num_steps" in batch:
        return algorithm.at_step(int(batch["step"]), int(batch["num_steps"]))
    for path, value in algorithm.paths().items():
        if path.split(".")[0] in stages and isinstance(value, Schedule):
            raise UserError(
                f"recipe {name}: {path} is a schedule; give step and total_steps in params"
            )
    return algorithm
