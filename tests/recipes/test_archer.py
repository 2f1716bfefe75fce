import pytest
import torch

from strop import functional as F
from strop.method import part as parts
from strop.method.check import check
from strop.padded.given import PaddedCall
from strop.padded.stages import stage_of
from strop.recipes.archer import archer

EXAMPLE = {
    "turn_rewards": torch.tensor([0.0]).double(), "done": torch.tensor([0]),
    "q1": torch.tensor([0.6]).double(), "q2": torch.tensor([0.5]).double(),
    "v1": torch.tensor([0.4]).double(), "v2": torch.tensor([0.45]).double(),
    "target_q1_at_policy_action": torch.tensor([0.7]).double(),
    "target_q2_at_policy_action": torch.tensor([0.3]).double(),
    "target_v1_next": torch.tensor([0.5]).double(), "target_v2_next": torch.tensor([0.2]).double(),
    "trajectories": torch.tensor([0]),
}  # fmt: skip


def test_worked_example():
    assert F.advantages("archer", **EXAMPLE).tolist() == pytest.approx([0.1])


def test_worked_example_with_a_value_of_each_token():
    # A = .1 on both tokens of the turn; values .04 and .25 leave .06 and -.15
    values = torch.tensor([[0.04, 0.25, 9.0]]).double()
    given = {**EXAMPLE, "mask": torch.tensor([[1, 1, 0]]), "value_token": values}
    params = {"token_baseline": True}
    found = F.advantages("archer", params=params, **given)
    assert found[0].tolist() == pytest.approx([0.06, -0.15, 0.0])
    stage = stage_of(PaddedCall("advantages", "archer", given, given.pop("mask"), params))
    batch = stage.batch
    for use in stage.algorithm.advantage:
        batch = parts.write(batch, use, parts.call(use, batch))
    wanted = batch["return_value_token_T"][batch["mask_T"]]
    assert wanted.tolist() == pytest.approx([0.1, 0.1])


def test_the_value_of_a_token_learns_the_advantage_on_fresh_actions():
    algorithm = archer(token_baseline=True)
    check(algorithm)
    term = next(term for term in algorithm.terms if term.name == "value_token")
    assert term.learner == "critic"
    assert dict(term.objective.columns) == {
        "value_T": "value_token_T", "return_T": "return_value_token_T",
    }  # fmt: skip
    assert term.on.part.origins == (0,)
    # the squared error that the code averages over tokens
    value = torch.tensor([0.3]).double().requires_grad_()
    loss = -term.coef * term.objective.part(value, torch.tensor([0.1]).double()).value
    assert loss.item() == pytest.approx(0.04)


def columns(params=None, **changes):
    """All that the advantage chain writes."""
    stage = stage_of(PaddedCall("advantages", "archer", {**EXAMPLE, **changes}, params=params))
    batch = stage.batch
    for use in stage.algorithm.advantage:
        batch = parts.write(batch, use, parts.call(use, batch))
    return batch


def test_targets_are_each_critics_own_and_do_not_take_the_minimum():
    found = columns()
    assert found["return_value_after_T"].tolist() == pytest.approx([0.475])
    assert found["return_value_after_second_T"].tolist() == pytest.approx([0.19])
    assert found["return_value_T"].tolist() == pytest.approx([0.7])
    assert found["return_value_second_T"].tolist() == pytest.approx([0.3])
    done = columns({"gamma": 0.9}, done=torch.tensor([1]), turn_rewards=torch.tensor([2.0]))
    assert done["return_value_after_T"].tolist() == pytest.approx([2.0])


def test_loss_is_the_policy_gradient_of_turns():
    logp = -torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).double()
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
    advantage = torch.tensor([0.5, -1.0, 2.0]).double()
    loss, _ = F.policy_loss("archer", logp=logp, advantages=advantage, mask=mask)
    assert float(loss) == pytest.approx(-float((advantage * (logp * mask).sum(1)).mean()))


def test_one_turn_and_an_exact_critic_is_reinforce_with_the_groups_mean():
    rewards = torch.tensor([1.0, 0, 0, 1, 1]).double()
    groups = torch.tensor([0, 0, 1, 1, 1])
    mean = torch.tensor([0.5, 0.5, 2 / 3, 2 / 3, 2 / 3]).double()
    rows = torch.arange(5)
    critic = {"q1": rewards, "q2": rewards, "v1": mean, "v2": mean}
    unused = {name: torch.zeros(5).double() for name in EXAMPLE if name.startswith("target")}
    found = F.advantages("archer", turn_rewards=rewards, done=torch.ones(5), trajectories=rows,
                         params={"gamma": 1.0}, **critic, **unused)  # fmt: skip
    plain = F.advantages("grpo", rewards=rewards, groups=groups, params={"normalize_std": False})
    torch.testing.assert_close(found, plain)


def test_policy_and_states_learn_from_fresh_actions_and_actions_from_stored_ones():
    algorithm = archer()
    assert [use.part.origins for use in algorithm.selection] == [(0,)]
    origins = {use.label: use.part.origins for use in algorithm.probes}
    for which in ("", "_second"):
        assert origins[f"read_value{which}"] == (0,)
        assert origins[f"read_value_after{which}"] == (4,)
    on = {term.name: term.on.columns for term in algorithm.terms if term.on is not None}
    assert on == {name: (("learning_T", f"at_{name}_T"),) for name in (
        "value", "value_second", "value_after", "value_after_second")}  # fmt: skip


def test_composes():
    algorithm = archer(critic_epochs=7, warmup_steps=3, num_drawn=5, capacity=11, actor_epochs=2)
    check(algorithm)
    assert algorithm.plan.part.num_policy_updates == 2
    assert archer().plan.part.num_policy_updates == 3
    assert algorithm.plan.part.num_critic_updates == 7
    assert algorithm.curation[0].part.capacity == 11
    assert algorithm.value_columns() == (
        "value_T", "value_after_T", "value_after_second_T", "value_second_T",
    )  # fmt: skip
