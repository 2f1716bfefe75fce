"""Random padded inputs for any recipe's functional calls, by what the recipe says it takes."""

from typing import Any

import torch
from torch import Tensor

from strop import functional, notation
from strop._padded import STRUCTURE

LENGTH = 9  # of averages by a constant length
TURNS = ("turn_rewards", "turn_gains", "advantage", "anchors", "states", "actions", "action_valid",
         "done", "match", "role", "switch", "subgoal_token", "v_high", "v_low", "v_term", "v1",
         "v2", "q1", "q2", "target_q1_at_policy_action", "target_q2_at_policy_action",
         "target_v1_next", "target_v2_next")  # [B, K]  # fmt: skip
OF_TOKENS = ("return_", "value_")  # names of a critic's heads and their targets begin so
FILL = {"mask": False, "turn_ids": -1}
VOCABULARY = 4
NUM_TURNS = 3  # turns of two positions each
COMPONENTS = ("reward_components", "reward_weights")  # [B, M]: no tokens


def values_for(name: str, shape: tuple[int, int], rng: torch.Generator) -> Tensor:
    """One input under its public name, float64."""
    num, width = shape

    def rand(*size: int) -> Tensor:
        return torch.rand(size, generator=rng, dtype=torch.float64)

    if name.startswith(("logp", "mean_logp")):
        return -3 * rand(num, width) - 0.1
    if name.startswith(("entropy", "nucleus_", "min_p_kl")):
        return rand(num, width) + 0.1
    if name in TURNS and name[:2] in ("v_", "v1", "v2", "q1", "q2", "ta"):
        return torch.randn(num, NUM_TURNS, generator=rng, dtype=torch.float64)
    if name.startswith("at_"):
        return torch.rand(num, width, generator=rng) < 0.8
    if name == "spans":
        return torch.randint(0, 8, (num, width), generator=rng)
    if name in ("values", "values_old", "returns", "token_rewards") or name.startswith(OF_TOKENS):
        return rand(num, width)
    if name in ("rewards", "greedy_rewards"):
        return torch.randn(num, generator=rng, dtype=torch.float64)
    if name == "advantages":
        return torch.randn(num, generator=rng, dtype=torch.float64)
    if name == "groups":
        return torch.randint(0, 3, (num,), generator=rng) * 5 - 4
    if name in ("id", "token_ids"):
        return torch.randint(0, 3, (num, width), generator=rng)
    if name in ("budgets", "formats"):
        return torch.randint(0, 3, (num,), generator=rng)
    if name == "lengths":
        return torch.randint(1, width + 1, (num,), generator=rng)
    if name == "logits":
        return torch.randn(num, width, VOCABULARY, generator=rng, dtype=torch.float64)
    if name == "guess_seed":
        return torch.randint(2**62, (num, width), generator=rng)
    if name in ("profiled", "speedup", "sequence_is_weight", "grad_norm"):
        return 2 * rand(num)
    if name in ("noise_levels", "prior"):
        return rand(num)
    if name == "rollout_uid":
        return torch.randperm(1000, generator=rng)[:num]
    if name == "marker_at":
        return torch.randint(-1, width, (num,), generator=rng)
    if name in ("truncated", "correct", "decoy"):
        return torch.rand(num, generator=rng) < 0.3
    if name in ("dropped_tokens", "candidate_tokens", "demo_mask"):
        return torch.rand(num, width, generator=rng) < 0.2
    if name in ("parent", "fork_at", "branch_pos"):  # nothing forks: rows may come in any order
        return torch.full((num,), -1)
    if name == "difficulty":
        return torch.randint(0, 3, (num,), generator=rng)
    if name in ("kl_weight", "prefix_value", "value_std", "potential"):
        return rand(num, width)
    if name in ("cut", "learning"):
        return torch.rand(num, width, generator=rng) < 0.5
    if name in ("sum_pi_squared", "rollout_is_weights"):
        return rand(num, width)
    if name in ("prompt_confidence", "first_success", "rank", "rank_speed", "rank_turn",
                "made_advantage"):  # fmt: skip
        return rand(num)
    if name in COMPONENTS:
        return rand(num, 2)
    if name == "preferred":
        return 1 - 2 * (torch.arange(num) % 2)
    if name == "stage":
        return torch.randint(0, 2, (num,), generator=rng)
    if name in ("players", "episode"):
        return torch.randint(0, 2, (num,), generator=rng)
    if name == "bundles":
        return torch.randint(0, 2, (num,), generator=rng)
    if name == "n_turns":
        return torch.randint(1, NUM_TURNS + 2, (num,), generator=rng)
    if name in ("turn_rewards", "turn_gains"):
        return torch.randn(num, NUM_TURNS, generator=rng, dtype=torch.float64)
    if name in ("anchors", "states", "actions", "role", "subgoal_token"):
        return torch.randint(0, 3, (num, NUM_TURNS), generator=rng)
    if name in ("action_valid", "done", "match", "role", "switch"):
        return torch.rand(num, NUM_TURNS, generator=rng) < 0.7
    raise KeyError(f"say here what {name} looks like")


