import itertools
import math

import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from hypothesis import given
from hypothesis import strategies as st
from models import Lab, without_times
from runs import Runner

from strop.method.check import check
from strop.method.part import Draw
from strop.parts.advantage.scale.weigh_bins import WeighBins
from strop.parts.control.price_rollouts import PriceRollouts
from strop.parts.control.raise_scores_of_bins import RaiseScoresOfBins
from strop.parts.sampling.allocate_by_bins import AllocateByBins, log_shares, split
from strop.recipes.grpo import grpo
from strop.recipes.prompt_gdro import prompt_gdro
from strop.recipes.rollout_gdro import rollout_gdro
from strop.support.errors import UserError


def weighed(part, sizes):
    """The weights of classes with so many rollouts each."""
    bins = [b for b, size in enumerate(sizes) for _ in range(size)]
    batch = flat_batch([1] * len(bins), bin_B=bins, advantage_B=[1.0] * len(bins))
    advantage_B, weight_B = run(part, batch).value
    assert advantage_B.equal(weight_B)
    firsts = [sum(sizes[:b]) for b in range(len(sizes))]
    return weight_B[firsts].tolist()


def test_worked_example_of_the_weights():
    scores = (1.0, 0.0, -1.0)
    assert weighed(WeighBins(scores), (2, 3, 3)) == pytest.approx([1.9155, 1, 0.5220], abs=5e-5)
    code = WeighBins(scores, source_form="code")
    assert weighed(code, (2, 3, 3)) == pytest.approx([1.816, 0.953, 0.503], abs=5e-4)
    q = [0.5550, 0.2913, 0.1537]  # of three classes; their ratios are those of the weights
    found = weighed(code, (1, 1, 1))
    assert [w * sum(q) / 3 for w in found] == pytest.approx(q, abs=5e-5)
    assert weighed(WeighBins((9.0, 0.0)), (1, 1)) == [15.0, 1.0]  # the cap
    high = WeighBins(tuple(score + 5000.0 for score in scores), source_form="code")
    assert weighed(high, (2, 3, 3)) == pytest.approx(weighed(code, (2, 3, 3)))


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), scores=st.data())
def test_the_codes_weights_have_the_mean_1(sizes, scores):
    drawn = tuple(scores.draw(st.floats(-3, 3)) for _ in sizes)
    found = weighed(WeighBins(drawn, source_form="code"), sizes)
    mean = sum(w * n for w, n in zip(found, sizes, strict=True)) / sum(sizes)
    assert mean == pytest.approx(1.0) or max(found) == 15.0


def test_one_class_or_no_eta_is_the_group_mean():
    batch = ragged_batch(3).set(bin_B=torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2]))
    plain = stages(grpo(), batch)["advantage_T"]
    for variant in ("paper", "code"):
        algorithm = prompt_gdro(variant=variant, eta_q=0.0)
        knobs = {"advantage.weigh_bins.scores": (3.0, 1.0, -1.0)}
        torch.testing.assert_close(stages(algorithm.with_knobs(knobs), batch)["advantage_T"], plain)
    one = prompt_gdro(edges=(2.0,), variant="code").with_knobs(
        {"advantage.weigh_bins.scores": (2.5, 0.0)}
    )
    same = batch.set(bin_B=torch.zeros(10, dtype=torch.int64))
    torch.testing.assert_close(stages(one, same)["advantage_T"], plain)


def test_classes_apart_and_scores_that_do_not_fit():
    for apart in (-1, math.nan):
        batch = flat_batch([1, 1], bin_B=[apart, 1], advantage_B=[1.0, 1.0])
        found = run(WeighBins((0.0, 2.0)), batch).value[1].tolist()
        assert found == pytest.approx([1.0, math.exp(1.3)])
    # neither a rollout of no class nor an unscored one counts in the code's shares and mean
    five = flat_batch([1] * 5, bin_B=[0, 0, 1, -1, 1], advantage_B=[1.0] * 5,
                      scored_B=[True] * 4 + [False])  # fmt: skip
    both = math.exp(0.65) + 1
    q = [0.99 * math.exp(0.65) / both + 0.005, 0.99 / both + 0.005]
    first, second = (3 * share / (2 * q[0] + q[1]) for share in q)
    found = run(WeighBins((1.0, 0.0), source_form="code"), five).value[1].tolist()
    assert found == pytest.approx([first, first, second, 1.0, 0.0])
    with pytest.raises(UserError, match=r"weigh_bins.scores has 1 numbers: give one for each"):
        run(WeighBins((0.0,)), batch)


