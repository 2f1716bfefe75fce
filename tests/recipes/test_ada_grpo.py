import pytest
import torch
from builders import flat_batch, run, stages
from fakes.services import FakeServices, FakeTexts

from strop import functional
from strop.parts.advantage.scale.boost_rare_formats import BoostRareFormats
from strop.parts.reward.note_formats import NoteFormats
from strop.recipes.ada_grpo import ada_grpo
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

# five long answers (right: 3), one direct (right), two as code (right: 1)
REWARDS = torch.tensor([1.0, 1, 0, 1, 0, 1, 0, 1]).double()
FORMATS = torch.tensor([1, 1, 1, 1, 1, 0, 2, 2])
GIVEN = {"rewards": REWARDS, "groups": torch.zeros(8, dtype=torch.int64), "formats": FORMATS}


def call(step, name="ada_grpo", **given):
    params = {} if name == "grpo" else {"step": step, "total_steps": 100}
    return functional.advantages(name, params=params, **{**GIVEN, **given})


def test_worked_example_through_the_padded_call():
    long, wrong = -0.1827, -0.7675
    expected = [long, long, wrong, long, wrong, 2.1564, wrong, 0.6944]
    assert call(0).tolist() == pytest.approx(expected, abs=1e-4)
    plain = functional.advantages("grpo", rewards=REWARDS, groups=GIVEN["groups"])
    assert plain[0] == pytest.approx(0.7246, abs=1e-4)


@pytest.mark.parametrize(
    ("step", "alpha"), [(0, (1.6, 8.0, 4.0)), (50, (1.3, 4.5, 2.5)), (100, (1.0, 1.0, 1.0))]
)
def test_factors_of_the_worked_example(step, alpha):
    """By the advantages of grpo on the boosted rewards."""
    factor = torch.tensor([alpha[0]] * 5 + [alpha[1]] + [alpha[2]] * 2).double()
    boosted = functional.advantages("grpo", rewards=factor * REWARDS, groups=GIVEN["groups"])
    torch.testing.assert_close(call(step), boosted)


def test_one_format_is_grpo_at_every_step():
    plain = functional.advantages("grpo", rewards=REWARDS, groups=GIVEN["groups"])
    for step in (1, 60):
        assert call(step, formats=torch.full((8,), 2)).equal(plain)


def test_an_unknown_format_earns_nothing_and_unscored_ones_count_nowhere():
    unknown = FORMATS.clone()
    unknown[5] = -1
    zero = REWARDS.clone()
    zero[5] = 0
    assert call(0, formats=unknown).equal(call(0, formats=unknown, rewards=zero))
    void = REWARDS.clone()
    void[6] = torch.nan
    found = call(0, rewards=void)
    rest = [i for i in range(8) if i != 6]
    alone = call(0, rewards=REWARDS[rest], groups=GIVEN["groups"][rest], formats=FORMATS[rest])
    assert found[6] == 0
    torch.testing.assert_close(found[rest], alone)


def test_rewards_outside_0_and_1_are_refused():
    with pytest.raises(UserError, match="between 0 and 1, one is -1"):
        call(1, rewards=2 * REWARDS - 1)


def test_composes_and_ends_as_grpo():
    batch = flat_batch((1,) * 8, reward_B=REWARDS.tolist(), format_B=FORMATS.tolist(),
                       step=9, num_steps=9)  # fmt: skip
    ours, theirs = stages(ada_grpo(), batch), stages(grpo(), batch)
    torch.testing.assert_close(ours["advantage_T"], theirs["advantage_T"])


def test_forms_are_told_by_marks():
    texts = ["<ANSWER>4", "<CODE>x<ANSWER>", "<COT>a<ANSWER>", "<LONG_COT><COT><ANSWER>", "none"]
    services = FakeServices(FakeTexts(said=texts))
    batch = flat_batch((1,) * 5, rollout_uid_B=list(range(5)))
    found = run(NoteFormats(needed="<ANSWER>"), batch, services=services).value
    assert found.tolist() == [0, 2, 3, 1, -1]
    assert run(NoteFormats(), batch, services=services).value.tolist() == [0, 2, 3, 1, 0]
    near = run(NoteFormats(within=8), batch, services=services).value
    assert near.tolist() == [0, 2, 3, 0, 0]


def test_the_mean_boost_is_logged():
    # of 4 two have a form and one another: 2, 2 and 4; the unknown one does not count
    batch = flat_batch((1,) * 4, reward_B=[1.0, 0.0, 1.0, 1.0], format_B=[1, 1, 2, -1],
                       step=0, num_steps=10)  # fmt: skip
    assert run(BoostRareFormats(), batch).metrics == {"formats/boost_mean": pytest.approx(8 / 3)}
