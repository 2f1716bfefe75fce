import itertools
from contextlib import contextmanager

import pytest
import torch
from builders import answers, flat_batch, run, stages
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeSampling, over_table, rolled_out
from short_runs import steps_from_a_shell

from strop.method.part import Draw
from strop.parts.advantage.scale.divide_by_reward_std import DivideByRewardStd
from strop.parts.rollout.explore_then_regenerate import ExploreThenRegenerate, best_and_worst
from strop.parts.rollout.sample_independently import SampleIndependently
from strop.recipes.sol_rl_explore_then_train import sol_rl_explore_then_train
from strop.support.errors import UserError

PROMPTS = {5: (1,), 9: (2, 1)}
DRAWS = (Draw(5, 8), Draw(9, 6))
OLD = {1: (0.2, 0.5, 0.3), 2: (0.3, 0.4, 0.3)}
NEW = {1: (0.2, 0.3, 0.5), 2: (0.3, 0.3, 0.4)}


class TwoPolicies(TableEngine):
    """Samples with old weights; inside `newest` with new ones."""

    newer = OLD

    @contextmanager
    def newest(self):
        older = self.probabilities
        self.load_weights(by_last_token(self.newer), 1)
        yield
        self.load_weights(older, 0)


def score(ids):
    """Share of twos in an answer, and a tenth: the worst have something too."""
    return 0.1 + sum(id == 2 for id in ids) / max(len(ids), 1)


def rolled(part, newer=OLD, draws=DRAWS):
    engine = TwoPolicies(by_last_token(OLD))
    engine.newer = newer
    services = over_table(engine, PROMPTS, score, answer_tokens=6)
    found = rolled_out(part, draws, engine, services, torch.Generator().manual_seed(3))
    assert engine.rows == {}
    return found, engine, services


def by_uid(batch):
    return dict(zip(batch["rollout_uid_B"].tolist(), answers(batch), strict=True))


def test_worked_example_of_the_choice():
    assert best_and_worst([0.9, 0.1, 0.5, 0.7, 0.3, 0.6], 4) == ([0, 3], [1, 4])
    assert best_and_worst([1.0, 1.0, 1.0, 1.0], 4) == ([0, 1], [2, 3])
    assert best_and_worst([0.0, 1.0, 0.5], 3) == ([1, 2], [0])


def test_answers_without_a_score_are_chosen_last():
    none = float("nan")
    assert best_and_worst([none, 0.5, 0.0, 1.0, none], 2) == ([3], [2])
    assert best_and_worst([none, 0.5, 0.0, 1.0, none], 4) == ([3, 1], [2, 0])
    engine = TwoPolicies(by_last_token(OLD))
    half = over_table(engine, PROMPTS, lambda ids: score(ids) if 2 in ids else None)
    rng = torch.Generator().manual_seed(3)
    found = rolled_out(ExploreThenRegenerate(keep=2), DRAWS, engine, half, rng)
    assert all(2 in ids for ids in answers(found.batch))  # the same policy repeats them
    spread = [max(own) - min(own) for own in scores_of_draws(half.grading.graded)]
    assert found.metrics["exploring/spread"] == pytest.approx(sum(spread) / 2)


def scores_of_draws(graded):
    """The scores of the explored answers that have one, by draw."""
    rest = iter(graded)
    return [
        [score(ids) for ids in itertools.islice(rest, draw.num_rollouts) if 2 in ids]
        for draw in DRAWS
    ]


def test_worked_example_of_the_advantage():
    """Exact rewards .8 .75 .2 .25: mean .5, deviation .276134."""
    rewards = torch.tensor([0.8, 0.75, 0.2, 0.25], dtype=torch.float64)
    batch = flat_batch((1,) * 4, reward_B=rewards.tolist(), advantage_B=rewards.tolist())
    found = stages(sol_rl_explore_then_train(eps=0.0), batch)["advantage_B"]
    assert found.tolist() == pytest.approx([1.0864, 0.9054, -1.0864, -0.9054], abs=5e-5)


