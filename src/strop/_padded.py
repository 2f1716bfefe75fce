"""Padded tensors under their public names to one flat batch of a recipe's stage, and back."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strop import catalogue, notation, segments
from strop import part as parts
from strop._padded_turns import Layout, layout_of
from strop.algorithm import Algorithm
from strop.batch import SIZES, Batch, level_of
from strop.chains import Chains
from strop.columns import is_current, is_head
from strop.errors import UserError, nearest
from strop.schedule import Schedule

# Names at this door and the columns of the batch that they fill. A column that is not listed goes
# by its own name without the suffix (`truncated` for `truncated_B`).
COLUMNS: dict[str, tuple[str, ...]] = {
    "rewards": ("reward_B", "outcome_B", "scored_B"),
    "groups": ("group_B", "group_T", "group_K", "uid_P", "draw_P"),
    "advantages": ("advantage_T", "advantage_B"),
    "logp_old": ("logp_old_T",),
    "logp_prox": ("logp_old_T",),
    "logp_start": ("logp_old_T",),
    "logp_beh": ("logp_behavior_T",),
    "logp_roll": ("logp_behavior_T", "logp_sampler_T"),
    "entropy": ("entropy_T", "entropy_old_T"),
    "logp_ref": ("logp_ref_T", "logp_stored_T"),
    "token_ids": ("id_T",),
    "values": ("value_T",),
    "values_old": ("value_old_T",),
    "returns": ("return_T",),
    "token_rewards": ("reward_T",),
    "turn_rewards": ("reward_K",),
    "step_rewards": ("reward_K",),
    "turn_gains": ("gain_K",),
    "match": ("match_K",),
    "anchors": ("state_K",),
    "states": ("state_K",),
    "actions": ("action_K",),
    "action_valid": ("valid_K",),
    "done": ("done_K",),
    "v_high": ("value_K",),
    "v_low": ("value_low_K",),
    "v_term": ("value_term_K",),
    "subgoal_token": ("subgoal_K",),
    "spans": ("span_T",),
    "v1": ("value_K",),
    "v2": ("value_second_K",),
    "q1": ("value_after_K",),
    "q2": ("value_after_second_K",),
    "target_q1_at_policy_action": ("value_after_slow_K",),
    "target_q2_at_policy_action": ("value_after_second_slow_K",),
    "target_v1_next": ("next_value_slow_K",),
    "target_v2_next": ("next_value_second_slow_K",),
    "reward_components": ("reward_BM",),
    "reward_weights": ("reward_weight_BM",),
    "greedy_rewards": ("greedy_reward_B",),
    "demo_mask": ("origin_T",),
    "hint_mask": ("origin_T",),
    "replay_mask": ("origin_T",),
    "off_policy_mask": ("origin_T",),
    "bundles": ("bundle_B",),
    "players": ("player_B", "role_B"),
    "lengths": ("length_B",),
    "budgets": ("budget_B",),
    "formats": ("format_B",),
    "noise_levels": ("noise_level_B",),
    "mean_logp_vocab": ("mean_logp_T",),
    "mean_logp": ("mean_logp_T",),
    "mean_logp_vocab_old": ("mean_logp_old_T",),
    "sum_pi_squared": ("sum_pi_squared_old_T",),
    "dropped_tokens": ("dropped_T",),
    "candidate_tokens": ("candidate_T",),
    "n_drop": ("num_drop",),
    "length": ("max_length",),
    "total_steps": ("num_steps",),
    "logits": ("logq_TV",),
    "logits_old": ("logq_old_TV",),
    "logits_ref": ("logq_ref_TV",),
}
# Other names of the same tensor, where methods have words of their own, and what it is made of.
SYNONYMS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "prompts": ("groups", lambda column: column),
    "scores": ("rewards", lambda column: column),
    "branch_pos": ("fork_at", lambda column: column),
    "probs": ("logp_beh", torch.log),
    # [B, T + 1], the prompt's value first; the last is that of the whole answer
    "values_after_position_minus1_first": ("prefix_value", lambda column: column[:, :-1]),
}
# Names of parameters beside the recipe's own.
SAME_PARAMETER = {
    "grpo_passk": {"norm_adv_by_std_in_grpo": "normalize_std", "divide_by_std": "normalize_std"},
}
# Columns through which gradient flows, beside the values of a critic's heads; all others are
# detached.
CURRENT = frozenset({"logp_T", "entropy_T", "mean_logp_T", "logq_TV"})
# What each call runs, and the names that it takes whether or not a part reads them.
CALLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "advantages": ("advantage", ("rewards", "groups", "mask")),
    "selection": ("selection", ("advantages", "groups", "mask")),
    "policy_loss": ("terms", ("logp", "logp_old", "advantages", "mask")),
}
# Names of a recipe's loss or advantages beside the recipe's own.
ALIASES = {
    "gtpo_conflict_loss": "gtpo_conflict",
    "gpg_loss": "gpg", "hapo_loss": "hapo", "hpt_loss": "hpt", "loop_loss": "loop",
    "rover_reward": "rover",
}  # fmt: skip
# origin_T where the mask is true.
ORIGINS = {"demo_mask": 2, "hint_mask": 3, "off_policy_mask": 2, "replay_mask": 4}
# Columns that follow from the mask alone.
FROM_MASK = frozenset({"mask_T", "gradient_T", "denominator_T", "turn_T", "rollout_T", "rollout_K",
                       "index_K", "size_B", "index_B", *SIZES})  # fmt: skip
# Columns that an advantage chain may read before it has written them; they have no name here.
FIRST = ("advantage_B", "advantage_K", "second_advantage_K")
# Names that say how rows and tokens make up turns; taken where something reads turns.
STRUCTURE = ("turn_ids", "turn_end", "turn_valid", "trajectories", "turn_index", "steps")
# Numbers that may stand among the parameters though parts read them as columns.
RUN_WIDE = ("step", "total_steps", "length", "n_drop", "q_alpha", "q_beta")
# Columns that may be given and have a value without it.
DEFAULTED = frozenset({"max_length", "length_B", "scored_B"})


@dataclass(frozen=True)
class Door:
    """One call: the composed algorithm and its batch."""

    algorithm: Algorithm
    batch: Batch
    seed: int
    layout: Layout

    def back(self, values_T: Tensor) -> Tensor:
        """Token values in the shape of what was given."""
        return self.layout.back(self.batch, values_T)

    def rng(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def chains(self) -> Chains:
        """Runs this call's parts: each draws from the same seed and begins with its first state."""
        return Chains(lambda name, number: self.rng())


