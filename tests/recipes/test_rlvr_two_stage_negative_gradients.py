import pytest
import torch
from builders import (
    assert_same_push,
    clipped,
    flat_batch,
    learning,
    pushed,
    ragged_batch,
    run,
    stages,
)

from strop import functional
from strop.method import reading
from strop.method.algorithm import Use
from strop.method.check import check
from strop.parts.advantage.scale.weigh_signs import WeighSigns
from strop.recipes.grpo import grpo
from strop.recipes.gspo import gspo
from strop.recipes.rlvr_two_stage_negative_gradients import (
    gspo_n,
    rlvr_two_stage_negative_gradients,
)
from strop.support.errors import UserError

NAME = "rlvr_two_stage_negative_gradients"


def test_worked_example_through_the_padded_call():
    given = {"groups": torch.zeros(4).long(), "rewards": torch.tensor([1.0, 0, 0, 0]).double()}
    for name in (NAME, "gspo_n"):
        found = functional.advantages(name, **given)
        assert found.tolist() == pytest.approx([0.0, -0.5, -0.5, -0.5], abs=1e-5)
    # graded rewards: a good answer below its group's mean is blamed
    graded = functional.advantages(NAME, **{**given, "rewards": torch.tensor([1.0, 1.0, 1.0, 0.9])})
    assert float(graded[3]) == pytest.approx(-1.5, abs=1e-4)


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
def test_groups_of_one_outcome_teach_nothing(rewards):
    batch = stages(rlvr_two_stage_negative_gradients(), flat_batch((2,) * 3, reward_B=rewards))
    assert batch["advantage_T"].tolist() == [0.0] * 6


@pytest.mark.parametrize("count", [True, False])
def test_gradient_is_that_of_the_published_loss(count):
    algorithm = rlvr_two_stage_negative_gradients(count_dropped=count)
    batch = stages(algorithm, ragged_batch(1, groups=(4, 3, 5)))
    advantage_T = stages(grpo(), ragged_batch(1, groups=(4, 3, 5)))["advantage_T"]
    rows = learning(batch)
    worse = [i for i, tokens in rows if advantage_T[tokens[0]] < 0]
    assert 0 < len(worse) < int(batch["scored_B"].sum())
    assert len(rows) == (int(batch["scored_B"].sum()) if count else len(worse))

    def loss_of(logp_T):
        total = logp_T.new_zeros(())
        for _, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            blame = advantage_T[tokens].clamp(max=0)
            total = total + clipped(ratio, blame, 0.2, 0.2).mean() / len(rows)
        return total

    assert_same_push(algorithm, batch, loss_of)


def test_is_its_parent_on_blame_alone():
    batch = ragged_batch(2)
    for ours, parent in ((rlvr_two_stage_negative_gradients(), grpo()), (gspo_n(), gspo())):
        both = stages(reading.override(ours, "advantage.weigh_signs.positive", 1.0), batch)
        assert both["advantage_T"].equal(stages(parent, batch)["advantage_T"])
        blame = stages(parent, batch)
        blame = blame.set(advantage_T=blame["advantage_T"].clamp(max=0))
        torch.testing.assert_close(
            pushed(ours, stages(ours, batch))[1], pushed(parent, blame)[1], equal_nan=True
        )


def test_signs_are_weighed_and_mistakes_refused():
    batch = flat_batch((1,) * 4, advantage_B=[2.0, -1.0, 0.0, 3.0])
    batch = batch.set(scored_B=torch.tensor([True, True, True, False]))
    part = WeighSigns(positive=0.5, negative=2.0)
    assert run(part, batch).value.tolist() == [1.0, -2.0, 0.0, 0.0]
    with pytest.raises(UserError, match="negative"):
        WeighSigns(negative=-1.0)
    algorithm = reading.replace_stage(
        grpo(), "advantage", "subtract_group_mean | weigh_signs | spread_evenly | "
        "whiten_over_batch_tokens",
    )  # fmt: skip
    with pytest.raises(UserError, match="whitening"):
        check(algorithm)
    assert Use(WeighSigns()).label == "weigh_signs"
