"""Thousands of wrong calls of `strop.functional`: a result, or one UserError."""

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from doors import Outcomes, seeded, tries, wrong

sys.path.insert(0, str(Path(__file__).parent.parent / "every_recipe"))
from padded import inputs_for

from strop import functional
from strop.catalogue import catalogue

CALLS = {
    "advantages": functional.advantages,
    "selection": functional.selection,
    "policy_loss": functional.policy_loss,
    "token_weights": functional.token_weights,
    "loss_parts": functional.loss_parts,
    "rewards": functional.rewards,
    "returns": functional.returns,
    "next_state": functional.next_state,
}
OF_LOSSES = ("token_weights", "loss_parts")
FURTHER = {
    "advantages": ("state", "pair_scores", "batch_entropy_sequence", "advantages_seq", "tree",
                   "steps", "texts", "lambda_", "n_conflict", "initial_outcomes"),
    "policy_loss": ("state", "labels", "step_entropy", "kept", "advantages_seq"),
    "loss_parts": ("state", "term"), "rewards": ("pair_scores",), "returns": ("state", "which"),
    "next_state": ("state", "metrics", "steps", "texts"),
}  # fmt: skip
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.uint16, torch.float8_e5m2,
)  # fmt: skip


def bent(value, rng):
    """A tensor, or a number for the whole run, changed in type, place, shape or values."""
    value = torch.as_tensor(value)
    ways = (
        lambda: value.to(rng.choice(DTYPES)),
        lambda: value.float().to_sparse(),
        lambda: value.float().to_sparse_csr() if value.dim() == 2 else value.to_sparse(),
        lambda: value.to("meta"),
        lambda: value.numpy(),
        lambda: value.tolist(),
        lambda: np.array(value.tolist(), dtype=object),
        lambda: value[None],
        lambda: value[..., None],
        lambda: value.flatten(),
        lambda: value[:-1] if value.dim() else value,
        lambda: value[:0] if value.dim() else value,
        lambda: value.t() if value.dim() == 2 else value,
        lambda: value.reshape(-1)[:1].squeeze(),
        lambda: torch.full_like(value, rng.choice((0, 1, -1, 7, -7, 120))),
        lambda: torch.full_like(value.long(), rng.choice((2**62, -(2**62), 2**40, -(2**63)))),
        lambda: torch.full_like(value.double(), rng.choice((float("nan"), float("inf"), -1e308))),
        lambda: value.double() + 0.5,
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda: torch.nn.Parameter(value.double()),
        lambda: wrong(rng),
        lambda: None,
    )
    with warnings.catch_warnings(
        action="ignore"
    ):  # torch's, on kinds of tensor still in the making
        return rng.choice(ways)()


def params_for(entry, rng):
    """Parameters of the recipe, one of them wrong."""
    names = [field.name for field in entry.fields]
    name = rng.choice([*names, "step", "total_steps", "colour"])
    found = {"step": 3, "total_steps": 10, name: wrong(rng)}
    return rng.choice((found, found, found, wrong(rng)))


def test_calls_of_recipes():
    outcomes, rng = Outcomes(), seeded(0)
    entries = catalogue.recipes()
    for number in tries(1200):
        entry = entries[number % len(entries)]
        call = rng.choice([*CALLS])
        kind = "policy_loss" if call in OF_LOSSES else call
        given = inputs_for(entry.name, kind, number % 7)
        for name in rng.sample([*given], rng.choice((0, 0, 1, 2))):
            if name not in ("mask", "advantages"):  # Python itself names these where they miss
                del given[name]
        if rng.random() < 0.7:
            for name in rng.sample([*given], min(len(given), rng.choice((1, 1, 1, 2)))):
                given[name] = bent(given[name], rng)
        if rng.random() < 0.3:
            given["params"] = params_for(entry, rng)
        if rng.random() < 0.1 and call in FURTHER:
            given[rng.choice(FURTHER[call])] = wrong(rng)
        if rng.random() < 0.03:
            given["seed"] = wrong(rng)
        name = wrong(rng) if rng.random() < 0.02 else entry.name
        outcomes.of(CALLS[call], name, **given)
    outcomes.check()


def pairs(rng):
    """A call on preference pairs, one tensor of it changed."""
    width = {side: rng.choice((3, 5)) for side in ("chosen", "rejected")}
    given = {
        f"{name}_{side}": torch.ones(2, width[side])
        for name in ("logp", "logp_ref", "mask")
        for side in width
    }
    name = rng.choice([*given])
    given[name] = bent(given[name], rng)
    return functional.policy_loss, {"name": "dpo", **given}


def plain(rng):
    """A call of the functions that need no recipe, one argument of it changed."""
    names = ("logp", "logp_ref", "values", "values_old", "returns", "mask")
    tensors = {name: torch.ones(3, 4) for name in names}
    calls = {
        functional.kl_estimators: ("logp", "logp_ref", "mask", "aggregation"),
        functional.value_loss_clip: (
            "values",
            "values_old",
            "returns",
            "mask",
            "clip_value",
            "aggregation",
        ),
        functional.loss_aggregation: ("per_token_loss", "mask", "aggregation", "L_max"),
        functional.inputs: ("name", "call", "params"),
        functional.nucleus_entropy: ("logits", "top_p", "variant"),
        functional.plausible_logp: ("logits", "token_ids", "kappa"),
        functional.tree_edges: ("name", "tree", "params"),
    }
    call = rng.choice([*calls])
    usual = {
        **tensors, "per_token_loss": torch.ones(3, 4), "aggregation": "token-mean", "L_max": 4,
        "clip_value": 0.2, "name": "spo_tree", "call": "selection", "params": {},
        "tree": [1, [0, 1]],
        "logits": torch.ones(2, 3, 4), "token_ids": torch.ones(2, 3), "top_p": 0.5, "kappa": 0.1,
        "variant": "code",
    }  # fmt: skip
    if "L_max" in calls[call]:
        usual["aggregation"] = "seq-mean-token-sum-norm"  # the others take none
    given = {name: usual[name] for name in calls[call]}
    name = rng.choice([*given])
    is_tensor = isinstance(given[name], torch.Tensor)
    if rng.random() < 0.9:
        given[name] = bent(given[name], rng) if is_tensor else wrong(rng)
    return call, given


def test_other_calls():
    outcomes, rng = Outcomes(), seeded(1)
    for number in tries(1500):
        call, given = (pairs, plain)[number % 2](rng)
        outcomes.of(call, **given)
    outcomes.check()
