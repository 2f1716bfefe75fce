import pytest
import torch
from builders import assert_equal_pushes, flat_batch, ragged_batch, run, stages
from models import Lab
from runs import Runner
from safetensors.torch import load_file

from strop.method.check import check
from strop.parts.curation.keep_share_of_replayed import KeepShareOfReplayed
from strop.recipes.grpo import grpo
from strop.recipes.remix import remix
from strop.support.errors import UserError
from strop.training import loop


def test_for_rollouts_of_the_steps_own_policy_it_is_grpo():
    batch = stages(grpo(), ragged_batch(1))
    batch = batch.set(logp_behavior_T=batch["logp_old_T"])
    assert_equal_pushes(remix(beta=0.0), grpo(), batch)


def share_of(part, replayed, seed=0):
    batch = flat_batch((1,) * 8, [0, 0, 1, 1, 2, 2, 3, 3])
    origin = torch.tensor([4 if g in replayed else 0 for g in batch["group_B"].tolist()])
    batch = batch.set(origin_T=origin)
    return run(part, batch, rng=torch.Generator().manual_seed(seed))


def test_share_of_replayed_groups():
    found = share_of(KeepShareOfReplayed(0.34), {0, 1})  # 2 fresh groups: 1 replayed
    kept = found.value.keep_B.reshape(4, 2)
    assert kept[:, 0].equal(kept[:, 1])
    assert kept[2:].all()
    assert int(kept[:2, 0].sum()) == 1
    assert found.metrics["replay/share"] == pytest.approx(1 / 3)
    assert share_of(KeepShareOfReplayed(0.9), {0}).value.keep_B.all()
    assert share_of(KeepShareOfReplayed(0.5), {0, 1}).value.keep_B.all()  # as many as fresh ones
    assert share_of(KeepShareOfReplayed(0.0), {0, 1}).value.keep_B.sum() == 4
    assert not share_of(KeepShareOfReplayed(), {0, 1, 2, 3}).value.keep_B.any()
    drawn = {tuple(share_of(KeepShareOfReplayed(0.34), {0, 1}, s).value.keep_B.tolist())
             for s in range(20)}  # fmt: skip
    assert len(drawn) == 2


def test_the_bases_share_falls_by_a_tenth_every_ten_steps():
    # max(1 - 0.1 ceil(max(t - 50, 0) / 10), 0.5) at t = 1, 50, 51, 61, 80, 100, 120
    shares = {1: 1.0, 50: 1.0, 51: 0.9, 61: 0.8, 80: 0.7, 100: 0.5, 120: 0.5}
    algorithm = remix(beta=0.1)
    for step, share in shares.items():
        base, old = (term.coef for term in algorithm.at_step(step, 500).terms[1:])
        assert (base, old) == pytest.approx((0.1 * share, 0.1 * (1 - share)))


def test_phases_and_penalties():
    algorithm = remix(p=0.3, mixed_steps=2, beta=0.1, base_steps=3, stair_steps=1)
    check(algorithm)
    shares = [algorithm.at_step(step, 8).curation[1].part.share for step in (1, 2, 3, 8)]
    assert shares == [0.3, 0.3, 0.0, 0.0]
    coefs = [algorithm.at_step(step, 8).terms[1].coef for step in (3, 4, 6, 8)]
    assert coefs == pytest.approx([0.1, 0.09, 0.07, 0.05])
    assert algorithm.plan.part.num_updates == 2
    assert algorithm.curation[0].part.max_age == 3
    assert algorithm.control[0].part.after == 2
    assert remix(beta=0.0).control == remix(mixed_steps=0).control == ()
    with pytest.raises(UserError, match="share"):
        KeepShareOfReplayed(1.0)


def test_the_base_is_replaced_where_the_mixed_phase_ends_and_survives_a_restart(tmp_path):
    lab = Lab.make(tmp_path)
    raw = lab.raw(
        "remix(mixed_steps=1, beta=0.5)", data={"validation_size": 0}, training={"save_every": 1}
    )
    whole = Runner().start(raw, tmp_path / "whole")
    model = whole.world.reference.model
    started = {name: value.clone() for name, value in model.state_dict().items()}
    Runner().go(whole)
    place = tmp_path / "whole" / "checkpoints"
    trained = load_file(place / "step-000001" / "model.safetensors")
    kept = model.state_dict()
    assert all(kept[name].equal(trained[name]) for name in trained)
    assert not all(kept[name].equal(started[name]) for name in trained)
    found = torch.load(place / "step-000003" / "reference.pt", weights_only=True)
    assert all(found[name].equal(trained[name]) for name in trained)
    last = load_file(place / "step-000003" / "model.safetensors")
    again = loop.resume(whole.config, tmp_path / "whole", 2)
    restored = again.world.reference.model.state_dict()
    assert all(restored[name].equal(trained[name]) for name in trained)
    Runner().go(again)
    resumed = again.world.policy.model.state_dict()
    assert all(resumed[name].equal(last[name]) for name in last)


def test_a_reference_that_nothing_reads_is_not_renewed(tmp_path):
    raw = Lab.make(tmp_path).raw("grpo", data={"validation_size": 0})
    raw["stages"] = {"control": "renew_reference"}
    with pytest.raises(UserError, match="nothing to renew"):
        Runner().start(raw, tmp_path / "run")