def test_running_scores():
    part = RaiseScoresOfBins(beta=0.25, by_share=False)
    # losses 2 and -1 of rollouts whose class has three quarters and one quarter of them
    first = {"bins/loss_0": 1.5, "bins/share_0": 0.75, "bins/loss_2": -0.25, "bins/share_2": 0.25}
    found = part(first, part.init())
    assert found.value == {"advantage.weigh_bins.scores": (2.0, 0.0, -1.0)}
    second = part({"bins/loss_0": 0.4, "bins/share_0": 0.1}, found.state)
    assert second.value["advantage.weigh_bins.scores"] == pytest.approx((2.5, 0.0, -1.0))
    shared = RaiseScoresOfBins()(first, part.init())
    assert shared.value["advantage.weigh_bins.scores"] == pytest.approx((2 / 0.75, 0.0, -4.0))
    limited = RaiseScoresOfBins(limit=1.5, by_share=False)(first, part.init())
    assert limited.value["advantage.weigh_bins.scores"] == (1.5, 0.0, -1.0)
    standard = RaiseScoresOfBins(standardise=True, by_share=False)(first, part.init())
    assert standard.value["advantage.weigh_bins.scores"] == pytest.approx((1.0, -1 / 3, -1.0))
    assert RaiseScoresOfBins()({}, part.init()).value == {"advantage.weigh_bins.scores": (0.0,) * 3}


def test_scores_in_the_released_codes_form():
    # no limit: a loss of 1.5 of half the rollouts is 3, over its share 6
    first = {"bins/loss_0": 1.5, "bins/share_0": 0.5, "bins/loss_2": 0.5, "bins/share_2": 0.5}
    code = RaiseScoresOfBins(limit=0.0)
    assert code(first, code.init()).value == {"advantage.weigh_bins.scores": (6.0, 0.0, 2.0)}
    assert RaiseScoresOfBins().scores({0: 6.0, 2: 2.0}) == (5.0, 0.0, 2.0)
    # standardised: mean 4, deviation 2; a class that was never visited stands there with 0
    standard = RaiseScoresOfBins(limit=0.0, standardise=True)
    assert standard.scores({0: 6.0, 2: 2.0}) == (1.0, -2.0, -1.0)
    assert prompt_gdro(variant="code").control[0].part.limit == 0.0
    assert rollout_gdro().sampling[2].part.margin == 0.0  # its script sets none


def test_worked_example_of_the_split():
    # 4, 3 and 1 prompts, 32 rollouts; s = .1 n, 0, -.1 n
    arms = {b: log_shares([c * n for n in range(2, 13)], 0.65, 0.01)
            for b, c in enumerate((0.1, 0.0, -0.1))}  # fmt: skip
    assert split({0: 4, 1: 3, 2: 1}, arms, 2, 32) == {0: 6, 1: 2, 2: 2}

    def score(*nums):
        return sum(arms[b][n - 2] for b, n in enumerate(nums))

    ranked = {(6, 2, 2): -6.977, (5, 3, 3): -7.106, (3, 6, 2): -7.170, (4, 4, 4): -7.235}
    for nums, value in ranked.items():
        assert score(*nums) == pytest.approx(value, abs=1e-3)
    # 4 and 6 are equally near to 5: the better score
    assert [split({0: 2}, {0: arm}, 2, 5)[0] for arm in ([0.0, 1.0], [1.0, 0.0])] == [3, 2]
    # scores far apart: the better arm has all but its share of the even distribution
    for scores in ((0.0, 2000.0), (-4000.0, -2000.0)):
        found = log_shares(scores, 0.65, 0.01)
        assert found == pytest.approx([math.log(0.005), math.log(0.995)])