def open_door(
    call: str,
    name: str,
    params: Mapping[str, Any],
    seed: int,
    mask_BT: Tensor | None,
    given: Mapping[str, Any],
    denominator_BT: Tensor | None = None,
) -> Door:
    algorithm, given = compose(name, params, {k: v for k, v in given.items() if v is not None})
    if call == "policy_loss" and "values" not in given:
        algorithm = _without_critic(algorithm)
    _refuse(call, name, algorithm, given)
    layout, given = layout_of(mask_BT, given)
    gradient_BT = layout.mask_BT
    counts_BT = gradient_BT if denominator_BT is None else denominator_BT.bool()
    if counts_BT.shape != gradient_BT.shape:
        raise UserError(f"denominator_mask must be {list(gradient_BT.shape)} like the mask")
    columns: dict[str, Tensor] = {"gradient_T": gradient_BT, "denominator_T": counts_BT}
    columns["max_length"] = torch.tensor(gradient_BT.shape[1], device=gradient_BT.device)
    read = set(_reads(algorithm, call))
    for key, value in given.items():
        columns |= _columns(key, value, layout, read)
    batch = _with_turn_rewards(layout.batch(columns, gradient_BT | counts_BT), read)
    if call == "advantages":
        batch = _with_outcome(batch)
    algorithm = _at_step(algorithm, CALLS[call][0], name, batch)
    return Door(algorithm, _with_advantage_B(call, algorithm, batch), seed, layout)


def _with_turn_rewards(batch: Batch, read: set[str]) -> Batch:
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


