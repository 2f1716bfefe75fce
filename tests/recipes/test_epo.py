import math

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
from strop.method.check import check
from strop.method.schedule import Constant, Decay, Points
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.recipes._base import average
from strop.recipes.entropy_bonus import entropy_bonus
from strop.recipes.epo import epo
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

PAST = "terms.entropy.objective.past"


def test_worked_example():
    batch = flat_batch((3,), entropy_T=[0.1, 0.5, 1.0])
    part = RewardEntropy((0.5, 1.5), 0.5, alpha=1.0)
    penalty = batch["entropy_T"] - run(part, batch).value
    assert penalty.tolist() == pytest.approx([0.15, 0.0, 0.25])
    weight = epo().paths()["terms.entropy.objective.smooth"]
    assert weight == Decay(2.0, 1.0, 3.0)
    found = [weight(k + 1, 120) for k in (0, 30, 60, 120)]
    assert found == pytest.approx([2.0, 1.2231, 1.0498, 1.0025], abs=5e-5)


def test_worked_example_through_the_padded_call():
    # turns (0, 1) and (2) of one rollout, a single turn of the other: means .3 and 1., and .5
    mask = torch.tensor([[True, True, True], [True, False, False]])
    entropy = torch.tensor([[0.1, 0.5, 1.0], [0.5, math.nan, math.nan]]).double()
    turns = torch.tensor([[0, 0, 1], [0, -1, -1]])
    zero = torch.zeros(2, 3).double()
    params = {"lam": 1.0, "kappa_l": 0.5, "kappa_r": 1.5, "alpha": 1.0, "past": 0.5}
    loss, _ = functional.policy_loss(
        "epo", logp=zero, logp_old=zero, advantages=zero, mask=mask, entropy=entropy,
        turn_ids=turns, params={**params, "step": 31, "total_steps": 120},
    )  # fmt: skip
    smooth = ((0.15 / 2 + 0.25) / 2 + 0.0) / 2
    bonus = ((0.3 + 1.0) / 2 + 0.5) / 2
    beta = 1 + math.exp(-3 * 30 / 60)
    assert float(loss) == pytest.approx(-(bonus - beta * smooth))


def test_the_mean_of_the_earlier_steps_moves_the_corridor():
    algorithm = epo()
    (control,) = algorithm.control
    state, knobs = control.part.init(), {}
    assert algorithm.with_knobs(knobs).paths()[PAST] == -1.0
    for entropy, past in ((0.8, 0.8), (0.4, 0.6), (0.3, 0.5)):
        had = algorithm.with_knobs(knobs).paths()
        result = control.part(metrics={"entropy": entropy}, state=state, knobs=had)
        state, knobs = result.state, {**knobs, **result.value}
        assert algorithm.with_knobs(knobs).paths()[PAST] == pytest.approx(past)


def test_is_an_entropy_bonus_without_a_penalty_and_its_parent_without_a_weight():
    batch = stages(grpo(), ragged_batch(1, num_turns=(1, 1)))
    each = {"aggregation": "seq-mean-token-mean"}
    ours = epo(lam=0.03, alpha=0.0, past=0.4, **each)
    theirs = entropy_bonus(coef=0.03, framework="verl")
    found, expected = pushed(ours, batch), pushed(theirs, batch)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1]["entropy_T"], expected[1]["entropy_T"])
    first = pushed(epo(lam=0.03, **each), batch)  # nothing to compare with at the first step
    assert first[0] == pytest.approx(expected[0], rel=1e-12)
    parent = grpo(aggregation="token-mean")
    assert pushed(epo(lam=0.0), batch)[0] == pytest.approx(pushed(parent, batch)[0], rel=1e-12)


def test_gradient_is_that_of_the_published_loss():
    algorithm = epo(lam=0.3, alpha=0.5, kappa_l=0.5, kappa_r=1.5, past=0.6)
    batch = stages(algorithm, ragged_batch(1))
    rows = learning(batch)
    num_tokens = sum(len(tokens) for _, tokens in rows)

    def loss_of(logp_T, entropy_T):
        policy = bonus = 0.0
        for i, tokens in rows:
            ratio = (logp_T[tokens] - batch["logp_old_T"][tokens]).exp()
            policy = policy + clipped(ratio, batch["advantage_B"][i], 0.2, 0.2).sum() / num_tokens
            H = entropy_T[tokens]
            P = 0.5 * ((0.3 - H).relu() + (H - 0.9).relu())
            turn = batch["turn_T"][tokens]
            each = [(H - 2.0 * P)[turn == k].mean() for k in turn.unique()]
            bonus = bonus + torch.stack(each).mean() / len(rows)
        return policy - 0.3 * bonus

    # the first of one step: beta_0 = 2
    assert_same_push(algorithm, batch, loss_of, "logp_T", "entropy_T")


def test_composes_with_a_corridor_drawn_by_hand_and_refuses():
    curve = Points(((0.0, 0.6), (0.5, 0.3), (1.0, 0.3)))
    drawn = epo(past=curve)
    check(drawn)
    assert drawn.control == ()
    assert drawn.at_step(5, 20).paths()[PAST] == pytest.approx(0.45)
    assert epo(gamma=math.inf).at_step(2, 20).paths()["terms.entropy.objective.smooth"] == 1.0
    RewardEntropy(past=Constant(0.3))
    with pytest.raises(UserError, match="corridor"):
        RewardEntropy((2.0, 1.0))


def test_its_average_is_the_released_codes():
    assert epo().terms[0].average == average("token-mean")
