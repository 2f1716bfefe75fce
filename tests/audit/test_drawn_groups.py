"""Intervals of numbers from drawn groups contain the numbers of all groups."""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import pytest

from strop.api.audit import _shown
from strop.auditing.bench import Bench
from strop.auditing.estimate import Audit, Limits, Number, audit
from strop.auditing.tree import random_policy, random_tree
from strop.method import notation

TREE = random_tree(3, 2, ragged=True, seed=1)
SEEDS = 20


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group's step is computed once; in these methods the order of answers is no matter."""
    moved, known = Bench.moved, dict[Any, Any]()

    def once(bench: Bench, groups: Any, seed: int = 0, further: Sequence[Any] = ()) -> Any:
        key = tuple(tuple(sorted(group)) for group in groups)
        if key not in known:
            known[key] = moved(bench, groups, seed, further)
        bench.drew = False
        return known[key]

    monkeypatch.setattr(Bench, "moved", once)


def found(recipe: str, success: float, draws: int = 0, seed: int = 0) -> Audit:
    method = notation.recipe(recipe)
    limits = Limits(0, draws) if draws else Limits()
    theta = random_policy(TREE, success, seed=1)
    size = int(method.paths()["sampling.draw_in_shuffled_order.num_rollouts"])
    return audit(method, TREE, theta, group_size=size, limits=limits, seed=seed)


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize(
    ("recipe", "success"),
    [
        ("rloo(num_rollouts=2)", 0.1),  # no bias, much noise
        ("cispo(num_rollouts=3)", 0.1),  # a bias about as large as what 200 draws resolve
        ("dapo(num_rollouts=3)", 0.3),  # a large bias; some groups are replaced
    ],
)
def test_intervals_contain_the_truth(recipe: str, success: float) -> None:
    exact = found(recipe, success)
    assert exact.exact
    drawn = [found(recipe, success, 200, seed) for seed in range(SEEDS)]
    for name in ("scale", "bias", "cosine", "noise", "error"):
        truth = getattr(exact, name).value
        numbers = [getattr(each, name) for each in drawn]
        missed = [each for each in numbers if abs(each.value - truth) > each.within + 1e-9]
        assert len(missed) <= 3, (name, truth, missed)  # 1 of 20 is expected
        usual = math.sqrt(fmean((each.value - truth) ** 2 for each in numbers))
        # about 2 for normal errors; 7 for the cosine without a bias, which is squared in it
        assert median(each.within for each in numbers) < 8 * usual, (name, truth, numbers)


@pytest.mark.usefixtures("remembered")
def test_noise_of_the_mean_is_no_bias() -> None:
    """Without a bias the mean of few draws lies beside the gradient, but by no more than noise."""
    few = [found("rloo(num_rollouts=2)", 0.1, 100, seed) for seed in range(SEEDS)]
    assert sum(each.bias.value == 0 for each in few) > SEEDS / 3
    assert all(-1 <= each.cosine.value <= 1 for each in few)


@pytest.mark.usefixtures("remembered")
def test_what_too_few_draws_tell_has_no_end() -> None:
    """Where the scale may be 0, bias and noise may be any number, and the cosine of any sign."""
    few = found("rloo(num_rollouts=2)", 0.005, 200, seed=1)
    assert abs(few.scale.value) < few.scale.within
    assert few.bias.within == few.noise.within == few.error.within == math.inf
    assert abs(few.cosine.value) < few.cosine.within <= 2
    assert _shown(Number(2.5, math.inf)) == "2.5±inf"
    assert _shown(Number(math.nan, math.inf)) == "-"
