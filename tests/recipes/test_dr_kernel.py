import pytest
import torch
from builders import flat_batch, run
from fakes.services import FakeLog, FakeServices
from models import Lab
from runs import Runner

from strop.method import part as parts
from strop.parts.reward.note_turn_profiles import NoteTurnProfiles
from strop.recipes.dr_kernel import dr_kernel
from strop.recipes.mrs import mrs
from strop.support.errors import UserError
from strop.training.record.run_folder import read_metrics

# Two rollouts of one prompt, of two turns each: what their kernels measured.
SAID = {
    3: [{"measures": {"correct": 1.0, "speedup": 1.8, "profiled": 0.4, "decoy": 0.0}},
        {"measures": {"correct": 0.0, "speedup": 3.0, "profiled": 1.0, "decoy": 0.0}}],
    5: [{"measures": {"correct": 1.0, "speedup": 1.0, "profiled": 0.0, "decoy": 1.0}},
        {"measures": {"correct": 1.0, "speedup": 7.0, "profiled": 0.2, "decoy": 0.0}}],
}  # fmt: skip


def turns_of(uids, each):
    """Rollouts of `each` turns of one token."""
    num = len(uids) * each
    return flat_batch(
        (each,) * len(uids), turn_T=torch.arange(num), index_K=list(range(each)) * len(uids),
        rollout_K=torch.arange(len(uids)).repeat_interleave(each), rollout_uid_B=list(uids),
        reward_K=[0.0] * num,
    )  # fmt: skip


def batch_of(said):
    batch = turns_of((3, 5), 2)
    services = FakeServices(log=FakeLog({"turns": said}))
    for use in dr_kernel().reward[1:]:
        batch = parts.write(batch, use, parts.call(use, batch, services=services))
    return batch


def test_worked_example():
    # C 1, speedup 1.8, PR .4: (1 + 1.8 + .4) / 2; wrong and decoy: 0; 7 counts as 3
    batch = batch_of(SAID)
    assert batch["reward_K"].tolist() == pytest.approx([1.6, 0, 0, (1 + 3 + 0.2) / 2])
    algorithm = dr_kernel()
    for use in algorithm.advantage:
        batch = parts.write(batch, use, parts.call(use, batch))
    # returns 1.6, 0 and 2.1, 2.1; each less the other rollout's at its turn
    assert batch["advantage_T"].tolist() == pytest.approx([-0.5, -2.1, 0.5, 2.1])


def test_lazy_turns_leave_one_by_one():
    said = {3: [SAID[3][0], SAID[5][1]], 5: [SAID[5][1], SAID[3][1]]}
    batch = batch_of(said)
    use = dr_kernel().selection[1]
    found = parts.call(use, batch, rng=torch.Generator().manual_seed(0)).value
    # PR .4 always stays, .2 of right ones never does, wrong ones always
    assert found.gradient_T.tolist() == [True, False, False, True]
    assert found.denominator_T.equal(found.gradient_T)


def test_turns_are_drawn_for_apart():
    half = {"measures": {"correct": 1.0, "speedup": 1.0, "profiled": 0.35, "decoy": 0.0}}
    batch = turns_of(range(20), 20)
    services = FakeServices(log=FakeLog({"turns": {uid: [half] * 20 for uid in range(20)}}))
    use = dr_kernel().reward[1]
    batch = parts.write(batch, use, parts.call(use, batch, services=services))
    assert batch["key_K"].unique().numel() == 400
    drawn = dr_kernel().selection[1]
    kept = parts.call(drawn, batch, rng=torch.Generator().manual_seed(1)).value.gradient_T
    assert 150 < int(kept.sum()) < 250
    assert not kept.reshape(20, 20).all(1).any()
    assert kept.reshape(20, 20).any(1).all()


def test_turns_without_a_program_and_without_measures():
    batch = batch_of({3: [SAID[3][0], {"measures": {"correct": 0.0}}], 5: [{}, {}]})
    assert batch["correct_K"].tolist() == [True, False, False, False]
    assert batch["speedup_K"].isnan().tolist() == [False, True, True, True]
    with pytest.raises(UserError, match="the environment measures nothing"):
        batch_of({3: [{}, {}], 5: [{}, {}]})


def test_whole_numbers_are_measures():
    whole = {"measures": {"correct": True, "speedup": 2, "profiled": 1, "decoy": 0}}
    batch = batch_of({3: [whole, whole], 5: [whole, whole]})
    assert batch["speedup_K"].tolist() == [2.0] * 4
    assert batch["speedup_K"].dtype == batch["profiled_K"].dtype == torch.float32


def test_without_its_own_parts_it_is_mrs():
    ours, parent = dr_kernel(), mrs()
    assert ours.terms == parent.terms
    assert ours.advantage == parent.advantage
    assert ours.selection[:1] == parent.selection
    assert dr_kernel(tau=0.5, width=0.2, lo=0.9).selection[0].part.lowest == 0.9


def test_trains_where_kernels_are_timed(tmp_path):
    lab, runner = Lab.make(tmp_path), Runner()
    raw = lab.raw("dr_kernel", training={"steps": 2, "save_every": 0, "rollouts_every": 0})
    raw["data"] = {"task": "kernel_timing", "train_size": 8, "validation_size": 2,
                   "task_config": {"style": "compact"}}  # fmt: skip
    raw["reward"], raw["model"] = {}, {"name": "tiny"}
    raw["algorithm"] = {"sampling.num_prompts": 4, "sampling.num_rollouts": 8}
    runner.whole(raw, tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if line["step"] > 0]
    assert any(line["advantage/abs_mean"] is not None for line in lines)
    assert any(line.get("profile/mean", 0) > 0 for line in lines)


def test_names_a_task_that_measures_nothing():
    with pytest.raises(UserError, match="kernel_timing"):
        run(
            NoteTurnProfiles(),
            turns_of((3,), 1),
            services=FakeServices(log=FakeLog({"turns": {3: [{}]}})),
        )
