import dataclasses
import json
import math

import pytest
import torch
from builders import assert_same_push, flat_batch, pushed, ragged_batch, rows_learning, run, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.method.check import check
from strop.method.part import Use
from strop.parts.loss.bound.shape_by_likelihood import ShapeByLikelihood
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes.dr_grpo import dr_grpo
from strop.recipes.luffy_shaping import luffy_shaping
from strop.recipes.rl_plus import rl_plus
from strop.support.errors import UserError

QUIET = {"entropy_coef": 0.0}


@pytest.mark.parametrize(
    ("p", "f", "slope"), [(0.05, 0.333333, 0.222222), (0.3, 0.75, 0.1875), (0.9, 0.9, 0.09)]
)
def test_worked_example_through_the_padded_call(p, f, slope):
    logp = torch.tensor([[math.log(p), -1.0]], dtype=torch.float64)
    given = {"logp": logp, "logp_old": logp - 0.1, "advantages": torch.ones(1).double(),
             "mask": torch.ones(1, 2), "params": QUIET}  # fmt: skip
    off = torch.tensor([[True, False]])
    loss, _ = functional.policy_loss("luffy_shaping", off_policy_mask=off, **given)
    own = math.exp(0.1)  # no clip
    assert float(loss) == pytest.approx(-(f + own) / 2, abs=1e-6)
    weights = functional.token_weights("luffy_shaping", off_policy_mask=off, **given)
    assert weights[0].tolist() == pytest.approx([slope / 2, own / 2], abs=1e-6)


def test_given_answers_are_refused_where_nothing_plays_them():
    """A demonstration would get the reward of another rollout's turns."""
    with pytest.raises(UserError, match="grades texts as one answer, the second has turns"):
        check(dataclasses.replace(luffy_shaping(), rollout=Use(PlayTurns())))


@pytest.mark.parametrize(
    ("shape", "f"),
    [
        ("hyperbolic", lambda p: p / (p + 0.3)),
        ("power", lambda p: p**0.3),
        ("sqrt", torch.sqrt),
        ("plain", lambda p: p),
        ("logp", lambda p: 0.3 * p.log()),
        ("p_logp", lambda p: p + 0.3 * p.log()),
    ],
)
@pytest.mark.parametrize("aggregation", ["token-sum-norm", "token-mean"])
def test_gradient_is_that_of_the_published_loss(shape, f, aggregation):
    algorithm = luffy_shaping(shape=shape, gamma=0.3, aggregation=aggregation, **QUIET)
    check(algorithm)
    batch = stages(algorithm, ragged_batch(1, groups=(3, 1, 4, 3)))
    demo_T = torch.isin(batch["rollout_T"], torch.tensor([1, 5])) & batch["mask_T"]
    batch = batch.set(origin_T=torch.where(demo_T, 2, batch["origin_T"]))
    rows = rows_learning(batch)
    own = [t for t in rows if not demo_T[t]]
    others = [t for t in rows if demo_T[t]]
    whole = int(batch["max_length"]) if aggregation == "token-sum-norm" else len(rows)

    def loss_of(logp_T):
        ratio = (logp_T[own] - batch["logp_old_T"][own]).exp()
        first = (batch["advantage_T"][own] * ratio).sum()
        second = (batch["advantage_T"][others] * f(logp_T[others].exp())).sum()
        return -(first + second) / whole

    assert_same_push(algorithm, batch, loss_of)


@pytest.mark.parametrize(("weight", "push"), [(1.0, 1.0498), (0.1, 0.1498)])
def test_p_logp_is_the_probability_and_a_weighted_log_probability(weight, push):
    # d/dlogp (p + weight logp) = exp(-3) + weight
    logp = torch.full((1, 1), -3.0).double()
    given = {"logp": logp, "logp_old": logp, "advantages": torch.ones(1).double(),
             "mask": torch.ones(1, 1), "off_policy_mask": torch.ones(1, 1).bool()}  # fmt: skip
    params = {"shape": "p_logp", "gamma": weight, **QUIET}
    weights = functional.token_weights("luffy_shaping", params=params, **given)
    assert weights.item() == pytest.approx(push, abs=5e-5)
    loss, _ = functional.policy_loss("luffy_shaping", params=params, **given)
    assert float(loss) == pytest.approx(3 * weight - 0.0498, abs=5e-5)


def test_the_mean_is_of_the_joint_group_without_a_deviation():
    batch = stages(luffy_shaping(), flat_batch((1,) * 8, reward_B=[1.0] + [0.0] * 7))
    assert batch["advantage_B"].tolist() == pytest.approx([0.875] + [-0.125] * 7)


@pytest.mark.parametrize("recipe", [luffy_shaping, rl_plus])
def test_without_demonstrations_it_is_dr_grpo_with_the_sum_of_the_answers(recipe):
    batch = stages(recipe(), ragged_batch(2, groups=(4, 3)))
    batch = batch.set(logp_old_T=batch["logp_T"])
    number = len({int(batch["rollout_T"][t]) for t in rows_learning(batch)})
    ours = pushed(recipe(**QUIET), batch)[1]["logp_T"]
    assert (ours != 0).any()
    theirs = pushed(dr_grpo(), batch)[1]["logp_T"]
    torch.testing.assert_close(ours, theirs * number)


def test_every_group_trains_on_its_demonstration(tmp_path):
    lab = Lab.make(tmp_path)
    rows = [{"prompt": f"{n}+1:", "answer": str(n), "completion": "=12"} for n in range(12)]
    rows[3].pop("completion")
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    raw = lab.raw("luffy_shaping", reward="even", training={"steps": 4, "save_every": 0})
    lines = Runner().go(Runner().start(raw, tmp_path / "run")).seen
    for line in lines:
        demos = line["demonstrations/prompts"]
        assert demos + line["demonstrations/missing"] == 2
        assert line["num_rollouts"] == 8 + demos  # two prompts of four, and theirs
    assert any(line["loss/demonstrations"] != 0 for line in lines)


@pytest.mark.parametrize(
    ("shape", "weight"), [("hyperbolic", 0.1875), ("power", 0.1 * 0.3**0.1), ("p_logp", 0.4)]
)
def test_the_weight_of_a_demonstrations_token_is_logged(shape, weight):
    batch = flat_batch((1,), logp_T=[math.log(0.3)], advantage_T=[2.0])
    told = run(ShapeByLikelihood(shape), batch).metrics["shaping/weight_mean"]
    assert told.tolist() == pytest.approx([weight])
    # twice that for the advantage of 2
    leaf = batch["logp_T"].clone().requires_grad_()
    run(ShapeByLikelihood(shape), batch.set(logp_T=leaf)).value.sum().backward()
    assert leaf.grad.tolist() == pytest.approx([2 * weight])
