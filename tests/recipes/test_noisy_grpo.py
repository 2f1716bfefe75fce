import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages

from strop import functional
from strop.method import reading
from strop.method.check import check
from strop.method.part import Use
from strop.parts.advantage.baseline.fuse_noise_prior import FuseNoisePrior
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.recipes.grpo import grpo
from strop.recipes.noisy_grpo import noisy_grpo
from strop.support.errors import UserError

LEVELS = [0.0, 0.3, 0.6, 0.9]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    # deviation .5774: P = .01 / .34333 = .0291, K = .0291 / .1291 = .2256; then 0: P 1, K .9091
    [([1.0, 0, 1, 0], [1.0383, -0.6493, 0.6493, -1.0383]),
     ([0.0] * 4, [1.1618, 0.3873, -0.3873, -1.1618])],
)  # fmt: skip
def test_worked_example_through_the_padded_call(rewards, expected):
    given = {"rewards": torch.tensor(rewards).double(), "groups": torch.zeros(4).long()}
    given["noise_levels"] = torch.tensor(LEVELS).double()
    found = functional.advantages("noisy_grpo", **given)
    assert found.tolist() == pytest.approx(expected, abs=6e-5)


def test_gain_is_told():
    batch = flat_batch((1,) * 4, advantage_B=[1.0, 0, 1, 0], noise_level_B=LEVELS)
    assert run(FuseNoisePrior(), batch).metrics["noise/gain_mean"] == pytest.approx(
        0.2256, abs=5e-5
    )


def test_without_a_prior_or_with_equal_noise_it_is_grpo():
    batch = ragged_batch(1, groups=(4, 3, 5), unscored=())
    levels = torch.linspace(0, 0.9, batch.size("B")).double()
    expected = stages(grpo(eps=0.0), batch)["advantage_T"]
    for ours, noise in ((noisy_grpo(r=1e12, eps=1e-12), levels),
                        (noisy_grpo(eps=1e-12), levels * 0 + 0.3)):  # fmt: skip
        found = stages(ours, batch.set(noise_level_B=noise))["advantage_T"]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_groups_of_one_outcome():
    batch = flat_batch((1,) * 4, advantage_B=[1.0] * 4, noise_level_B=LEVELS)
    assert run(FuseNoisePrior(learn_from_uniform=False), batch).value.tolist() == [0.0] * 4
    alone = flat_batch((1,), advantage_B=[1.0], noise_level_B=[0.3])
    assert run(FuseNoisePrior(), alone).value.tolist() == [0.0]
    dropping = reading.replace_stage(noisy_grpo(), "curation", "drop_uniform_groups")
    assert dropping.curation == (Use(DropUniformGroups()),)
    with pytest.raises(UserError, match="do not go together"):
        check(dropping)
    quiet = noisy_grpo(learn_from_uniform=False)
    check(reading.replace_stage(quiet, "curation", "drop_uniform_groups"))


def test_mistakes_are_refused():
    wrongs = (({"levels": (0.1, 1.0)}, "lie in"), ({"p_alpha": 0.0}, "p_alpha"),
              ({"noise_scale": 2.0}, "scale"))  # fmt: skip
    for params, wrong in wrongs:
        with pytest.raises(UserError, match=wrong):
            noisy_grpo(**params)