def compose(
    name: str, params: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Algorithm, dict[str, Any]]:
    """The recipe, and the given tensors with those run-wide numbers that stood in `params`."""
    name = ALIASES.get(name, name)
    params = {SAME_PARAMETER.get(name, {}).get(key, key): value for key, value in params.items()}
    given = _usual_names(given)
    known = inspect.signature(catalogue.load("recipe", name)).parameters
    run_wide = {
        key: value for key, value in params.items() if key not in known and (key in RUN_WIDE)
    }
    own = {key: value for key, value in params.items() if key not in run_wide}
    return notation.build_recipe(name, own), {**given, **run_wide}


def _usual_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors under their usual names. Raises UserError for one that is there twice."""
    found = dict(given)
    for name in [name for name in given if name in SYNONYMS]:
        usual, make = SYNONYMS[name]
        if usual in found:
            raise UserError(f"{name} is {usual}: give one of the two")
        found[usual] = make(torch.as_tensor(found.pop(name)))
    return found


def _names(column: str) -> list[str]:
    """The names that a column has at this door, the usual one first."""
    named = [name for name, columns in COLUMNS.items() if column in columns]
    return named or [column.rpartition("_")[0] if level_of(column) else column]


def _reads(algorithm: Algorithm, call: str) -> dict[str, bool]:
    """The columns that the call's stage reads from outside, and whether each must be given."""
    stage = CALLS[call][0]
    inside = set(FROM_MASK) | (set(FIRST) if call == "advantages" else set())
    found: dict[str, bool] = {}
    for path, use in algorithm.uses():
        if path.split(".")[0] == stage:
            for read in parts.reads(use):
                if read.column not in inside:
                    must = read.required and read.column not in DEFAULTED
                    found[read.column] = found.get(read.column, False) or must
            inside |= set(parts.writes(use))
    return found


def inputs(algorithm: Algorithm, call: str) -> dict[str, bool]:
    found = dict.fromkeys(("step", "total_steps"), False)
    found |= {name: name in ("logp", "rewards", "mask") for name in CALLS[call][1]}
    filled = {COLUMNS[name] for name in found.keys() & COLUMNS.keys()}
    found = {name: False for name, columns in COLUMNS.items() if columns in filled} | found
    reads, always = _reads(algorithm, call), _reads(_without_critic(algorithm), call)
    for column, must in reads.items():
        for name in _names(column):
            found[name] = found.get(name, False) or (must and column in always)
    if {"reward_T", "reward_BM"} & reads.keys():
        found["rewards"] = False
    if _reads_turns(algorithm, call):
        found |= dict.fromkeys(STRUCTURE, False)
        found.setdefault("turn_rewards", False)
        if "reward_K" in reads:
            found.setdefault("token_rewards", False)
        found["rewards"] = found.get("rewards", False) and "reward_K" not in reads
    return found


def _without_critic(algorithm: Algorithm) -> Algorithm:
    """The algorithm with the policy's terms alone: what a loss without values is."""
    terms = tuple(term for term in algorithm.terms if term.learner == "policy")
    return dataclasses.replace(algorithm, terms=terms)


def _reads_turns(algorithm: Algorithm, call: str) -> bool:
    """Whether some part of the call's stage looks at turns."""
    columns = algorithm.reads((CALLS[call][0],))
    return bool(columns & {"turn_T"}) or any(level_of(column) == "K" for column in columns)


def _refuse(call: str, name: str, algorithm: Algorithm, given: Mapping[str, Any]) -> None:
    """Raise UserError for a tensor that nothing reads, and for a column that is not there."""
    known = inputs(algorithm, call)
    for key in given:
        if key not in known:
            raise UserError(
                f"{call}({name!r}) takes no {key}{nearest(key, known)}; it takes {', '.join(known)}"
            )
    if known.get("rewards") and not {"rewards", "turn_rewards", "step_rewards"} & given.keys():
        raise UserError(f"{call}({name!r}) needs rewards (column reward_B)")
    reads = _reads(algorithm, call)
    enough = {"rewards", "token_rewards"} | ({"turn_rewards"} & known.keys())
    if "reward_T" in reads and not enough & given.keys():
        raise UserError(f"{call}({name!r}) needs token_rewards, or rewards")
    for column, must in reads.items():
        names = _names(column) + ["token_rewards"] * (column == "reward_K")
        if must and not any(key in given for key in names):
            raise UserError(f"{call}({name!r}) needs {' or '.join(names)} (column {column})")


