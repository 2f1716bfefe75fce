import math

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from fakes.services import FakeServices
from models import save_model
from transformers import AutoModelForCausalLM

from strop import functional
from strop.method.check import check
from strop.method.part import Use
from strop.method.part import update as updated
from strop.parts.advantage.weight.add_capped_bonus import AddCappedBonus
from strop.parts.advantage.weight.rate_state_ranks import RateStateRanks
from strop.parts.probe.measure_state_ranks import MeasureStateRanks, changes, effective_rank
from strop.recipes.grpo import grpo
from strop.recipes.verl_erank import verl_erank
from strop.training.learner.policy import Policy
from strop.training.learner.step_models import StepModels
from strop.training.services.scoring import RunScoring
from strop.training.services.texts import Limits

CROSS = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]])
RANKS = ("rank_B", "rank_speed_B", "rank_turn_B")


def rated(values, state, part=RateStateRanks(), reward=1.0, advantage=1.0):  # noqa: B008
    """The bonus of one rollout of two tokens."""
    batch = flat_batch(
        (2,), reward_B=[reward], advantage_T=[advantage] * 2,
        **{name: [value] for name, value in zip(RANKS, values, strict=True)},
    )  # fmt: skip
    return batch.set(bonus_T=run(part, batch, state=state).value)


def test_worked_example_of_the_rank():
    assert effective_rank(CROSS) == pytest.approx(2.0, abs=1e-6)
    assert effective_rank(CROSS * torch.tensor([2.0, 1.0])) == pytest.approx(1.8899, abs=5e-5)
    assert effective_rank(CROSS + 7) == pytest.approx(2.0, abs=1e-6)
    assert effective_rank(CROSS[:1]) == 0.0
    assert changes([2, 3, 3.5, 5]) == pytest.approx((1.3889, 0.5833), abs=5e-5)


def test_rank_is_that_of_the_singular_values():
    for shape in ((7, 5), (5, 40)):
        state = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
        singular = torch.linalg.svdvals(state - state.mean(0))
        share = singular / (singular.sum() + 1e-8)
        expected = math.exp(-float((share * (share + 1e-8).log()).sum()))
        assert effective_rank(state) == pytest.approx(expected, rel=1e-6)


def test_prefixes_are_of_the_last_tokens():
    state = torch.randn(11, 6, generator=torch.Generator().manual_seed(1))
    whole, *changed = MeasureStateRanks(stride=2, window=7).ranks(state)
    assert whole == effective_rank(state)
    last = state[4:]
    expected = changes([effective_rank(last[:3]), effective_rank(last[:5]), effective_rank(last)])
    assert changed == pytest.approx(expected)
    assert MeasureStateRanks(stride=6).ranks(state)[1:] == (0.0, 0.0)


def test_worked_example_of_the_bonus():
    # 12 against 10, 1.5 against 1, 0.3 against 0.2: b = 0.7311, Phi = 0.2686
    state = {"usual": (10.0, 1.0, 0.2, 0.0), "last": (1.0,) * 4}
    capped = Use(AddCappedBonus(1.0, 2.0), columns=(("bonus_T", "bonus_T"),))
    for advantage, expected in ((1.0, 1.2686), (-1.0, -0.7314), (0.2, 0.3)):
        batch = rated((12.0, 1.5, 0.3), state, advantage=advantage)
        given = (batch["advantage_T"], batch["bonus_T"], batch["mask_T"])
        assert capped.part(*given).value.tolist() == pytest.approx([expected] * 2, abs=6e-5)
    below = rated((8.0, 0.5, 0.2), state)
    assert below["bonus_T"].tolist() == [0.0, 0.0]
    last = rated((12.0, 1.5, 0.3), state, RateStateRanks(last_token=True))["bonus_T"]
    assert last.tolist() == pytest.approx([0.0, 0.2686], abs=6e-5)
    scored = {**state, "usual": (10.0, 1.0, 0.2, 0.5)}
    half = rated((12.0, 1.5, 0.3), scored, RateStateRanks(by_score=True))["bonus_T"]
    assert half.tolist() == pytest.approx([0.2686 / 4] * 2, abs=6e-5)


