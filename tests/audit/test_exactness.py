"""When all groups stand for all steps: no draws of its own, and orders if a part needs them."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from strop.auditing.bench import Bench, Uncountable
from strop.auditing.estimate import Limits, audit
from strop.auditing.tree import Tree, random_policy, random_tree
from strop.batch import segments
from strop.method import notation
from strop.method.part import Selected, Use

TREE = random_tree(2, 2, seed=1)
THETA = random_policy(TREE, 0.3, seed=3)


@dataclass(frozen=True)
class ToldByReward:
    """Draws which rollouts are learnt from, but only where none of them is right."""

    kind = "selection"

    def __call__(self, reward_B: Tensor, rollout_T: Tensor, mask_T: Tensor, rng: torch.Generator):
        keep_B = torch.ones_like(reward_B, dtype=torch.bool)
        if not reward_B.any():
            keep_B = torch.rand(reward_B.shape, generator=rng) < 0.5
        keep_T = mask_T & keep_B[rollout_T]
        return Selected(keep_T, keep_T, "drawn")


@dataclass(frozen=True)
class LearnFromFirst:
    """Learns from the first rollout of every group."""

    kind = "selection"
    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})

    def __call__(self, group_B: Tensor, num_groups: int, rollout_T: Tensor, mask_T: Tensor):
        first_B = segments.order_within(group_B, num_groups) == 0
        keep_T = mask_T & first_B[rollout_T]
        return Selected(keep_T, mask_T, "not_first")


def found(selection: object, group: int = 3, **options):
    whole = notation.recipe(f"dr_grpo(num_rollouts={group})")
    method = dataclasses.replace(whole, selection=(Use(selection),))
    return audit(method, TREE, THETA, group_size=group, **options)


def test_one_group_in_which_a_step_draws_is_enough_for_intervals() -> None:
    told = found(ToldByReward(), limits=Limits(draws=100))
    assert not told.exact
    assert told.num_groups == 100
    assert told.scale.within > 0


def test_too_few_kept_groups_are_no_fault_of_the_method() -> None:
    method, seldom = notation.recipe("dapo(num_rollouts=2)"), random_policy(TREE, 0.002, seed=3)
    few = Limits(most=1, draws=40)
    with pytest.raises(Uncountable, match="curation keeps 0 of 40 drawn groups: draw more"):
        audit(method, TREE, seldom, group_size=2, limits=few)
    assert audit(method, TREE, seldom, group_size=2).thrown_away.value < 1


def test_a_part_that_follows_the_order_has_every_order_enumerated() -> None:
    """Whoever comes first is one of three, and each is as likely: a third of the gradient."""
    first = found(LearnFromFirst())
    assert first.exact
    assert first.num_groups == 4**3
    grpo = notation.recipe("dr_grpo(num_rollouts=3)")
    whole = audit(grpo, TREE, THETA, group_size=3)
    assert whole.num_groups == 20  # multisets of three answers out of four
    assert audit(grpo, TREE, THETA, group_size=3, limits=Limits(most=20)).exact
    assert not audit(grpo, TREE, THETA, group_size=3, limits=Limits(most=19, draws=20)).exact
    assert first.scale.value == pytest.approx(whole.scale.value / 3, rel=1e-5)
    assert first.cosine.value == pytest.approx(1, abs=1e-9)
    assert first.noise.value > whole.noise.value


def test_in_the_order_of_draws_or_not_the_numbers_are_the_same() -> None:
    """Enumerated in order, a method that does not follow it has what its multisets give."""
    plain = notation.recipe("grpo(num_rollouts=3)")
    method = dataclasses.replace(plain, selection=(Use(KeepAll()),))
    one, other = (audit(each, TREE, THETA, group_size=3) for each in (plain, method))
    assert (one.num_groups, other.num_groups) == (20, 64)
    for name in ("scale", "bias", "noise", "success_change", "entropy_change", "no_signal"):
        assert getattr(one, name).value == pytest.approx(getattr(other, name).value, rel=1e-5)


@dataclass(frozen=True)
class KeepAll:
    """Keeps everything, and says that it might follow the order."""

    kind = "selection"
    facts: ClassVar[frozenset[str]] = frozenset({"order_matters"})

    def __call__(self, gradient_T: Tensor, denominator_T: Tensor) -> Selected:
        return Selected(gradient_T, denominator_T, "none")


def test_the_median_that_is_dropped_is_enumerated_in_order() -> None:
    told = audit(notation.recipe("mc_grpo(num_rollouts=2)"), TREE, THETA, group_size=3)
    assert told.exact
    assert told.num_groups == 4**3


@pytest.mark.parametrize("epochs", [1, 3])
def test_shuffling_a_single_group_is_no_draw(epochs: int) -> None:
    whole = notation.recipe("dr_grpo(num_rollouts=3)")
    method = whole.with_knobs({"plan.split_into_minibatches.num_epochs": epochs})
    bench = Bench(method, TREE, THETA, THETA, 0.1)
    bench.moved([[0, 1, 2]])
    assert not bench.drew


def test_a_draw_from_torchs_own_generator_is_one() -> None:
    @dataclass(frozen=True)
    class Careless:
        kind = "selection"

        def __call__(self, gradient_T: Tensor) -> Selected:
            keep_T = gradient_T & (torch.rand(gradient_T.shape) < 2)
            return Selected(keep_T, keep_T, "none")

    bench = Bench(
        dataclasses.replace(notation.recipe("dr_grpo"), selection=(Use(Careless()),)),
        TREE, THETA, THETA, 0.1,
    )  # fmt: skip
    bench.moved([[0, 1, 2]])
    assert bench.drew


def test_minibatches_of_several_groups_are_drawn() -> None:
    tree = Tree(1, 2, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    theta = random_policy(tree, 0.4, seed=1)
    whole = notation.recipe("grpo(num_rollouts=2)")
    method = whole.with_knobs({"plan.split_into_minibatches.num_minibatches": 2})
    assert not audit(method, tree, theta, group_size=2, limits=Limits(draws=40)).exact
    assert audit(whole, tree, theta, group_size=2).exact