def _columns(key: str, value: Any, layout: Layout, read: set[str]) -> dict[str, Tensor]:
    """The batch columns that one tensor given as `key` fills."""
    mask_BT = layout.mask_BT
    column = torch.as_tensor(value, device=mask_BT.device)
    filled = COLUMNS.get(key) or _by_suffix(key, column, read)
    level = level_of(filled[0])
    if key in ("advantages", *ORIGINS) and column.dim() == 1:
        level = "B"
    axes = layout.axes(level) + filled[0].endswith(("_TV", "_BM"))
    wanted = layout.shape(level)
    if column.dim() != axes or column.shape[: len(wanted)] != wanted:
        raise UserError(
            f"{key} must be {list(wanted)} to fit the mask {list(mask_BT.shape)}; it is "
            f"{list(column.shape)}"
        )
    if key == "rewards":
        return _rewards(column)
    if key == "groups":
        return {"group_B": torch.unique(column, return_inverse=True)[1]}
    if key == "advantages":
        column = _float(column).detach()
        if column.dim() == 2:
            return {"advantage_T": column}
        return {"advantage_T": column[:, None].expand(mask_BT.shape), "advantage_B": column}
    if key in ORIGINS:
        column = column.bool() if column.dim() == 2 else column.bool()[:, None].expand_as(mask_BT)
        return {"origin_T": torch.where(column, ORIGINS[key], 0)}
    if filled[0].endswith("_TV"):
        inside = mask_BT.bool()[..., None]
        column = torch.log_softmax(torch.where(inside, column, column.new_zeros(())), dim=-1)
    carries = {name: name in CURRENT or is_current(name) or is_head(name) for name in filled}
    return {name: column if carries[name] else column.detach() for name in filled}


def _by_suffix(key: str, column: Tensor, read: set[str]) -> tuple[str, ...]:
    """The column of a name that is not in the table: `truncated` [B] -> `truncated_B`.

    What the recipe reads decides; among several, the number of axes.
    """
    usual = key + ("", "_B", "_T")[min(column.dim(), 2)]
    known = [key + suffix for suffix in ("_B", "_T", "_K", "") if key + suffix in read]
    return (usual if usual in known or not known else known[0],)


def _rewards(reward_B: Tensor) -> dict[str, Tensor]:
    reward_B = _float(reward_B).detach()
    scored_B = ~reward_B.isnan()
    reward_B = torch.where(scored_B, reward_B, 0)
    names = ("reward_B", "outcome_B", "advantage_B")
    return {"scored_B": scored_B, **dict.fromkeys(names, reward_B)}


def _float(column: Tensor) -> Tensor:
    return column if column.is_floating_point() else column.float()


def _with_advantage_B(call: str, algorithm: Algorithm, batch: Batch) -> Batch:
    """The batch with one advantage a rollout where a part reads it and [B, T] was given."""
    if "advantage_B" in batch or "advantage_B" not in _reads(algorithm, call):
        return batch
    arguments = (batch["advantage_T"], batch["rollout_T"], batch.size("B"), batch["mask_T"])
    high_B = segments.extreme(*arguments, largest=True)
    if bool((segments.extreme(*arguments, largest=False) != high_B).any()):
        raise UserError(f"{call} reads one advantage a rollout: give advantages as [B]")
    return batch.set(advantage_B=high_B)


def _at_step(algorithm: Algorithm, stage: str, name: str, batch: Batch) -> Algorithm:
    """The algorithm with its schedules replaced by their numbers at the given step."""
    if "step" in batch and "num_steps" in batch:
        return algorithm.at_step(int(batch["step"]), int(batch["num_steps"]))
    for path, value in algorithm.paths().items():
        if path.split(".")[0] == stage and isinstance(value, Schedule):
            raise UserError(
                f"recipe {name}: {path} is a schedule; give step and total_steps in params"
            )
    return algorithm
