import math
import statistics

import pytest
import torch
from builders import flat_batch, members_of, ragged_batch, run, stages, tokens_of

from strop import functional
from strop.method import notation, reading, writing
from strop.parts.advantage.baseline.compare_halves import CompareHalves
from strop.recipes.canon import canon
from strop.recipes.dr_grpo import dr_grpo
from strop.support.errors import UserError

REWARDS = torch.tensor([1.0, 0.0, 1.0, 1.0]).double()
ENTROPY = torch.tensor([0.2, 0.5, 0.6, 0.9]).double()[:, None].expand(4, 9)
LENGTHS = torch.tensor([2, 5, 6, 9])
MASK = torch.arange(9)[None] < LENGTHS[:, None]


def call(rewards=REWARDS, **params):
    entropy = {} if params.get("metric", "entropy") != "entropy" else {"entropy": ENTROPY}
    found = functional.advantages(
        "canon", rewards=rewards, groups=torch.zeros(4).long(), mask=MASK, params=params, **entropy
    )
    return found[:, 0].tolist()


def test_worked_example():
    # lower half {0, 1} with mean .5, upper half {2, 3} with mean 1
    assert call() == pytest.approx([0.0, -1.0, 0.5, 0.5])
    assert call(mu=0.0) == pytest.approx([0.5, -0.5, 0.0, 0.0])
    assert call(mu=0.5) == pytest.approx([0.25, -0.75, 0.25, 0.25])
    assert call(metric="length", alpha=0.9) == pytest.approx([0.1, -0.9, 0.4, 0.4])
    # entropy: high R - .9 * .5, low .9 R - 1
    assert call(alpha=0.9) == pytest.approx([-0.1, -1.0, 0.55, 0.55])
    assert call(beta=0.1) == pytest.approx([-0.1, -1.1, 0.6, 0.6])


def test_at_one_half_with_equal_halves_it_is_dr_grpo():
    batch = ragged_batch(1, groups=(4, 2, 6), unscored=())
    ours, theirs = stages(canon(mu=0.5), batch), stages(dr_grpo(), batch)
    torch.testing.assert_close(ours["advantage_T"], theirs["advantage_T"])


@pytest.mark.parametrize("metric", ["entropy", "length"])
def test_matches_slow_loop(metric):
    batch = ragged_batch(2, groups=(4, 3, 1, 7, 2))
    ours = stages(canon(metric=metric, mu=0.3, alpha=0.8, beta=0.2), batch)["advantage_B"]
    for group in range(batch.size("P")):
        members = members_of(batch, group)
        reward = {i: float(batch["reward_B"][i]) for i in members}
        value = {i: float(len(tokens_of(batch, i))) for i in members}
        if metric == "entropy":
            value = {i: float(batch["entropy_old_T"][tokens_of(batch, i)].mean()) for i in members}
        lower = sorted(members, key=value.get)[: len(members) // 2]
        upper = [i for i in members if i not in lower]
        for i in members:
            if len(members) == 1:
                assert float(ours[i]) == pytest.approx(reward[i])
                continue
            own, other = (upper, lower) if i in upper else (lower, upper)
            of_own, of_other = (0.8, 1.0) if (i in upper) == (metric == "length") else (1.0, 0.8)
            inter = of_own * reward[i] - of_other * statistics.fmean(reward[j] for j in other)
            inter += 0.2 if i in upper else -0.2
            intra = reward[i] - statistics.fmean(reward[j] for j in own)
            assert float(ours[i]) == pytest.approx(0.3 * inter + 0.7 * intra)


def test_random_halves_follow_the_seed():
    batch = flat_batch((1,) * 40, reward_B=torch.randn(40))
    found = [
        functional.advantages(
            "canon", rewards=batch["reward_B"], groups=batch["group_B"],
            params={"metric": "random"}, seed=seed,
        )
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert found[0].equal(found[1])
    assert not found[0].equal(found[2])
    assert float(found[0].sum()) == pytest.approx(0, abs=1e-4)


def test_mu_from_the_steps_success():
    # mean reward .75
    assert call(schedule="first_intra") == pytest.approx(call(mu=0.75))
    assert call(schedule="first_inter") == pytest.approx(call(mu=0.25))
    with pytest.raises(UserError, match="between 0 and 1"):
        call(2 * REWARDS, schedule="first_intra")


@pytest.mark.parametrize(
    ("step", "intra", "reverse"),
    [
        (1, 0.6 / 30, 1 - 1 / 30),
        (30, 0.6, 0.0),
        (31, 0.6, 0.0),
        # a quarter of the first cycle, half of the second: (1 + cos(pi c / 40)) / 2
        (41, 0.3 * (1 + math.sqrt(0.5)), 0.6 - 0.3 * (1 + math.sqrt(0.5))),
        (91, 0.3, 0.3),
        (111, 0.6, 0.0),
    ],
)
def test_mu_in_cycles(step, intra, reverse):
    run = {"step": step, "total_steps": 150}
    first_intra = call(schedule="cosine_first_intra", **run)
    assert first_intra == pytest.approx(call(mu=1 - intra))
    first_inter = call(schedule="cosine_first_inter", **run)
    assert first_inter == pytest.approx(call(mu=1 - reverse))


def test_the_cycles_survive_writing_and_reading():
    part = canon(schedule="cosine_first_intra").advantage[0].part
    text = writing.part_text(part)
    assert text == "compare_halves(mu=cosine_restarts(0.4, 1.0, 40, 30, 1.0))"
    assert reading.chain(text)[0].part == part
    assert notation.recipe(f"canon(mu={writing.value_text(part.mu)})").advantage[0].part == part


def test_edges():
    nan = float("nan")
    assert call(torch.tensor([0.7] * 4).double()) == [0.0] * 4
    # without the first rollout the lower half is {1}, the upper {2, 3}
    found = call(torch.tensor([nan, 0.0, 1.0, 1.0]).double())
    assert found == pytest.approx([0.0, -1.0, 1.0, 1.0])
    with pytest.raises(UserError, match="give the entropy"):
        functional.advantages("canon", rewards=REWARDS, groups=torch.zeros(4).long(), mask=MASK)
    with pytest.raises(UserError, match="did you mean first_intra"):
        canon(schedule="first_intr")
    with pytest.raises(UserError, match="leave mu out"):
        canon(schedule="first_intra", mu=0.5)


def test_the_lead_of_the_upper_half_and_the_weight_are_logged():
    batch = flat_batch((2, 5, 6, 9), advantage_B=REWARDS)  # means 1/2 and 1
    told = run(CompareHalves(metric="length", mu_from="reward"), batch).metrics
    assert told == {"halves/lead_of_upper": 0.5, "halves/mu": 0.75}