def test_deviation_is_that_of_all_scored_rewards():
    batch = flat_batch((1,) * 4, groups=(0, 0, 1, 1), reward_B=[1.0, 0, 3, 9],
                       advantage_B=[0.5, -0.5, 1.0, 7.0])  # fmt: skip
    batch = batch.set(scored_B=torch.tensor([True, True, True, False]))
    found = run(DivideByRewardStd(0.0), batch).value
    std = (14 / 9) ** 0.5  # of 1, 0, 3 about 4/3
    assert found[:3].tolist() == pytest.approx([0.5 / std, -0.5 / std, 1 / std])
    damped = run(DivideByRewardStd(0.5), batch).value
    assert damped.tolist() == pytest.approx([x / (std + 0.5) for x in (0.5, -0.5, 1, 0)])


@pytest.mark.parametrize("newer", [OLD, NEW])
def test_the_newest_policy_answers_the_seeds_of_the_best_and_worst(newer):
    found, _, services = rolled(ExploreThenRegenerate(keep=4), newer)
    tried = rolled(SampleIndependently())[0].batch
    texts, group = by_uid(tried), tried["group_B"].tolist()
    again = TwoPolicies(by_last_token(newer))
    exact = over_table(again, PROMPTS, score, answer_tokens=6)
    regenerated = by_uid(
        rolled_out(
            SampleIndependently(), DRAWS, again, exact, torch.Generator().manual_seed(3)
        ).batch
    )
    expected, spread = [], []
    for number in (0, 1):
        own = [uid for uid, g in zip(texts, group, strict=True) if g == number]
        high, low = best_and_worst([score(texts[uid]) for uid in own], 4)
        expected += [own[place] for place in sorted((*high, *low))]
        spread += [sum(score(texts[own[p]]) for p in places) / 2 for places in (high, low)]
    assert found.batch["rollout_uid_B"].tolist() == expected
    assert by_uid(found.batch) == {uid: regenerated[uid] for uid in expected}
    assert found.batch["group_B"].tolist() == [0] * 4 + [1] * 4
    repeated = sum(regenerated[uid] == texts[uid] for uid in expected) / 8
    assert found.metrics["exploring/repeated"] == repeated
    assert repeated == 1 if newer is OLD else 0 < repeated < 1
    mean = (spread[0] + spread[2]) / 2 - (spread[1] + spread[3]) / 2
    assert found.metrics["exploring/spread"] == pytest.approx(mean)
    assert found.num_discarded == sum(map(len, texts.values()))
    versions = found.batch["version_T"][found.batch["mask_T"]]
    assert set(versions.tolist()) == {1}
    assert services.grading.graded == list(texts.values())


@pytest.mark.parametrize("explores", [False, True])
def test_equals_plain_samples_when_all_are_kept(explores, monkeypatch):
    monkeypatch.setattr(FakeSampling, "explores", explores)
    ours, theirs = rolled(ExploreThenRegenerate(keep=8))[0], rolled(SampleIndependently())[0]
    for name, column in theirs.batch.columns.items():
        assert ours.batch[name].equal(column), name


def test_composes_and_mistakes_are_refused():
    algorithm = sol_rl_explore_then_train()
    assert algorithm.sampling[0].part.num_rollouts == 96
    assert algorithm.rollout.part.keep == 24
    with pytest.raises(UserError, match="K=5 answers cannot be chosen of N=4"):
        sol_rl_explore_then_train(N=4, K=5)
    with pytest.raises(UserError, match="keep"):
        sol_rl_explore_then_train(K=1)


@pytest.mark.parametrize("decay", [0, 0.9])
def test_steps_from_the_command_line(decay, tmp_path, strop):
    method = f"sol_rl_explore_then_train(K=2, decay={decay})"
    lines = steps_from_a_shell(strop, tmp_path, method, 10)
    assert {line["num_rollouts"] for line in lines} == {4}
    assert {line["sampling/age_steps"] for line in lines} == {0}
    repeated = [line["exploring/repeated"] for line in lines]
    assert repeated == [1.0] * 10 if not decay else min(repeated) < 1
    assert all(line["rollout/tokens_thrown_away"] > 0 for line in lines)


def test_the_deviation_of_all_rewards_is_logged():
    batch = flat_batch((1,) * 4, (0, 0, 1, 1), advantage_B=[0.5, -0.5, 0.0, 0.0],
                       reward_B=[1.0, 0.0, 0.0, 0.0])  # fmt: skip
    told = run(DivideByRewardStd(), batch).metrics
    assert told == {"advantage/batch_std": pytest.approx(3**0.5 / 4)}
