import json
import math

import pytest
import torch
from builders import flat_batch, run
from models import Lab
from runs import Runner
from torch.nn.functional import logsigmoid

from strop import functional
from strop.parts.loss.bound.prefer_above_threshold import PreferAboveThreshold
from strop.recipes.dpo import dpo
from strop.recipes.skywork_mpo import THRESHOLD, skywork_mpo
from strop.support.errors import UserError


def random_pairs(seed=0, width=6):
    rng = torch.Generator().manual_seed(seed)
    found = {}
    for side in ("chosen", "rejected"):
        found[f"mask_{side}"] = torch.rand(4, width, generator=rng) < 0.6
        found[f"mask_{side}"][:, 1] = True
        for name in ("logp", "logp_ref"):
            drawn = torch.rand(4, width, generator=rng, dtype=torch.float64)
            found[f"{name}_{side}"] = -2 * drawn - 0.1
    return found


def plain(given, beta, delta, w1, w2, w3):
    """The loss of the paper, written out."""

    def reward(side):
        lead = given[f"logp_{side}"] - given[f"logp_ref_{side}"]
        return beta * torch.where(given[f"mask_{side}"], lead, 0).sum(1)

    chosen, rejected = reward("chosen"), reward("rejected")
    mask = given["mask_chosen"]
    preference = -logsigmoid(chosen - rejected)
    quality = -logsigmoid(chosen - delta) - logsigmoid(-(rejected - delta))
    nll = -torch.where(mask, given["logp_chosen"], 0).sum(1) / mask.sum(1)
    return (w1 * preference + w2 * quality + w3 * nll).mean()


@pytest.mark.parametrize(
    "params", [{}, {"beta": 0.4, "w1": 0.3, "w2": 1.5, "w3": 0.2}, {"w1": 0.0, "w3": 0.0}]
)
def test_loss_and_gradient_are_those_of_the_paper(params):
    options = {"beta": 0.1, "w1": 0.8, "w2": 0.2, "w3": 1.0} | params
    given = random_pairs()
    names = ("logp_chosen", "logp_rejected")
    ours, theirs = ({n: given[n].clone().requires_grad_() for n in names} for _ in range(2))
    found, _ = functional.policy_loss("skywork_mpo", params=params, **{**given, **ours})
    expected = plain({**given, **theirs}, delta=0.0, **options)
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    for name in names:
        torch.testing.assert_close(ours[name].grad, theirs[name].grad)


def test_worked_example_of_the_threshold():
    # one token each, beta 1: r = 1.2 and 0.4; delta 0.8 lies between the two
    one = torch.ones(1, 1)
    given = {"logp_chosen": -0.3 * one, "logp_ref_chosen": -1.5 * one, "mask_chosen": one,
             "logp_rejected": -0.6 * one, "logp_ref_rejected": -1.0 * one,
             "mask_rejected": one}  # fmt: skip
    only = {"beta": 1.0, "w1": 0.0, "w2": 1.0, "w3": 0.0}
    loss, metrics = functional.policy_loss("skywork_mpo", params=only, **given)
    assert metrics["preference/reward_mean"] == pytest.approx(0.8)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-1.2)) + math.log1p(math.exp(0.4)))
    weights = functional.token_weights("skywork_mpo", params=only, **given)
    at_0 = [1 / (1 + math.exp(1.2)), -1 / (1 + math.exp(-0.4))]
    assert weights[:, 0].tolist() == pytest.approx(at_0)


@pytest.mark.parametrize("delta", [0.0, 0.8, -2.0])
def test_threshold_on_two_pairs_of_one_prompt(delta):
    """Rewards 1.2 and -.3 preferred, .4 rejected: the mean over the two pairs."""
    batch = flat_batch((1, 2, 1), logp_T=[-0.3, -1.0, -1.0, -0.6],
                       logp_ref_T=[-1.5, -0.8, -0.9, -1.0],
                       preferred_B=[1, 1, -1], group_B=[0, 0, 0])  # fmt: skip
    found = run(PreferAboveThreshold(1.0, delta), batch)
    gains = [-math.log1p(math.exp(delta - r)) - math.log1p(math.exp(0.4 - delta))
             for r in (1.2, -0.3)]  # fmt: skip
    mean = sum(gains) / 2
    assert found.value.tolist() == pytest.approx([mean, mean / 2, mean / 2, mean])
    assert found.metrics["preference/reward_mean"] == pytest.approx((0.45 + 0.4) / 2)


def test_the_threshold_is_a_knob():
    algorithm = skywork_mpo().with_knobs({THRESHOLD: 0.5})
    assert {term.name: term for term in algorithm.terms}["quality"].objective.part.delta == 0.5
    assert skywork_mpo(w2=0.0).control == ()


def test_without_the_two_terms_it_is_dpo():
    assert skywork_mpo(w1=1.0, w2=0.0, w3=0.0) == dpo()
    assert skywork_mpo(w1=1.0, w2=0.0, w3=0.0, beta=0.3) == dpo(beta=0.3)
    with pytest.raises(UserError, match="beta"):
        PreferAboveThreshold(0.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab.make(tmp_path_factory.mktemp("lab"))
    rows = [json.loads(line) for line in lab.data.read_text(encoding="utf-8").splitlines()]
    pairs = [{**row, "chosen": "1+1", "rejected": "2"} for row in rows]
    lab.data.write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    return lab


def raw_of(lab):
    raw = lab.raw("skywork_mpo", training={"steps": 4, "save_every": 2})
    raw["algorithm"]["sampling.num_rollouts"] = 2
    return raw


def lines_of(folder):
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, text.splitlines()) if "loss/quality" in line]


def test_the_threshold_is_the_mean_of_earlier_steps_also_after_a_restart(lab, tmp_path):
    runner = Runner()
    runner.whole(raw_of(lab), tmp_path / "whole")
    started = runner.start(raw_of(lab), tmp_path / "broken")

    def stop(run):
        run.stop_asked = run.done == 3

    runner.go(started, at_step=stop)
    runner.go(runner.resume(tmp_path / "broken"))
    whole, broken = lines_of(tmp_path / "whole"), lines_of(tmp_path / "broken")
    rewards = [line["preference/reward_mean"] for line in whole]
    assert [line["preference/reward_mean"] for line in broken] == rewards
    assert [line["loss/quality"] for line in broken] == [line["loss/quality"] for line in whole]
    assert rewards[0] == pytest.approx(0, abs=1e-6)  # policy and reference are the same
    assert abs(rewards[-1]) > 1e-4
    for n, line in enumerate(whole, 1):
        assert line["entropy_control/carried"] == pytest.approx(sum(rewards[:n]) / n)
