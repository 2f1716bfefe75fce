"""The reference as an average of policies: a bfloat16 model follows it as closely as it can."""

import copy

import pytest
import torch
from fakes.models import tiny
from models import without_times

from strop.training.learner.policy import MasterAdamW, Policy
from strop.training.learner.weight_copies import WeightCopies
from strop.training.record import checkpoint

STEPS, DECAY = 40, 0.9


def copies_of(dtype):
    """A policy, a frozen copy of it, and the copies that watch this one."""
    model = tiny(dtype=dtype)
    policy = Policy(model)
    policy.optimiser = MasterAdamW(list(policy.parameters()), lr=0.0)
    reference = Policy(copy.deepcopy(model))
    copies = WeightCopies(policy)
    copies.watch("reference", reference)
    return policy, reference, copies


def moved(policy, copies, share, num_steps=STEPS):
    """Move the policy by 1e-5 each step, and its reference by `share` of the way."""
    for step in range(1, num_steps + 1):
        policy.take({name: weight + 1e-5 for name, weight in policy.masters().items()})
        knobs = {"model.reference": float(step), "model.reference_share": share}
        copies.follow({**knobs, "model.reference": step - 1.0}, knobs)


def test_an_average_in_bfloat16_is_the_exact_one_rounded():
    policy, reference, copies = copies_of(torch.bfloat16)
    before = {name: each.clone() for name, each in reference.model.state_dict().items()}
    moved(policy, copies, 1 - DECAY)
    # The lag behind a policy that moves by d each step is d (x + x^2 + ... + x^n), x = 0.9.
    ahead = 1e-5 * (STEPS - sum(DECAY**n for n in range(1, STEPS + 1)))
    after = reference.model.state_dict()
    for name in policy.masters():
        wanted = (before[name].float() + ahead).bfloat16()
        near = (wanted.float() - after[name].float()).abs()
        assert (near <= 2**-7 * wanted.float().abs()).all(), name  # at most the next number
        assert (wanted == after[name]).float().mean() > 0.98, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_average_of_an_exact_model_is_kept_in_the_reference_alone(dtype):
    policy, reference, copies = copies_of(dtype)
    before = {name: each.clone() for name, each in reference.model.state_dict().items()}
    moved(policy, copies, 1 - DECAY, 3)
    ahead = 1e-5 * (3 - sum(DECAY**n for n in (1, 2, 3)))
    own = reference.model.state_dict()
    weights = copies.copies["reference"]
    assert weights.keys() == policy.masters().keys()
    for name in weights:
        torch.testing.assert_close(own[name], before[name] + ahead, rtol=1e-6, atol=2e-7)
    assert all(weight.data_ptr() == own[name].data_ptr() for name, weight in weights.items())


def test_a_bfloat16_reference_that_becomes_the_policy_needs_no_second_copy():
    policy, reference, copies = copies_of(torch.bfloat16)
    moved(policy, copies, 1.0, 3)
    own = reference.model.state_dict()
    weights = copies.copies["reference"]
    assert weights.keys() == policy.masters().keys()
    for name, weight in weights.items():
        assert weight.data_ptr() == own[name].data_ptr()
        assert torch.equal(weight, policy.masters()[name].bfloat16())


def test_a_saved_average_moves_on_as_if_never_saved_and_an_older_one_is_read():
    policy, reference, copies = copies_of(torch.bfloat16)
    moved(policy, copies, 1 - DECAY)
    (saved,) = copies.moved({"model.reference": 1.0}).values()
    again, other, theirs = copies_of(torch.bfloat16)
    again.take(policy.masters())
    theirs.load("reference", copy.deepcopy(saved))
    for each, its in ((policy, copies), (again, theirs)):
        moved(each, its, 1 - DECAY, 3)
    own, restored = reference.model.state_dict(), other.model.state_dict()
    assert all(torch.equal(own[name], restored[name]) for name in own)
    rounded = {name: weight.bfloat16() for name, weight in saved.items()}  # of an earlier version
    _, third, copies = copies_of(torch.bfloat16)
    copies.load("reference", rounded)
    weights = third.model.state_dict()
    assert all(torch.equal(weights[name], rounded[name]) for name in rounded)


def test_a_bfloat16_run_with_an_average_resumes_exactly(lab, runner, tmp_path):
    raw = lab.raw(
        "ppo_ewma", reward="even", model={"dtype": "bfloat16"},
        training={"steps": 3, "save_every": 1, "lr": 1e-4},
    )  # fmt: skip
    whole = runner.whole(raw, tmp_path / "whole")
    runner.whole({**raw, "training": {**raw["training"], "steps": 2}}, tmp_path / "broken")
    again = runner.resume(tmp_path / "broken", training={"steps": 3})
    runner.go(again)
    assert without_times(tmp_path / "whole") == without_times(tmp_path / "broken")
    one, two = (
        checkpoint.read(checkpoint.newest(run.checkpoints), "reference.pt")
        for run in (whole, again)
    )
    assert {weight.dtype for weight in one.values()} == {torch.float32}
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
