"""Trained reward weights: the bilevel gradient against enumeration, differences and the formula."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from builders import NAN, flat_batch, run
from fakes.services import FakeGrading, FakeServices
from models import Lab, without_times
from runs import Runner
from torch.nn.functional import softplus

from strop.method import part as parts
from strop.method.part import Use
from strop.parts.probe.pool_states import PoolStates
from strop.parts.reward._preferred_pairs import PreferredPairs
from strop.parts.reward.learn_reward_weights import LearnRewardWeights
from strop.recipes.parl_bilevel import parl_bilevel
from strop.recipes.rloo import rloo
from strop.support.errors import UserError

# A prompt with four answers: two features of each, and what a judge thinks of them.
FEATURES = torch.tensor([[1.0, 0.0], [0.3, 1.0], [0.0, 0.4], [-0.5, 2.0]], dtype=torch.float64)
LIKED = torch.tensor([1.0, 0.0, 1.0, 0.5], dtype=torch.float64)
REFERENCE = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
NU = torch.tensor([0.4, -0.2], dtype=torch.float64)
BETA = 0.5


def best_policy(nu, beta=BETA):
    """The distribution that maximises E r_nu - beta KL to the reference."""
    return (REFERENCE.log() + FEATURES @ nu / beta).softmax(0)


def losses(nu):
    """Loss [4, 4] of every ordered pair of answers."""
    gap = (FEATURES @ nu)[:, None] - (FEATURES @ nu)[None]
    liked = (1 + (LIKED[:, None] - LIKED[None]).sign()) / 2
    return softplus(gap) - liked * gap


def upper(nu, beta=BETA):
    """The upper objective: the loss of two answers drawn by the policy that is best for nu."""
    policy = best_policy(nu, beta)
    return policy @ losses(nu) @ policy


def pairs_of(answers, nu=NU, groups=None):
    answers = list(answers)
    groups = torch.tensor(groups or [0] * len(answers))
    known = torch.ones(len(answers), dtype=torch.bool)
    return PreferredPairs.of(FEATURES[answers], LIKED[answers], groups, known, nu)


def expected(of, num, policy):
    """The mean of an estimate over every group of `num` answers that the policy may draw."""
    total = 0
    for answers in itertools.product(range(4), repeat=num):
        total = total + policy[list(answers)].prod() * of(pairs_of(answers))
    return total


def test_worked_example():
    # phi 1, 0 and 2; the second is preferred to the others, which are alike. nu = ln 3 makes
    # s(1) = 3/4, s(2) = 9/10: ordered pairs 01, 10, 02, 20, 12, 21, each of share 1/6
    nu = torch.tensor([math.log(3)], dtype=torch.float64)
    features = torch.tensor([[1.0], [0.0], [2.0]])
    liked, group, known = torch.tensor([0.0, 1.0, 0.0]), torch.zeros(3).long(), torch.ones(3).bool()
    found = PreferredPairs.of(features, liked, group, known, nu)
    explicit = (2 * 0.75 * 1 + 2 * 0.9 * 2 + 2 * (0.25 - 0.5) * (1 - 2)) / 6
    assert found.explicit().tolist() == pytest.approx([explicit])
    wrong, far = math.log(4), math.log(10)  # -log s(-1), -log s(-2)
    alike = math.log(4) - math.log(3) / 2
    # loss of 01, 02, 12 times phi_i + phi_j - 2 phi_k, each pair twice of six
    implicit = (wrong * (1 - 4) + alike * (3 - 0) + far * (2 - 2)) / 3
    assert found.implicit().tolist() == pytest.approx([implicit])
    assert found.metrics()["parl/loss"] == pytest.approx((wrong + far + alike) / 3)
    assert found.metrics()["parl/agreement"] == 0


@pytest.mark.parametrize("num", [3, 4])
def test_the_estimate_is_the_gradient_of_the_upper_objective_on_average(num):
    policy = best_policy(NU)
    explicit = expected(PreferredPairs.explicit, num, policy)
    implicit = expected(PreferredPairs.implicit, num, policy)
    differences = []
    for m in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[m] = 1e-5
        differences.append(float(upper(NU + step) - upper(NU - step)) / 2e-5)
    assert (explicit + implicit / BETA).tolist() == pytest.approx(differences, abs=1e-8)
    assert implicit.abs().min() > 1e-3  # it is no small thing


SOME = {
    # cosine of the implicit terms, the one in use over the other in length, cosine of the whole
    "every logit": (torch.eye(4), 1.0, 1.0, 1.0),
    "along the rewards": (FEATURES, 1.0, 1.0, 1.0),
    "the first two": ([[1, 0], [0, 1], [0, 0], [0, 0]], 0.9915, 0.7183, 0.9999),
    "the first and third": ([[1, 0], [0, 0], [0, 1], [0, 0]], 0.6958, 2.4726, 0.9812),
    "two differences": ([[1, 0], [-1, 0], [0, 1], [0, -1]], -0.6617, 1.1898, 0.9172),
}


@pytest.mark.parametrize("name", SOME)
def test_the_response_in_use_beside_the_inverse_hessian(name):
    """grad = d/dnu G - (d2J / dnu dw) (d2J / dw2)^-1 d/dw G at the optimum w, of logits that move
    in some directions: log ref + D w. Equal where they can follow the reward; else another vector.
    """
    directions, cosine, length, cosine_of_whole = SOME[name]
    directions = torch.as_tensor(directions).double()

    def policy_of(w):
        return (REFERENCE.log() + directions @ w).softmax(0)

    def lower(w, nu):
        policy = policy_of(w)
        price = (policy * (policy.log() - REFERENCE.log())).sum()
        return policy @ (FEATURES @ nu) - BETA * price

    def outer(w, nu):
        policy = policy_of(w)
        return policy @ losses(nu) @ policy

    w = torch.zeros(directions.shape[1], dtype=torch.float64)
    for _ in range(400):
        leaf = w.clone().requires_grad_()
        w = w + torch.autograd.grad(lower(leaf, NU), leaf)[0]
    hessian = torch.autograd.functional.hessian(lower, (w, NU))
    of_w, of_nu = torch.autograd.functional.jacobian(outer, (w, NU))
    response = torch.linalg.pinv(hessian[0][0]) @ of_w  # adding a constant changes no policy
    exact = -hessian[1][0] @ response
    explicit = expected(PreferredPairs.explicit, 3, policy_of(w))
    implicit = expected(PreferredPairs.implicit, 3, policy_of(w)) / BETA
    torch.testing.assert_close(explicit, of_nu, rtol=1e-8, atol=1e-10)

    def cosine_of(one, other):
        return float(one @ other / one.norm() / other.norm())

    assert cosine_of(implicit, exact) == pytest.approx(cosine, abs=1e-4)
    assert float(implicit.norm() / exact.norm()) == pytest.approx(length, abs=1e-4)
    assert cosine_of(explicit + implicit, of_nu + exact) == pytest.approx(cosine_of_whole, abs=1e-4)
    if length == 1:
        torch.testing.assert_close(implicit, exact, rtol=1e-7, atol=1e-10)


def test_prompts_count_alike_and_are_compared_within():
    together = pairs_of([0, 1, 2, 3, 1, 0, 2], groups=[0, 1, 0, 1, 1, 0, 1])
    one, other = pairs_of([0, 2, 0]), pairs_of([1, 3, 1, 2])
    for name in ("explicit", "implicit"):
        whole = getattr(together, name)()
        halves = (getattr(one, name)() + getattr(other, name)()) / 2
        torch.testing.assert_close(whole, halves)


GRADING = FakeGrading(reward_names=("a", "preference", "b"), reward_weights=(0.4, 0.0, -0.2))
SERVICES = FakeServices(grading=GRADING)


def batch_of(answers, **columns):
    rewards = torch.stack([FEATURES[answers, 0], LIKED[answers], FEATURES[answers, 1]], dim=1)
    uids = list(range(len(answers)))
    return flat_batch(
        (1,) * len(answers), **{"reward_BM": rewards, "rollout_uid_B": uids, **columns}
    )


def called(part, batch, state=None):
    result = run(part, batch, services=SERVICES, state=state or part.init())
    written = parts.write(batch, Use(part), result)
    return written, result, parts.update(Use(part), written, result.state)


def test_a_step_of_the_weights_by_hand_and_every_other_step():
    answers = [0, 1, 2, 3, 0]
    part = LearnRewardWeights(lr=0.3, decay=0.1, beta=BETA, every=2)
    batch, result, state = called(part, batch_of(answers))
    torch.testing.assert_close(batch["reward_B"], FEATURES[answers] @ NU)
    assert result.metrics["parl/weight/a"] == 0.4
    assert result.metrics["parl/weight/b"] == -0.2
    assert state["weights"].tolist() == [0.4, -0.2]  # the first of two steps
    _, _, state = called(part, batch_of(answers), state)
    pairs = pairs_of(answers)
    gradient = pairs.explicit() + pairs.implicit() / BETA + 0.1 * NU
    torch.testing.assert_close(state["weights"], NU - 0.3 * gradient)
    assert state["steps"] == 2
    plain = LearnRewardWeights(lr=0.3, beta=0.0)
    _, _, state = called(plain, batch_of(answers))
    torch.testing.assert_close(state["weights"], NU - 0.3 * pairs.explicit())


def test_rollouts_without_preference_or_score_are_in_no_pair():
    whole = batch_of([0, 1, 2, 3, 1])
    rewards = whole["reward_BM"].clone()
    rewards[3, 1], rewards[4, 0] = NAN, NAN
    scored = torch.tensor([True, True, True, True, False])
    part = LearnRewardWeights()
    _, _, state = called(part, whole.set(reward_BM=rewards, scored_B=scored))
    _, _, fewer = called(part, batch_of([0, 1, 2]))
    torch.testing.assert_close(state["weights"], fewer["weights"])
    _, _, alone = called(part, batch_of([0, 1], groups=(0, 1)))
    assert alone["weights"].tolist() == [0.4, -0.2]
    pair = pairs_of([0, 1])
    assert pair.implicit().tolist() == [0, 0]  # of two rollouts nobody else's mean is known
    assert pair.explicit().abs().min() > 0


def test_weights_learn_what_is_preferred_by_the_policy_that_follows_them():
    nu, before = NU.clone(), float(upper(NU, 1.0))
    rng = torch.Generator().manual_seed(0)
    for _ in range(300):
        answers = torch.multinomial(best_policy(nu, 1.0), 16, replacement=True, generator=rng)
        found = pairs_of(answers.tolist(), nu)
        nu = nu - 0.1 * (found.explicit() + found.implicit())
    assert float(upper(nu, 1.0)) < before - 0.05


def test_a_run_that_lacks_the_preference_is_told():
    grading = FakeServices(
        grading=FakeGrading(reward_names=("a", "b", "c"), reward_weights=(1.0, 1.0, 1.0))
    )
    part, batch = LearnRewardWeights(), batch_of([0, 1, 2], rollout_uid_B=[7, 8, 9])
    with pytest.raises(UserError, match="no reward function is called preference or logs it"):
        run(part, batch, services=grading, state=part.init())
    alone = FakeServices(grading=FakeGrading(reward_names=("preference",), reward_weights=(1.0,)))
    with pytest.raises(UserError, match="no reward that it could weigh"):
        run(part, batch, services=alone, state=part.init())
    grading.log.log_rollouts("preference", {7: 1.0, 8: None})
    found = run(part, batch, services=grading, state=part.init())
    assert found.value[1][0] == 1
    assert found.value[1][1:].isnan().all()
    assert found.value[2].shape == (3, 3)  # all rewards are weighed, preference is none of them


def test_the_recipe_is_rloo_with_another_reward():
    ours, parent = parl_bilevel(), rloo(beta=0.05)
    assert (ours.advantage, ours.terms) == (parent.advantage, parent.terms)
    assert parl_bilevel(implicit=False).reward[1].part.beta == 0
    assert parl_bilevel(implicit=False).advantage == parent.advantage


REWARDS = """
def short(completions, **columns):
    return [1 - len(text) / 6 for text in completions]


