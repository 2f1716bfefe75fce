import dataclasses
import math

import pytest
import torch
from builders import flat_batch, ragged_batch, stages
from models import Lab
from runs import Runner

from strop import functional
from strop.batch.batch import Batch
from strop.method import part as parts
from strop.method.algorithm import Algorithm
from strop.method.chains import generators
from strop.method.check import check
from strop.method.part import Use
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.parts.plan.update_turn_by_turn import UpdateTurnByTurn
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.recipes._base import with_policy
from strop.recipes.gspo import gspo
from strop.recipes.seeupo import seeupo
from strop.support.errors import UserError
from strop.training.learner.policy import Policy
from strop.training.learner.step_models import StepModels
from strop.training.learner.update import Learner

REWARDS = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0], dtype=torch.float64)
GROUPS = torch.tensor([0] * 4 + [1] * 4)


def test_advantages_of_the_worked_example():
    found = functional.advantages("seeupo", rewards=REWARDS, groups=GROUPS)
    high, low = 1.6202, -0.5401
    expected = [high, low, low, low, -low, -low, -low, -high]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    bounded = functional.advantages("seeupo", rewards=REWARDS, groups=GROUPS, params={"clamp": 1.0})
    assert bounded.tolist() == pytest.approx([1, low, low, low, -low, -low, -low, -1], abs=1e-4)
    equal = functional.advantages("seeupo", rewards=torch.ones(8), groups=GROUPS)
    assert equal.tolist() == [0.0] * 8
    centred = functional.advantages(
        "seeupo", rewards=REWARDS, groups=GROUPS, params={"std_floor": 0.5}
    )
    assert centred[0] == 0.75


def played(batch, part, changes):
    """(rollouts, factors) of every update when update n changes log-probabilities by changes[n]."""
    rng = torch.Generator().manual_seed(0)
    batch = batch if "advantage_T" in batch else batch.set(advantage_T=batch["mask_T"].double())
    plan = parts.call(Use(part), batch, rng=rng).value
    seen, answer = [], None
    while True:
        try:
            update = plan.send(answer)
        except StopIteration:
            return seen
        assert update.before == ("logp_old_T",)
        assert update.after == ("logp_T",)
        rows = update.tokens_T.nonzero().squeeze(1)
        factor = {int(batch["rollout_T"][t]): float(update.factor_T[t]) for t in rows}
        seen.append((sorted(set(batch["index_K"][batch["turn_T"][rows]].tolist())), factor))
        change_T = torch.where(update.tokens_T, changes[len(seen) - 1], 0.0)
        answer = (batch, {"logp_old_T": torch.zeros_like(change_T), "logp_T": change_T})


def three_turns():
    """Rollout 0 has three turns of two tokens, rollout 1 has two."""
    batch = flat_batch((2,) * 5, groups=(0,) * 5, advantage_T=[1.0] * 10)
    columns = {name: c for name, c in batch.columns.items() if not name.endswith("_B")}
    columns |= {"group_B": torch.tensor([0, 0]), "rollout_K": torch.tensor([0, 0, 0, 1, 1])}
    return Batch({**columns, "index_K": torch.tensor([0, 1, 2, 0, 1])})


def test_factors_of_the_worked_example():
    # s = 1.1, then 1.15: M = 1.1, then 1.265 held at 1.2; the next turn uses 1.6202 * 1.1
    changes = [math.log(1.1), math.log(1.15), 0.0]
    (last, first), (middle, second), (opening, third) = played(
        three_turns(), UpdateTurnByTurn(), changes
    )
    assert [last, middle, opening] == [[2], [1], [0]]
    assert first == {0: 1.0}
    assert second == pytest.approx({0: 1.1, 1: 1.0})
    assert third == pytest.approx({0: 1.2, 1: 1.15})
    assert 1.6202 * second[0] == pytest.approx(1.7822, abs=1e-4)