def test_means_lag_one_step_and_begin_at_zero():
    part = RateStateRanks()
    state = part.init()
    batch = rated((2.0, 0.5, 0.1), state)
    assert batch["bonus_T"].tolist() == [0.0, 0.0]  # the first step has none
    state = updated(Use(part), batch, state)
    assert state == {"usual": (0.0,) * 4, "last": (2.0, 0.5, 0.1, 1.0)}
    batch = rated((4.0, 0.5, 0.1), state)
    assert batch["bonus_T"][0].item() == pytest.approx(math.tanh(5), rel=1e-6)  # +5 everywhere
    state = updated(Use(part), batch, state)
    assert state["usual"] == pytest.approx((0.6, 0.15, 0.03, 0.3))
    assert state["last"] == (4.0, 0.5, 0.1, 1.0)
    state = updated(Use(part), batch, state)  # .7 of the means and .3 of the step before
    assert state["usual"] == pytest.approx((1.62, 0.255, 0.051, 0.51))
    unscored = batch.set(scored_B=torch.tensor([False]))
    assert updated(Use(part), unscored, state) == state


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    model = AutoModelForCausalLM.from_pretrained(save_model(tmp_path_factory.mktemp("model")))
    return Policy(model, token_budget=24)


def test_states_are_the_models_own_in_any_split(policy):
    batch = ragged_batch(1, num_turns=(1, 2))
    batch = batch.set(id_T=batch["id_T"] % 20 + 3)
    part = MeasureStateRanks(stride=2)
    scoring = RunScoring(Limits(8, 8, 56, 64, 8), StepModels(policy, 1.0))
    found = run(part, batch, services=FakeServices(scoring=scoring)).value
    start = 0
    for row, size in enumerate(batch["size_B"].tolist()):
        rows = slice(start, start + size)
        ids, mask = batch["id_T"][rows], batch["mask_T"][rows]
        with torch.no_grad():
            whole = policy.model(input_ids=ids[None], output_hidden_states=True)
        expected = part.ranks(whole.hidden_states[-1][0][mask])
        assert [column[row].item() for column in found] == pytest.approx(expected, abs=1e-3)
        start += size
    assert scoring.spent == batch.size("T")
    assert len(policy.micro_batches(batch)) > 1


def test_is_grpo_where_the_bonus_has_no_room():
    rng = torch.Generator().manual_seed(0)
    batch = ragged_batch(4)
    batch = batch.set(**{name: torch.rand(10, generator=rng).double() for name in RANKS})
    plain = stages(grpo(), batch)["advantage_T"]
    torch.testing.assert_close(stages(verl_erank(), batch)["advantage_T"], plain)  # first step
    ours = verl_erank(kappa=1e12, entropy_coef=0.0)
    assert ours.terms == grpo(beta=1e-3).terms
    state = {"usual": (0.1,) * 4, "last": (0.1,) * 4}
    rating, bonus = ours.advantage[-2:]
    shown = batch.set(advantage_T=plain)
    shown = shown.set(bonus_T=run(rating.part, shown, state=state).value)
    assert (shown["bonus_T"] > 0).any()
    given = (shown["advantage_T"], shown["bonus_T"], shown["mask_T"])
    torch.testing.assert_close(bonus.part(*given).value, plain, atol=1e-9, rtol=1e-9)


def test_padded_call_and_refusals():
    given = {name.removesuffix("_B"): torch.ones(2).double() for name in RANKS}
    found = functional.advantages(
        "verl_erank", rewards=torch.tensor([1.0, 0.0]).double(), groups=torch.zeros(2).long(),
        mask=torch.ones(2, 3).bool(), **given, params={"std": "biased", "eps": 0.0},
    )  # fmt: skip
    assert found[:, 0].tolist() == pytest.approx([1, -1])
    check(verl_erank(tokens="last", by_score=True))