@given(data=st.data())
def test_the_split_is_the_best_of_all(data):
    sizes = {b: data.draw(st.integers(1, 4)) for b in range(data.draw(st.integers(1, 3)))}
    scores = {b: [data.draw(st.integers(-9, 9)) / 3 for _ in range(4)] for b in sizes}
    total = data.draw(st.integers(0, 40))
    found = split(sizes, scores, 2, total)

    def worth(nums):
        spent = sum(size * n for size, n in zip(sizes.values(), nums, strict=True))
        return (
            -abs(spent - total),
            sum(scores[b][n - 2] for b, n in zip(sizes, nums, strict=True)),
        )

    best = max(worth(nums) for nums in itertools.product(range(2, 6), repeat=len(sizes)))
    assert worth(tuple(found.values())) == pytest.approx(best)


def test_budgets_of_the_draws():
    draws = tuple(Draw(n, 4, {"bin_B": b}) for n, b in enumerate((0, 0, 0, 0, 1, 1, 1, 2, -1)))
    scores = tuple(c * n for c in (0.1, 0.0, -0.1) for n in range(2, 13))
    found = AllocateByBins(scores)(draws)
    assert [draw.num_rollouts for draw in found.value] == [6, 6, 6, 6, 2, 2, 2, 2, 4]
    assert found.value[0].why == "6 rollouts for class 0"
    assert found.metrics["budget/target"] == found.metrics["budget/spent"] == 4.0
    assert [found.metrics[f"bins/rollouts_{b}"] for b in range(3)] == [6.0, 2.0, 2.0]
    single = AllocateByBins(least=4, most=4)(draws)
    assert [draw.num_rollouts for draw in single.value] == [4] * 9
    assert AllocateByBins()(()).value == ()
    with pytest.raises(UserError, match="sort_by_success"):
        AllocateByBins()((Draw(1, 4),))
    for number in (12, 22):  # no whole classes, and one class too few
        with pytest.raises(UserError, match=rf"has {number} numbers: give 11 .*for each of the cl"):
            AllocateByBins(scores[:number])(draws)


def test_what_rollouts_are_worth():
    metrics = {"bins/loss_0": 0.3, "bins/share_0": 0.6, "bins/rollouts_0": 6.0,
               "bins/loss_2": -0.1, "bins/share_2": 0.4, "bins/rollouts_2": 2.0,
               "budget/target": 4.0, "budget/spent": 5.0}  # fmt: skip
    state = {"scores": (0.0,) * 33, "price": 0.1}
    for form, first, last in (("paper", -0.5 - 0.6, 0.25 - 0.2), ("code", 0.5 - 0.2, -0.25 + 0.2)):
        found = PriceRollouts(source_form=form)(metrics, state)
        scores = found.value["sampling.allocate_by_bins.scores"]
        assert scores[4] == pytest.approx(first)  # class 0, 6 rollouts
        assert scores[22] == pytest.approx(last)  # class 2, 2 rollouts
        assert sum(score != 0 for score in scores) == 2
        assert found.metrics["bins/price"] == pytest.approx(0.15)


def test_recipes():
    check(rollout_gdro(set_apart=True, edges=(0.1, 0.5, 0.9)))
    for path in ("control.price_rollouts.most", "sampling.allocate_by_bins.most"):
        with pytest.raises(UserError, match=r"price_rollouts.most is .* where both are one number"):
            check(rollout_gdro().with_knobs({path: 9}))


@pytest.mark.parametrize("recipe", ["prompt_gdro", "rollout_gdro(n_max=6)"])
def test_a_run_tells_its_bins(recipe, tmp_path):
    raw = Lab.make(tmp_path).raw(recipe, reward="even")
    raw["algorithm"]["sampling.num_prompts"] = 6
    Runner().whole(raw, tmp_path / "whole")
    last = without_times(tmp_path / "whole")[-1]
    assert {f"bins/loss_{b}" for b in range(3)} <= last.keys()