def test_order_bounds_and_width_zero():
    batch = three_turns()
    forward = played(batch, UpdateTurnByTurn("forward"), [-9.0, 0.0, 9.0])
    assert [turns for turns, _ in forward] == [[0], [1], [2]]
    assert forward[1][1] == pytest.approx({0: 0.8, 1: 0.8})
    random = played(batch, UpdateTurnByTurn("random"), [0.0] * 3)
    assert sorted(turns for turns, _ in random) == [[0], [1], [2]]
    alone = played(batch, UpdateTurnByTurn(carry_low=0.0, carry_high=0.0), [0.3] * 3)
    assert all(value == 1.0 for _, factors in alone for value in factors.values())
    wide = UpdateTurnByTurn(carry_low=1.0, carry_high=1e9, carry_nats=2.0)
    assert played(batch, wide, [5.0, 0.0, 0.0])[1][1][0] == pytest.approx(math.exp(2.0))
    with pytest.raises(UserError, match="must be one of reverse, forward, random"):
        UpdateTurnByTurn("sequential")


def test_with_one_turn_it_is_one_update_of_sequence_level_loss():
    algorithm = seeupo(beta=0.0)
    batch = stages(algorithm, ragged_batch(2, groups=(4, 3), num_turns=(1, 1)))
    assert batch.size("K") == batch.size("B")
    ((turns, factors),) = played(batch, UpdateTurnByTurn(), [0.1])
    assert turns == [0]
    assert set(factors.values()) == {1.0}
    given = {
        "logp": torch.randn(5, 4, dtype=torch.float64), "mask": torch.rand(5, 4) < 0.8,
        "logp_old": torch.randn(5, 4, dtype=torch.float64), "advantages": torch.randn(5).double(),
    }  # fmt: skip
    ours = functional.token_weights("seeupo", **given, params={"beta": 0.0})
    theirs = functional.token_weights("gspo", **given, params={"clip_low": 0.2, "clip_high": 0.2})
    torch.testing.assert_close(ours, theirs)
    sequence = with_policy(algorithm, ratio=Use(RatioPerSequence())).terms
    assert sequence == gspo(clip_low=0.2, clip_high=0.2).terms


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    runner = Runner()
    run = runner.start(Lab.make(folder / "lab").raw("grpo"), folder / "run")
    yield run
    run.close()


def test_a_plan_is_sent_what_its_update_recomputed_and_measured(run):
    """Against the policy's own columns before and after each of the updates."""
    batch = ragged_batch(3, groups=(3, 3), num_turns=(2, 3), dtype=torch.float32, unscored=())
    algorithm: Algorithm = seeupo(beta=0.0, clip_low=1.0, clip_high=9.0)
    batch = batch.set(id_T=batch["id_T"] % 20 + 1)
    batch = stages(algorithm, batch)
    policy: Policy = run.world.policy
    learner = Learner(StepModels(policy, 1.0), 1e-2, generators(0, 1))
    told = []

    class Listening(UpdateTurnByTurn):
        def carried(self, factor_B, change_T, rollout_T, chosen_T):
            now = policy.columns(batch, ("logp_T",), 1.0)["logp_T"]
            told.append((change_T, chosen_T, now))
            return super().carried(factor_B, change_T, rollout_T, chosen_T)

    before = policy.columns(batch, ("logp_T",), 1.0)["logp_T"]
    learner.learn(dataclasses.replace(algorithm, plan=Use(Listening())), batch)
    assert len(told) == int(batch["index_K"].max()) + 1
    for change_T, chosen_T, now in told:
        torch.testing.assert_close(change_T[chosen_T], (now - before)[chosen_T], atol=1e-5, rtol=0)
        assert (change_T[chosen_T] != 0).any()
        without = ~torch.isin(batch["rollout_T"], batch["rollout_T"][chosen_T])
        assert not change_T[without].any()
        before = now


def test_composes():
    algorithm = seeupo(num_prompts=4)
    check(algorithm)
    assert [term.name for term in algorithm.terms] == ["policy", "kl"]
    assert not isinstance(algorithm.rollout.part, SampleIndependently)


def test_the_plan_tells_how_far_factors_were_carried():
    batch = three_turns()
    batch = batch.set(advantage_T=batch["mask_T"].double())
    plan = parts.call(Use(UpdateTurnByTurn()), batch, rng=torch.Generator()).value
    update, none_T = next(plan), torch.zeros(10, dtype=torch.float64)
    for _ in range(2):
        update = plan.send((batch, {"logp_old_T": none_T, "logp_T": none_T + math.log(1.1)}))
    assert update.tokens_T.any()
    with pytest.raises(StopIteration) as end:
        plan.send((batch, {"logp_old_T": none_T, "logp_T": none_T}))
    # rollout 0 ends at 1.21, held at 1.2, rollout 1 at 1.1
    assert end.value.value == {"turns/carried_change": pytest.approx(0.15)}