def digits(completions, **columns):
    return [sum(c.isdigit() for c in text) / 6 for text in completions]


def preference(completions, **columns):
    return [float(sum(c in "+-*/" for c in text)) for text in completions]
"""


def test_a_head_on_states_learns_what_no_given_reward_says():
    states = torch.randn(40, 6, generator=torch.Generator().manual_seed(3))
    liked = states @ torch.tensor([1.0, -2.0, 0.0, 0.5, 0.0, 0.0])
    batch = flat_batch((1,) * 40, rollout_uid_B=[*range(40)], reward_BM=liked[:, None],
                       groups=[number // 8 for number in range(40)], state_BM=states)  # fmt: skip
    alone = FakeServices(grading=FakeGrading(reward_names=("preference",), reward_weights=(0.0,)))
    part, state = LearnRewardWeights(lr=1.0, beta=0.0), LearnRewardWeights().init()
    found = []
    for _ in range(30):
        result = run(part, batch, services=alone, state=state)
        found.append(result.metrics)
        state = parts.update(Use(part), parts.write(batch, Use(part), result), result.state)
    assert (found[0]["parl/head"], found[0]["parl/agreement"]) == (0, 0)  # all answers are alike
    assert found[-1]["parl/agreement"] > 0.95
    assert found[-1]["parl/head"] > 1


def test_an_answer_is_pooled_over_its_own_tokens():
    states = {0: torch.tensor([[1.0, 0.0, 2.0, 3.0], [3.0, 4.0, 2.0, 1.0]]), 1: torch.ones(1, 4)}
    scoring = SimpleNamespace(hidden=lambda batch: iter([([1, 0], (states[1], states[0]))]))
    pooled = PoolStates()(flat_batch((2, 1)), scoring)
    assert pooled.tolist() == [[1.0, 1.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5]]


@pytest.mark.parametrize("head", [False, True])
def test_weights_are_in_the_checkpoint(tmp_path, head):
    lab, runner = Lab.make(tmp_path), Runner()
    file = tmp_path / "three.py"
    file.write_text(REWARDS, encoding="utf-8")
    raw = lab.raw(f"parl_bilevel(head={head})", training={"steps": 4, "save_every": 2})
    names = ("short", "digits", "preference")
    raw["reward"] = {"functions": [f"{file}:{name}" for name in names], "weights": [1.0, 1.0, 0.0]}
    runner.whole(raw, tmp_path / "whole")
    half = runner.start(raw, tmp_path / "half")

    def stop(run):
        run.stop_asked = run.done == 2

    runner.go(half, stop)
    again = runner.resume(tmp_path / "half")
    runner.go(again)
    lines = without_times(tmp_path / "whole")
    assert lines == without_times(tmp_path / "half")
    weights = [line["parl/weight/short"] for line in lines if line["step"] > 0]
    assert weights[0] == 1.0
    assert len(set(weights)) == 4
    lengths = [line["parl/head"] for line in lines if line["step"] > 0] if head else [0, 1]
    assert lengths[0] == 0
    assert min(lengths[1:]) > 0
