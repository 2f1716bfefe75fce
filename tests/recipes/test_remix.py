import math

import pytest
import torch
from builders import flat_batch, pushed, ragged_batch, run, stages

from strop.curation.keep_share_of_replayed import KeepShareOfReplayed
from strop.errors import UserError
from strop.loss.bound.clip_around_old_ratio import ClipAroundOldRatio
from strop.recipes.grpo import grpo
from strop.recipes.remix import remix


def test_worked_example_of_the_clip():
    # pi .3, behaviour .2, old .25: rho 1.5, centre 1.25, range 1.05 to 1.45
    logs = {"logp_old_T": [math.log(0.25)] * 3, "logp_behavior_T": [math.log(0.2)] * 3}
    ratio = [math.log(1.5), math.log(1.4), math.log(1.5)]
    batch = flat_batch((3,), log_ratio_T=ratio, advantage_T=[1.0, 1.0, -1.0], **logs)
    found = run(ClipAroundOldRatio(), batch)
    assert found.value.tolist() == pytest.approx([1.45, 1.4, -1.5])
    assert found.metrics["clip_ratio/high_mean"].tolist() == [1.0, 0.0, 0.0]
    low = batch.set(log_ratio_T=torch.full((3,), math.log(1.0)).double())
    assert run(ClipAroundOldRatio(), low).value.tolist() == pytest.approx([1.0, 1.0, -1.05])
    void = batch.set(logp_behavior_T=torch.full((3,), math.nan).double())
    assert run(ClipAroundOldRatio(), void).value.tolist() == pytest.approx([1.2, 1.2, -1.5])


def test_for_rollouts_of_the_steps_own_policy_it_is_grpo():
    batch = stages(grpo(), ragged_batch(1))
    batch = batch.set(logp_behavior_T=batch["logp_old_T"])
    ours, parent = pushed(remix(beta=0.0), batch), pushed(grpo(), batch)
    assert ours[0] == pytest.approx(parent[0])
    torch.testing.assert_close(ours[1]["logp_T"], parent[1]["logp_T"])


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
    assert share_of(KeepShareOfReplayed(0.0), {0, 1}).value.keep_B.sum() == 4
    assert not share_of(KeepShareOfReplayed(), {0, 1, 2, 3}).value.keep_B.any()
    drawn = {tuple(share_of(KeepShareOfReplayed(0.34), {0, 1}, s).value.keep_B.tolist())
             for s in range(20)}  # fmt: skip
    assert len(drawn) == 2


def test_phases_and_penalties():
    algorithm = remix(p=0.3, mixed_until=0.25, beta=0.1)
    first, last = algorithm.at_step(1, 8), algorithm.at_step(8, 8)
    assert first.curation[1].part.share == 0.3
    assert algorithm.at_step(2, 8).curation[1].part.share == 0.0
    assert [term.coef for term in last.terms[1:]] == pytest.approx([0.05, 0.05])
    assert first.terms[1].coef + first.terms[2].coef == pytest.approx(0.1)
    assert algorithm.plan.part.num_updates == 2
    assert algorithm.curation[0].part.max_age == 3
    algorithm.check()
    with pytest.raises(UserError, match="share"):
        KeepShareOfReplayed(1.0)
