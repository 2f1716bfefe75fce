import json
import math

import pytest
import torch
from builders import assert_same_push, f64, flat_batch, ragged_batch, rows_learning, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.method.check import check
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.weigh_by_mixture_ratio import WeighByMixtureRatio
from strop.recipes.rl_plus import rl_plus

QUIET = {"entropy_coef": 0.0}


@pytest.mark.parametrize(
    ("p", "old", "ratio", "focus", "weight"),
    [(0.2, 0.25, 0.4571, 0.8944, 0.4089), (0.5, 0.25, 1.1429, 0.7071, 0.8081)],
)
def test_worked_example_through_the_padded_call(p, old, ratio, focus, weight):
    given = {
        "logp": f64([math.log(p), -1.0]), "logp_old": f64([math.log(old), -1.1]),
        "advantages": torch.ones(1).double(), "mask": torch.ones(1, 2),
    }  # fmt: skip
    demo = torch.tensor([[True, False]])
    params = {**QUIET, "aggregation": "token-sum"}
    weights = functional.token_weights("rl_plus", demo_mask=demo, params=params, **given)
    assert weights[0].tolist() == pytest.approx([weight, math.exp(0.1)], abs=1e-4)
    loss, _ = functional.policy_loss("rl_plus", demo_mask=demo, params=params, **given)
    assert float(loss) == pytest.approx(-(weight + math.exp(0.1)), abs=1e-4)
    assert ratio * focus == pytest.approx(weight, abs=1e-4)  # the card's two factors
    plain = {**params, "gamma": 0.0}
    alone = functional.token_weights("rl_plus", demo_mask=demo, params=plain, **given)
    assert float(alone[0, 0]) == pytest.approx(ratio, abs=1e-4)


@pytest.mark.parametrize(("normalize_std", "factor"), [(False, 1.0), (True, 2.0)])
def test_the_demonstration_is_a_member_of_its_group(normalize_std, factor):
    """R = 0, 0, 0 and the demonstration's 1; the deviation of the four is 0.5."""
    batch = flat_batch((1,) * 4, reward_B=[0.0, 0.0, 0.0, 1.0])
    batch = stages(rl_plus(normalize_std=normalize_std), batch)
    expected = [factor * a for a in (-0.25, -0.25, -0.25, 0.75)]
    assert batch["advantage_B"].tolist() == pytest.approx(expected, rel=1e-5)
    right = stages(rl_plus(), flat_batch((1,) * 4, reward_B=[1.0] * 4))
    assert not right["advantage_T"].any()  # all right: the demonstration teaches nothing


def test_the_ratio_never_passes_twice_the_uniform_part():
    logp = torch.zeros(3).double()
    old = f64(-40.0, -3.0, 0.0)
    ones = torch.ones(3).double()
    ratio = WeighByMixtureRatio(gamma=0.0)(logp, old, ones).value
    assert bool((ratio <= 4).all())
    assert ratio[0] == pytest.approx(4)
    assert ratio[2] == pytest.approx(1)


def test_gradient_is_that_of_the_published_loss():
    algorithm = rl_plus(gamma=0.7, aggregation="token-sum", clip=0.2, **QUIET)
    check(algorithm)
    batch = stages(algorithm, ragged_batch(1, groups=(3, 1, 4, 3)))
    demo_T = torch.isin(batch["rollout_T"], torch.tensor([1, 5])) & batch["mask_T"]
    batch = batch.set(origin_T=torch.where(demo_T, 2, batch["origin_T"]))
    rows = rows_learning(batch)
    own = [t for t in rows if not demo_T[t]]
    others = [t for t in rows if demo_T[t]]
    old = batch["logp_old_T"]

    def loss_of(logp_T):
        rho = (logp_T[own] - old[own]).exp()
        gain = torch.minimum(
            rho * batch["advantage_T"][own], rho.clamp(0.8, 1.2) * batch["advantage_T"][own]
        ).sum()
        p, p_old = logp_T[others].exp(), old[others].exp()
        p_w = 0.5 * p_old + 0.5
        weight = 2 * p / (p_w + p_old) * (1 - p.detach()) ** 0.7
        return -(gain + (batch["advantage_T"][others] * weight).sum())

    assert_same_push(algorithm, batch, loss_of)


def test_without_its_two_weights_a_demonstration_is_the_policys_own():
    batch = ragged_batch(3, unscored=())
    logp_T, old_T, advantage_T = batch["logp_T"], batch["logp_old_T"], batch["advantage_T"]
    ours = WeighByMixtureRatio(0.0, 0.0)(logp_T, old_T, advantage_T).value
    theirs = ClipBothSides(math.inf, math.inf)(logp_T - old_T, advantage_T).value
    rows_T = batch["mask_T"]
    torch.testing.assert_close(ours[rows_T], theirs[rows_T])


def test_demonstrations_train_beside_the_rollouts(tmp_path):
    lab = Lab.make(tmp_path)
    rows = [{"prompt": f"{n}+1:", "answer": str(n), "completion": "=12"} for n in range(12)]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw("rl_plus", reward="even", training={"steps": 4, "save_every": 0})
    lines = Runner().go(Runner().start(raw, tmp_path / "run")).seen
    for line in lines:
        assert line["demonstrations/prompts"] == 2
        assert line["num_rollouts"] == 8 + 2
        assert 0 <= line["demonstrations/ratio"] <= 4
    assert any(line["loss/demonstrations"] != 0 for line in lines)


def test_the_ratio_of_an_impossible_token_is_finite():
    for uniform in (0.5, 1.0):
        part = WeighByMixtureRatio(uniform=uniform)
        old_T = torch.tensor([-800.0, -800.0, -torch.inf, -1.0]).double()
        logp_T = torch.tensor([-800.0, -0.1, -0.1, -0.5]).double()
        ratio_T = part(logp_T, old_T, torch.ones(4).double()).metrics["demonstrations/ratio"]
        p_T, q_T = logp_T.exp(), old_T.exp()
        torch.testing.assert_close(ratio_T, 2 * p_T / ((2 - uniform) * q_T + uniform))
