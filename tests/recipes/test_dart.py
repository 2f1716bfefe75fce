import pytest
import torch
from builders import assert_same_push, clipped, flat_batch, pushed, ragged_batch, run, stages

from strop.method.part import Draw
from strop.parts.advantage.baseline.normalise_over_group_turns import NormaliseOverGroupTurns
from strop.parts.sampling._tracked import Tracked
from strop.parts.sampling.limit_turns_by_successes import LimitTurnsBySuccesses
from strop.parts.sampling.spare_solved_prompts import SpareSolvedPrompts
from strop.parts.selection.keep_high_entropy_turns import KeepHighEntropyTurns
from strop.recipes.dart import dart
from strop.recipes.grpo import grpo


def known(successes):
    num = torch.arange(len(successes))
    success_N = torch.tensor(successes, dtype=torch.float64)
    ones = torch.ones(len(successes), dtype=torch.float64)
    return Tracked(num, success_N, 1 - success_N, success_N, ones)


def test_worked_example_of_rollouts_by_success():
    # N_min = 2: s = .6 -> 8, .7 -> 5, .8 -> 4, .9 -> 3, 1 -> 2; below .6 and unknown: 8
    part = SpareSolvedPrompts(least=2, threshold=0.6)
    draws = tuple(Draw(uid, 8) for uid in range(8))
    result = part(draws, known([0.6, 0.7, 0.8, 0.9, 1.0, 0.59, 0.0]))
    assert [draw.num_rollouts for draw in result.value] == [8, 5, 4, 3, 2, 8, 8, 8]
    assert result.metrics == {"budget/least": 2, "budget/most": 8}
    assert result.value[1].why == "5 at a success of 0.70"
    code = SpareSolvedPrompts(least=1, threshold=1.0)
    sizes = [draw.num_rollouts for draw in code(draws, known([0.9, 1.0])).value]
    assert sizes[:2] == [8, 2]
    assert [d.num_rollouts for d in part((Draw(4, 1),), known([1.0] * 5)).value] == [1]


def test_turns_are_limited_by_the_longest_success():
    part = LimitTurnsBySuccesses()
    # prompt 1: successes of 12 and 15 turns, a failure of 30; 2: a success of 3; 3: of 60; 4: none
    turns, group = [12, 15, 30, 3, 60, 40], torch.tensor([0, 0, 0, 1, 2, 3])
    outcome_B = torch.tensor([1.0, 1, 0, 1, 1, 0])
    rollout_K = torch.repeat_interleave(torch.arange(6), torch.tensor(turns))
    uid_P, all_B = torch.tensor([1, 2, 3, 4]), torch.ones(6, dtype=torch.bool)
    state = part.observe(uid_P, group, rollout_K, outcome_B, all_B, part.init())
    draws = tuple(Draw(uid, 8) for uid in (4, 3, 2, 1))
    error = part(draws, state)
    assert [d.columns.get("max_turns") for d in error.value] == [None, 50, 10, 15]
    assert error.metrics == {"turns/limit": 25, "turns/frac_limited": 0.75}
    # later ones: a shorter success changes nothing, a longer one does; unscored ones do not count
    scored_B = torch.tensor([True, True, True, True, False, True])
    outcome_B = torch.tensor([0.0, 0, 1, 1, 1, 0])
    later = part.observe(uid_P, group, rollout_K, outcome_B, scored_B, state)
    assert later["turns"].tolist() == [30, 3, 60]
    assert part(draws, part.init()).value == draws


def test_worked_example_of_entropies():
    # ten turns of .1 to 1: the 20th percentile is .28, so 8 of 10 stay
    entropies = torch.arange(1, 11).double() / 10
    batch = flat_batch((2,) * 10, entropy_old_T=torch.repeat_interleave(entropies, 2))
    found = run(KeepHighEntropyTurns(0.2), batch)
    kept = found.value.gradient_T.reshape(10, 2)
    assert kept[:, 0].tolist() == [False] * 2 + [True] * 8
    assert kept[:, 0].equal(kept[:, 1])
    assert found.value.denominator_T.equal(found.value.gradient_T)
    assert found.metrics["entropy_control/turns_kept"] == pytest.approx(0.8)
    assert run(KeepHighEntropyTurns(0.0), batch).value.gradient_T.all()


