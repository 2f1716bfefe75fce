import pytest
import torch
from builders import flat_batch, pushed, ragged_batch, run, stages
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, FakeServices, FakeTexts, rolled_out

from strop import functional
from strop.method.check import check
from strop.method.part import Draw
from strop.method.schedule import Points
from strop.parts.rollout.sample_at_second_temperature import SampleAtSecondTemperature
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.parts.selection.swap_in_other_stages import SwapInOtherStages
from strop.recipes.aepo_arbitrary import aepo_arbitrary
from strop.recipes.grpo import grpo

# Token 0 ends; 1 is usually followed by 2, 2 by 1, each sometimes by the end.
CHAIN = by_last_token({0: (1, 0, 0), 1: (0.3, 0.1, 0.6), 2: (0.2, 0.7, 0.1)})
DRAWS = (Draw(5, 3), Draw(9, 2), Draw(5, 2, draw=1), Draw(7, 1))


SERVICES = FakeServices(
    FakeTexts({5: (1,), 7: (2, 2), 9: (2, 2)}), sampling=FakeSampling(answer_tokens=7)
)


class Recording(TableEngine):
    """Keeps the temperatures that it was asked for."""

    def start(self, id, request, source=None):
        self.asked = [*getattr(self, "asked", ()), request.temperature]
        super().start(id, request, source)


def rolled(part):
    engine = Recording(CHAIN)
    found = rolled_out(part, DRAWS, engine, SERVICES, torch.Generator().manual_seed(3))
    return found.batch, engine.asked


def sampled(part):
    return rolled(part)[0]


def test_a_share_of_the_draws_is_sampled_again_in_groups_of_their_own():
    batch = sampled(SampleAtSecondTemperature(share=0.5, previous=0.42))
    assert batch["stage_B"].tolist() == [0] * 8 + [1] * 5
    assert batch["uid_P"].tolist() == [5, 9, 5, 7, 5, 9]
    pairs = list(zip(batch["uid_P"].tolist(), batch["draw_P"].tolist(), strict=True))
    assert len(set(pairs)) == 6
    hot_T = batch["mask_T"] & (batch["stage_B"] == 1)[batch["rollout_T"]]
    for name in ("logp_sampler_T", "entropy_behavior_T"):
        assert batch[name].isnan().equal(hot_T), name
    assert batch["logp_behavior_T"].isfinite().all()
    plain = batch.keep(batch["stage_B"] == 0)
    for name, column in sampled(SampleIndependently()).columns.items():
        assert plain[name].equal(column), name


def test_draws_of_a_refill_meet_no_group_that_was_sampled_again():
    part = SampleAtSecondTemperature(share=0.5)

    def round_of(*draws):
        rng = torch.Generator().manual_seed(3)
        return rolled_out(part, draws, Recording(CHAIN), SERVICES, rng).batch

    # the refill draws prompt 5 once more
    batch = round_of(Draw(5, 3), Draw(9, 2)).join(round_of(Draw(5, 3, draw=1), Draw(7, 2)))
    found = zip(batch["group_B"].tolist(), batch["stage_B"].tolist(), strict=True)
    assert len(set(found)) == batch.size("P") == 6


def test_the_temperature_follows_the_entropy_of_the_step_before():
    for previous, temperature, stage in ((0.42, 1.2, 1), (0.5, 1.2, 1), (0.61, 0.8, 2)):
        part = SampleAtSecondTemperature(share=0.25, previous=previous)
        batch, asked = rolled(part)
        assert asked == [1.0] * 8 + [temperature] * 3
        assert set(batch["stage_B"].tolist()) == {0, stage}


@pytest.mark.parametrize(
    ("stage", "most", "swapped"), [(1, 60, 60), (2, 60, 30), (1, 150, 100), (2, 150, 50)]
)
def test_worked_example_100_good_rollouts(stage, most, swapped):
    num = 300
    stage_B = torch.where(torch.arange(num) < 150, 0, stage)
    advantage_B = torch.where(torch.arange(num) < 250, 1.0, 0.0).double()
    batch = flat_batch(
        [1] * num, stage_B=stage_B, advantage_B=advantage_B,
        rollout_uid_B=torch.randperm(num, generator=torch.Generator().manual_seed(0)),
    )  # fmt: skip
    result = run(SwapInOtherStages(most), batch)
    kept_B = result.value.gradient_T
    assert int(kept_B[:150].sum()) == 150 - swapped
    assert int(kept_B[150:250].sum()) == swapped
    assert not kept_B[250:].any()
    assert result.metrics == {"aepo/swapped_in": swapped, "aepo/hotter": float(stage == 1)}


def test_no_good_one_swaps_nothing_and_few_plain_ones_all_go():
    batch = flat_batch(
        (1, 1, 1), stage_B=torch.tensor([0, 1, 1]), advantage_B=[0.5, 0.0, 0.0],
        rollout_uid_B=torch.arange(3),
    )  # fmt: skip
    kept = run(SwapInOtherStages(), batch).value.gradient_T
    assert kept.tolist() == [True, False, False]
    good = batch.set(advantage_B=torch.tensor([0.5, 1.0, 1.0]).double())
    assert run(SwapInOtherStages(), good).value.gradient_T.tolist() == [False, True, True]


def test_advantages_of_the_other_rollouts_are_one_or_none():
    given = {
        "rewards": torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, float("nan")]).double(),
        "groups": torch.tensor([0, 0, 1, 1, 2, 2, 2]),
        "stage": torch.tensor([0, 0, 1, 1, 2, 2, 1]),
        "mask": torch.ones(7, 1, dtype=torch.bool),
    }
    found = functional.advantages("aepo_arbitrary", **given)[:, 0]
    plain = functional.advantages("grpo", **{k: v for k, v in given.items() if k != "stage"})[:, 0]
    assert found[:2].equal(plain[:2])
    assert found[2:].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]  # a uniform group has none to imitate


def test_is_its_parent_without_other_rollouts():
    batch = ragged_batch(1)
    batch = batch.set(stage_B=torch.zeros(batch.size("B"), dtype=torch.int64))
    ours, parent = aepo_arbitrary(), grpo(aggregation="token-mean")
    found, expected = (pushed(each, stages(each, batch)) for each in (ours, parent))
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1]["logp_T"], expected[1]["logp_T"])


def test_composes_with_a_target_drawn_by_hand_and_carries_entropy():
    algorithm = aepo_arbitrary(h_target=Points(((0.0, 0.6), (0.5, 0.3), (1.0, 0.3))))
    check(algorithm)
    assert algorithm.at_step(5, 20).rollout.part.target == pytest.approx(0.45)
    (control,) = algorithm.control
    told, state = {"entropy": 0.61}, control.part.init()
    result = control.part(metrics=told, state=state, knobs=algorithm.paths())
    assert algorithm.with_knobs(result.value).rollout.part.previous == 0.61