RUN_WIDE = {
    "step": 3,
    "total_steps": 10,
    "length": LENGTH,
    "n_drop": 2,
    "batch_entropy": 0.3,
    "q_alpha": 0.1,
    "q_beta": 0.9,
}


def inputs_for(
    recipe: str, call: str, seed: int, shape: tuple[int, int] = (6, 5), params: Any = None
) -> dict[str, Any]:
    """Every tensor that the call takes, ragged mask included; of names of one column the first."""
    rng = torch.Generator().manual_seed(seed)
    mask = torch.rand(shape, generator=rng) < 0.7
    mask[0, 1] = True
    mask[:, 0] = False
    given: dict[str, Any] = {"mask": mask}
    filled: set[tuple[str, ...]] = {("mask",)}
    names = functional.inputs(recipe, call, params)
    if set(TURNS) & names.keys():
        given["turn_ids"] = torch.where(mask, torch.arange(shape[1]) // 2, -1)
    for name in names:
        if name in STRUCTURE or (name == "token_rewards" and names.get("turn_rewards")):
            continue
        column = functional.COLUMNS.get(name, (name,))
        if column in filled or (name == "logits" and not names[name]):
            continue  # where the head's own column is asked for, logits only stand in for it
        filled.add(column)
        given[name] = RUN_WIDE[name] if name in RUN_WIDE else values_for(name, shape, rng)
    if "preferred" in given:  # pairs of neighbours
        given["groups"] = torch.arange(shape[0]) // 2
    if "logp_old" in given and "logp" in given:
        change = 0.3 * torch.randn(shape, generator=rng, dtype=torch.float64)
        given["logp"] = given["logp_old"] + change
    facts = notation.build_recipe(recipe, params or {}).facts()
    if "rewards_from_0_to_1" in facts and "rewards" in given:
        given["rewards"] = given["rewards"].sigmoid()
    return given


def rows(given: dict[str, Any], order: Tensor) -> dict[str, Any]:
    """The inputs with their rollouts in another order."""
    return {k: v[order] if isinstance(v, Tensor) else v for k, v in given.items()}


def padded(given: dict[str, Any], extra: int) -> dict[str, Any]:
    """The inputs with `extra` more positions on the right: mask 0, noise elsewhere."""
    wider = {}
    for name, value in given.items():
        wider[name] = value
        if isinstance(value, Tensor) and value.dim() >= 2 and name not in (*COMPONENTS, *TURNS):
            fill = float("nan") if value.is_floating_point() else FILL.get(name, True)
            new = value.new_full((value.shape[0], extra, *value.shape[2:]), fill)
            wider[name] = torch.cat([value, new], dim=1)
    return wider


def with_noise(given: dict[str, Any]) -> dict[str, Any]:
    """The inputs with NaN in every float token tensor outside the mask."""
    noisy = dict(given)
    for name, value in given.items():
        floats = isinstance(value, Tensor) and value.dim() >= 2 and value.is_floating_point()
        if floats and name not in (*COMPONENTS, *TURNS):
            inside = given["mask"].view(*given["mask"].shape, *[1] * (value.dim() - 2))
            noisy[name] = torch.where(inside, value, float("nan"))
    return noisy