def test_the_percentile_is_of_each_prompts_turns():
    batch = flat_batch((1,) * 6, [0, 0, 0, 1, 1, 1], entropy_old_T=[1, 2, 3, 10, 20, 30])
    gradient_T = torch.tensor([True, True, True, False, True, True])
    found = run(KeepHighEntropyTurns(0.4), batch.set(gradient_T=gradient_T))
    # 0.4 of (1, 2, 3): 1.8; of (20, 30): 24
    assert found.value.gradient_T.tolist() == [False, True, True, False, False, True]


def turns_batch():
    """Three rollouts of 3, 1 and 2 turns with rewards 1, 0, 0; one of another prompt."""
    rollout_K = torch.tensor([0, 0, 0, 1, 2, 2, 3])
    batch = flat_batch((2,) * 7, [0] * 7)
    return batch.set(
        rollout_K=rollout_K, group_B=torch.tensor([0, 0, 0, 1]), uid_P=torch.tensor([0, 1]),
        draw_P=torch.tensor([0, 0]), scored_B=torch.ones(4, dtype=torch.bool),
        truncated_B=torch.zeros(4, dtype=torch.bool),
        advantage_B=torch.tensor([1.0, 0, 0, 5.0], dtype=torch.float64),
    )  # fmt: skip


def test_turns_are_samples_of_the_baseline():
    # turns' rewards 1, 1, 1, 0, 0, 0: mean .5, std sqrt(6 / 4 / 5) = .5477
    found = run(NormaliseOverGroupTurns(), turns_batch()).value
    assert found.tolist() == pytest.approx([0.9128709, -0.9128709, -0.9128709, 0.0], abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_loss(seed):
    algorithm = dart(quantile=0.0, beta=0.0, eps=1e-6)
    batch = stages(algorithm, ragged_batch(seed))
    turn_T, gradient_T = batch["turn_T"], batch["gradient_T"]
    turns = torch.unique(turn_T[gradient_T]).tolist()

    def loss(logp_T):
        total = 0.0
        for turn in turns:
            here_T = (turn_T == turn) & gradient_T
            old_T = batch["logp_old_T"][here_T]
            weight = (old_T - batch["logp_behavior_T"][here_T]).exp().clamp(max=1.0)
            advantage_T = batch["advantage_T"][here_T]
            push = clipped((logp_T[here_T] - old_T).exp(), advantage_T, 0.1, 0.28)
            bounded = torch.where(advantage_T < 0, torch.minimum(push, -10 * advantage_T), push)
            total = total + (weight * bounded).mean() / len(turns)
        return total

    assert_same_push(algorithm, batch, loss)


def test_without_its_parts_and_with_one_turn_it_is_grpo():
    # quantile 0, no weight, a fixed number, no pool: step-wise grpo
    plain = dart(quantile=0.0, C=0.0, pool=False, threshold=0.0, T_max=0, beta=0.0, dual_clip_c=0.0)
    parent = grpo(num_rollouts=8, clip_low=0.1, clip_high=0.28)
    batch = ragged_batch(5, num_turns=(1, 1), groups=(3, 4, 2))
    ours, theirs = (pushed(each, stages(each, batch)) for each in (plain, parent))
    assert ours[0] == pytest.approx(theirs[0])
    torch.testing.assert_close(ours[1]["logp_T"], theirs[1]["logp_T"])
    assert plain.sampling == parent.sampling
    assert plain.curation == ()


def test_defaults_are_the_papers():
    algorithm = dart()
    (pool,) = algorithm.curation
    assert (pool.part.ready, pool.part.versions) == (0, 2)
    assert algorithm.sampling[0].part.num_rollouts == 8
    assert [term.coef for term in algorithm.terms] == [1.0, 0.1]
    assert algorithm.sampling[1].part == SpareSolvedPrompts(2, 0.6)
