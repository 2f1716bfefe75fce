import pytest
import torch

from strop import functional as F
from strop.support.errors import UserError

# Two rollouts of three steps; the second's second action is not the expert's.
EXAMPLE = {
    "groups": torch.zeros(6, dtype=torch.long),
    "trajectories": torch.tensor([0, 0, 0, 1, 1, 1]),
    "steps": torch.tensor([0, 1, 2, 0, 1, 2]),
    "step_rewards": torch.tensor([1.0, 1, 1, 1, 0.55, 1], dtype=torch.float64),
    "match": torch.tensor([1, 1, 1, 1, 0, 1], dtype=torch.bool),
}


def advantages(params=None, **changes):
    return F.advantages("ui_s1_semi_online", params=params or {}, **{**EXAMPLE, **changes})


def returns(**params):
    """D minus the mean of the two rollouts at each step."""
    return advantages({"w_E": 0.0, "mode": "mean_norm", **params})


def test_worked_example_of_the_code():
    found = advantages({"variant": "code"})
    episode = [0.4082, 0.4082, 0.4082, 0.4082, -2.0412, 0.4082]
    step = [0.7071, 0.7071, 0, -0.7071, -0.7071, 0]
    wanted = [e + s for e, s in zip(episode, step, strict=True)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("variant", "second"), [("code", [1, 0.55, 1]), ("paper", [1.275, 0.55, 1])]
)
def test_returns_stop_before_or_after_the_first_wrong_action(variant, second):
    first = [1.75, 1.5, 1]
    half = [(a - b) / 2 for a, b in zip(first, second, strict=True)]
    assert returns(variant=variant).tolist() == pytest.approx([*half, *(-h for h in half)])


def test_the_papers_episode_part_compares_whole_rollouts():
    found = advantages({"w_S": 0.0})
    sums = torch.tensor([3.0, 2.55], dtype=torch.float64)
    whole = F.advantages("grpo", rewards=sums, groups=torch.zeros(2, dtype=torch.long),
                         params={"eps": 1e-6})  # fmt: skip
    torch.testing.assert_close(found, whole.repeat_interleave(3))


def test_rows_may_come_in_any_order():
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    for variant in ("paper", "code"):
        params = {"variant": variant}
        moved = {name: column[order] for name, column in EXAMPLE.items()}
        found = F.advantages("ui_s1_semi_online", params=params, **moved)
        torch.testing.assert_close(found, advantages(params)[order])


def test_without_discount_only_the_steps_own_reward_counts():
    found = returns(gamma=0.0, variant="code")
    assert found.tolist() == pytest.approx([0, 0.225, 0, 0, -0.225, 0])


def test_a_step_that_one_rollout_has_adds_nothing_to_the_steps_part():
    fewer = {name: column[:5] for name, column in EXAMPLE.items()}
    found = F.advantages("ui_s1_semi_online", params={"w_E": 0.0}, **fewer)
    assert found[2] == 0


def test_a_single_row_keeps_its_reward_in_the_codes_episode_part():
    one = {name: column[:1] for name, column in EXAMPLE.items()}
    params = {"variant": "code"}
    assert F.advantages("ui_s1_semi_online", params=params, **one).item() == pytest.approx(1.0)


@pytest.mark.parametrize("params", [{"variant": "both"}, {"mode": "std"}])
def test_refuses_unknown_forms(params):
    with pytest.raises(UserError, match=r"(variant|mode) must be one of "):
        advantages(params)
