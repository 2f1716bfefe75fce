"""Known facts about policy-gradient estimators, reproduced by enumeration."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from strop.auditing.bench import Bench, Uncountable
from strop.auditing.estimate import Audit, Limits, audit
from strop.auditing.tree import Tree, random_policy, random_tree
from strop.auditing.vary import Setting, compose, one
from strop.method import notation
from strop.method.part import Selected, Use
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.training.settings import config

BANDIT = Tree(1, 2, torch.tensor([[0.0, 1.0]]))


def audited(recipe: str, tree: Tree, success: float = 0.3, **options) -> Audit:
    theta = options.pop("theta", None)
    theta = random_policy(tree, success, seed=3) if theta is None else theta
    algorithm = notation.recipe(recipe)
    size = next(v for k, v in algorithm.paths().items() if k.endswith("num_rollouts"))
    return audit(algorithm, tree, theta, group_size=size, **options)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("group", "depth"), [(2, 3), (5, 2)])
def test_leave_one_out_is_unbiased(group: int, depth: int, ragged: bool) -> None:
    tree = random_tree(depth, 2, ragged=ragged, seed=group)
    found = audited(f"rloo(num_rollouts={group})", tree, 0.4)
    assert found.exact
    assert found.scale.value == pytest.approx(1, abs=1e-5)
    assert found.bias.value == pytest.approx(0, abs=1e-5)


def test_leave_one_out_over_turns_is_unbiased() -> None:
    tree = random_tree(3, 2, ragged=True, seed=4)
    found = audited("trloo(num_rollouts=3)", tree)
    assert (found.scale.value, found.bias.value) == pytest.approx((1, 0), abs=1e-5)


@pytest.mark.parametrize("group", [2, 4, 6])
def test_the_groups_mean_shortens_the_gradient(group: int) -> None:
    tree = random_tree(3, 2, ragged=True, seed=1)
    found = audited(f"dr_grpo(num_rollouts={group})", tree)  # which divides by the longest answer
    assert found.scale.value * tree.depth == pytest.approx((group - 1) / group, abs=1e-5)
    assert found.cosine.value == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_division_by_the_deviation_weighs_by_difficulty(p: float) -> None:
    """E sqrt(k/G (1 - k/G)) / (p (1 - p)): most for prompts nearly always or never solved."""
    group = 4
    chance = [math.comb(group, k) * p**k * (1 - p) ** (group - k) for k in range(group + 1)]
    spread = sum(c * math.sqrt(k / group * (1 - k / group)) for k, c in enumerate(chance))
    found = audited(f'grpo(num_rollouts={group}, std="biased")', BANDIT, p)
    assert found.scale.value == pytest.approx(spread / (p * (1 - p)), rel=2e-4)  # its eps


def test_entropy_changes_by_the_covariance() -> None:
    """On free logits dH = -Cov_p(log p, p A), first order (arXiv 2505.22617)."""
    tree = Tree(1, 4, torch.tensor([[0.0, 1.0, 0.3, 0.7]]))
    theta = random_policy(tree, seed=5)
    p, r = theta[:, 0].softmax(0), tree.rewards_PL[0].double()
    step = p * (r - p @ r)
    covariance = p @ (p.log() * step) - (p @ p.log()) * (p @ step)
    found = audited("rloo(num_rollouts=3)", tree, theta=theta)
    assert found.entropy_change.value == pytest.approx(-float(covariance), rel=1e-5)


@dataclass(frozen=True)
class KeepSign:
    """Learn from one sign of the advantage."""

    kind = "selection"
    sign: int = 1

    def __call__(self, advantage_T: Tensor, gradient_T: Tensor) -> Selected:
        kept_T = gradient_T & (advantage_T * self.sign > 0)
        return Selected(kept_T, torch.ones_like(kept_T), "other_sign")


def halves(tree: Tree, theta: Tensor, **options) -> list[Audit]:
    """What is learnt from right answers, and from wrong ones."""
    whole = options.pop("whole", notation.recipe("dr_grpo(num_rollouts=2)"))
    found = [dataclasses.replace(whole, selection=(Use(KeepSign(sign)),)) for sign in (1, -1)]
    return [audit(each, tree, theta, group_size=2, **options) for each in found]


def price(found: Audit) -> float:
    """Entropy for a unit of success, first order."""
    return found.entropy_change.value / found.success_change.value


def test_right_and_wrong_answers_have_one_expected_gradient_on_policy() -> None:
    """So no rule by sign steers entropy, first order: what a unit of success costs is the same."""
    tree = random_tree(2, 3, share=0.3, seed=2)
    theta = random_policy(tree, 0.35, seed=2)
    whole = audit(notation.recipe("dr_grpo(num_rollouts=2)"), tree, theta, group_size=2)
    right, wrong = halves(tree, theta)
    for half in (right, wrong):
        assert half.cosine.value == pytest.approx(1, abs=1e-6)
        assert price(half) == pytest.approx(price(whole))
    share = right.scale.value / whole.scale.value
    assert share == pytest.approx(1 - 0.35, abs=1e-5)  # the rarer sign is the louder one


def test_off_policy_the_halves_part() -> None:
    tree = random_tree(2, 3, share=0.3, seed=2)
    theta = random_policy(tree, 0.35, seed=2)
    behaviour = random_policy(tree, 0.35, seed=7)
    right, wrong = halves(tree, theta, behaviour=behaviour)
    assert abs(price(right) - price(wrong)) > 0.1
    assert min(right.cosine.value, wrong.cosine.value) < 0.99


def test_with_several_updates_the_halves_part_by_the_step_and_more_by_the_clip() -> None:
    """From the second update on the policy is not the one that drew. Signs then steer entropy in
    proportion to the step; a clip, which holds each sign on one side, adds as much again.
    """
    tree = random_tree(3, 2, ragged=True, seed=2)
    theta = random_policy(tree, 0.35, seed=2)

    def gap(clip: float, updates: int, step: float) -> float:
        knobs = {f"terms.policy.objective.clip_{side}": clip for side in ("low", "high")}
        knobs["plan.split_into_minibatches.num_epochs"] = updates
        whole = notation.recipe("dr_grpo(num_rollouts=2)").with_knobs(knobs)
        right, wrong = halves(tree, theta, whole=whole, step=step)
        return abs(price(right) - price(wrong))

    free = 0.999999  # no ratio of these steps leaves it
    assert gap(0.2, 1, 1.0) < 1e-6
    small, ten_times = gap(free, 4, 0.01), gap(free, 4, 0.1)
    assert small > 1e-5
    assert ten_times == pytest.approx(10 * small, rel=0.05)
    assert gap(0.2, 4, 1.0) > 2 * gap(free, 4, 1.0) > 0.01


def test_refilled_groups_count_as_the_mixed_ones_alone() -> None:
    """dapo asks for others in place of groups without a difference: the gradient is conditional."""
    p, group = 0.3, 3
    found = audited(f"dapo(num_rollouts={group})", BANDIT, p)
    uniform = p**group + (1 - p) ** group
    assert found.thrown_away.value == pytest.approx(uniform)
    assert found.no_signal.value == 0
    kept = audited(f"dapo(num_rollouts={group}, dynamic_sampling=False)", BANDIT, p)
    assert kept.no_signal.value == pytest.approx(uniform)
    assert found.scale.value == pytest.approx(kept.scale.value / (1 - uniform), rel=1e-5)


def test_effective_sample_size_is_that_of_the_behaviour() -> None:
    theta, behaviour = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [-0.5]])
    p, b = theta[:, 0].softmax(0), behaviour[:, 0].softmax(0)
    found = audited(
        "rloo(num_rollouts=2)", BANDIT, theta=theta.double(), behaviour=behaviour.double()
    )
    assert found.ess == pytest.approx(1 / float((p**2 / b).sum()))
    assert audited("rloo(num_rollouts=2)", BANDIT).ess == pytest.approx(1)


def test_draws_agree_with_enumeration() -> None:
    tree = random_tree(2, 2, seed=1)
    exact = audited("grpo(num_rollouts=4)", tree)
    drawn = audited("grpo(num_rollouts=4)", tree, limits=Limits(most=1, draws=100))
    assert exact.exact
    assert not drawn.exact
    for name in ("scale", "success_change", "entropy_change", "no_signal", "noise"):
        value, within = getattr(drawn, name)
        assert within > 0
        assert abs(value - getattr(exact, name).value) < 2 * within


def test_several_prompts_are_a_step_of_several_groups() -> None:
    tree = random_tree(1, 3, num_prompts=2, share=0.4, seed=1)
    found = audited("rloo(num_rollouts=2)", tree)
    assert found.num_groups == 36
    assert (found.scale.value, found.bias.value) == pytest.approx((1, 0), abs=1e-5)


def test_a_method_that_draws_one_more_goes_on_doing_so() -> None:
    settings = config.make({"recipe": "mc_grpo", "model": {"name": "tiny"}})
    paths = compose(settings, Setting(group=4)).paths()
    assert paths["sampling.draw_in_shuffled_order.num_rollouts"] == 5
    given = config.make({"recipe": "mc_grpo(num_rollouts=6)", "model": {"name": "tiny"}})
    paths = compose(given, Setting(group=4, updates=3)).paths()
    assert paths["sampling.draw_in_shuffled_order.num_rollouts"] == 7
    assert paths["plan.split_into_minibatches.num_epochs"] == 3


def test_several_updates_leave_no_trace() -> None:
    tree = random_tree(2, 2)
    theta = random_policy(tree, 0.5)
    bench = Bench(notation.recipe("ppo_clip"), tree, theta, theta, 0.1)
    first = bench.moved([[0, 1, 2, 3]])
    second = bench.moved([[0, 1, 2, 3]])
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert torch.equal(bench.model.theta, theta)


def test_what_estimators_of_a_divergence_from_a_teacher_aim_at() -> None:
    """All of answers of one length, so that averages over tokens divide by one number."""
    tree = random_tree(2, 3, seed=1)
    theta, teacher = (random_policy(tree, success, 3) for success in (0.3, 0.7))

    def found(method: str, estimator: str = "") -> Audit:
        algorithm = notation.recipe(method)
        if estimator:
            objective = Use(PenaliseKlToReference(estimator))
            term = dataclasses.replace(algorithm.terms[0], objective=objective)
            algorithm = dataclasses.replace(algorithm, terms=(term,))
        return audit(algorithm, tree, theta, group_size=1, teacher=teacher)

    whole = found("on_policy_distillation(gamma=1)")
    assert (whole.scale.value, whole.bias.value) == pytest.approx((1 / 2, 0), abs=1e-9)
    assert whole.token_bias.value > 0.01
    drawn, exact = found("on_policy_distillation"), found("gkd(divergence='reverse')")
    for each in (drawn, exact, found("vopd"), found("gkd", "k2")):  # one mean step
        assert each.token_bias.value == pytest.approx(0, abs=1e-9)
        assert each.success_change.value == pytest.approx(exact.success_change.value)
    assert exact.noise.value < drawn.noise.value  # that of the drawn prefixes is left
    assert math.isnan(found("gkd", "k1").bias.value)  # no step at all
    forward, third = found("gkd(divergence='forward')"), found("gkd", "k3")
    assert third.token_bias.value == pytest.approx(forward.token_bias.value)
    assert third.token_bias.value > 0.01
    tail = found("gkd(divergence='reverse', top_k=2)")  # a tail of one token
    assert tail.token_bias.value == pytest.approx(0, abs=1e-9)


def test_the_divergence_from_a_teacher_is_that_of_whole_answers() -> None:
    tree = random_tree(3, 2, ragged=True, seed=4)
    theta, teacher = random_policy(tree, seed=1), random_policy(tree, seed=2)
    logp_PL, other_PL = tree.logp_PL(theta), tree.logp_PL(teacher)
    kl = float((logp_PL.exp() * (logp_PL - other_PL)).sum())
    assert tree.truth(theta, teacher).success == pytest.approx(-kl)
    assert tree.truth(teacher, teacher).success_slope.abs().max() < 1e-12


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("sft", "does not draw answers"),
        ("spo_tree", "does not draw answers"),
        ("fapo", "its penalise_flawed_answers needs log, which an enumerated step"),
    ],
)
def test_what_cannot_be_enumerated_is_said(recipe: str, message: str) -> None:
    settings = config.make({"recipe": recipe, "model": {"name": "tiny"}})
    with pytest.raises(Uncountable, match=message):
        one(settings, Setting(), Limits())
