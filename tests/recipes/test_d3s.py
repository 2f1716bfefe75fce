import itertools

import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, ragged_batch, rows_learning, run, stages
from hypothesis import given
from hypothesis import strategies as st

from strop import functional
from strop.parts.selection.keep_high_entropy_tokens import KeepHighEntropyTokens
from strop.parts.selection.keep_spread_advantages import KeepSpreadAdvantages
from strop.recipes.d3s import d3s
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

TWELVE = [1.5, -0.5, -0.5, -0.5, 0, 0, 0, 0, 0.866, 0.866, -0.866, -0.866]
GROUPS = [0] * 4 + [1] * 4 + [2] * 4


def test_worked_example_of_the_rollouts():
    batch = flat_batch((1,) * 12, GROUPS, advantage_B=TWELVE)
    found = run(KeepSpreadAdvantages(4 / 12), batch)
    kept = batch["advantage_B"][found.value.gradient_T].tolist()
    assert kept == [1.5, 0.866, -0.866, -0.866]
    assert found.metrics["spread/variance_before"] == pytest.approx(0.5, abs=1e-3)
    assert found.metrics["spread/variance_kept"] == pytest.approx(1.0999, abs=6e-5)
    assert found.value.denominator_T.equal(found.value.gradient_T)
    within = run(KeepSpreadAdvantages(0.5, "group"), batch).value.gradient_T
    assert within.reshape(3, 4).sum(1).tolist() == [2, 2, 2]
    assert batch["advantage_B"][within].tolist()[:2] == [1.5, -0.5]
    # groups of one and of three: the pair furthest apart of the three
    uneven = flat_batch((1,) * 4, [0, 1, 1, 1], advantage_B=[2.0, 1.0, 3.0, 0.0])
    within = run(KeepSpreadAdvantages(0.6, "group"), uneven).value.gradient_T
    assert within.tolist() == [True, False, True, True]


def test_worked_example_of_the_tokens():
    # |A| H = .15, 3, .5, .1
    batch = flat_batch((2, 2), advantage_T=[1.5, 1.5, -0.5, -0.5], entropy_old_T=[0.1, 2, 1, 0.2])
    part = KeepHighEntropyTokens(0.5, "topk", by_advantage=True)
    found = run(part, batch)
    assert found.value.gradient_T.tolist() == [False, True, True, False]
    assert found.metrics["entropy_control/threshold"] == 1  # the smaller H of the two, nats


@given(seed=st.integers(0, 2000), share=st.sampled_from([0.2, 0.4, 0.7]))
def test_is_the_best_subset_by_brute_force(seed, share):
    rng = torch.Generator().manual_seed(seed)
    size = int(torch.randint(1, 8, (), generator=rng))
    values = torch.randn(size, generator=rng, dtype=torch.float64)
    if seed % 2:
        values = values.round()
    batch = flat_batch((1,) * size, advantage_B=values)
    found = run(KeepSpreadAdvantages(share), batch)
    number = max(round(share * size), 1)
    assert int(found.value.gradient_T.sum()) == number
    subsets = itertools.combinations(values.tolist(), number)
    best = max(float(torch.tensor(s).double().var(correction=0)) for s in subsets)
    ours = float(values[found.value.gradient_T].var(correction=0))
    assert ours == pytest.approx(best, abs=1e-6)
    assert found.metrics["spread/variance_kept"] == pytest.approx(ours, abs=1e-9)


def test_all_rollouts_and_tokens_is_grpo():
    given = {
        "advantages": torch.tensor([1.5, -0.5, 0.2]).double(), "groups": torch.zeros(3).long(),
        "mask": torch.ones(3, 2, dtype=torch.bool), "entropy": torch.rand(3, 2).double(),
    }  # fmt: skip
    full = functional.selection("d3s", **given, params={"step": 10, "total_steps": 10})
    assert all(mask.all() for mask in full)
    early = functional.selection("d3s", **given, params={"step": 0, "total_steps": 10})
    assert int(early[0].sum()) == 1  # 2 of 3 rollouts, a fifth of their 4 tokens, at least one
    ours = d3s(rollout_share=1.0, token_share=1.0)
    batch = ragged_batch(1)
    theirs = stages(grpo(), batch)
    for name in ("advantage_T", "gradient_T", "denominator_T"):
        assert stages(ours, batch)[name].equal(theirs[name])


def test_gradient_is_that_of_the_published_loss():
    algorithm = d3s(rollout_share=0.6, token_share=0.5)
    batch = stages(algorithm, ragged_batch(1, groups=(3, 5, 4)))
    whole = stages(grpo(), ragged_batch(1, groups=(3, 5, 4)))
    assert batch["advantage_T"].equal(whole["advantage_T"])
    rows = rows_learning(batch)
    assert 0 < len(rows) < len(rows_learning(whole)) * 0.5
    A = batch["advantage_T"][rows]

    def loss_of(logp_T):
        ratio = (logp_T[rows] - batch["logp_old_T"][rows]).exp()
        return clipped(ratio, A, 0.2, 0.2).mean()

    assert_same_push(algorithm, batch, loss_of)


def test_edges():
    batch = flat_batch((1,) * 3, advantage_B=[0.0, 2.0, 9.0])
    batch = batch.set(scored_B=torch.tensor([True, True, False]))
    assert run(KeepSpreadAdvantages(0.5), batch).value.gradient_T.sum() == 1
    nothing = batch.set(scored_B=torch.zeros(3, dtype=torch.bool))
    assert not run(KeepSpreadAdvantages(), nothing).value.gradient_T.any()
    for field, value in (("share", 1.5), ("scope", "batch")):
        with pytest.raises(UserError, match=field):
            KeepSpreadAdvantages(**{field: value})
    with pytest.raises(UserError, match="needs advantage_T"):
        KeepHighEntropyTokens(by_advantage=True)(
            torch.ones(2), torch.ones(2).bool(), torch.ones(2).bool()
        )
