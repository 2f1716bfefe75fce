import math

import pytest
import torch
from builders import flat_batch, run, stages
from fakes.engine import TableEngine, by_last_token
from fakes.services import FakeEpisodes, FakeSampling, FakeServices, FakeTexts, strategy_of
from models import Lab
from runs import Runner

from strop import notation
from strop.errors import UserError
from strop.part import Draw
from strop.recipes.score_two_attempt import score_two_attempt
from strop.reward.reward_improvement import RewardImprovement
from strop.rollout.drive import roll_out
from strop.rollout.sample_independently import SampleIndependently
from strop.rollout.sample_two_attempts import SampleTwoAttempts
from strop.selection.keep_rollouts_of_stage import KeepRolloutsOfStage
from strop.training.metrics_file import read_metrics

# Token 0 ends; 1 is usually followed by 2, 2 by 1; after the word 3 comes 1, mostly.
TABLE = {0: (1, 0, 0, 0), 1: (0.3, 0.1, 0.6, 0), 2: (0.2, 0.7, 0.1, 0), 3: (0.1, 0.8, 0.1, 0)}
TEXTS = FakeTexts({5: (1,), 9: (2, 1)}, pieces={0: "", 1: "a", 2: "b", 3: "?"})
DRAWS = (Draw(5, 3), Draw(9, 2))


def sampled(part, context=100, draws=DRAWS):
    services = FakeServices(
        TEXTS, sampling=FakeSampling(answer_tokens=5, context_tokens=context),
        episodes=FakeEpisodes(letters={"a": 1, "b": 2, "?": 3}),
    )  # fmt: skip
    rng = torch.Generator().manual_seed(2)
    strategy = strategy_of(part, draws, services, rng)
    engine = TableEngine(by_last_token(TABLE), context_length=context)
    return roll_out(strategy, engine, services).batch


def rows_of(batch, column="id_T"):
    return [a.tolist() for a in torch.split(batch[column], batch["size_B"].tolist())]


def test_the_second_attempt_begins_with_the_first_and_the_words():
    batch = sampled(SampleTwoAttempts(words="?{prompt}?"))
    assert batch["stage_B"].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert batch["group_B"].tolist() == [0] * 6 + [1] * 4
    ids, mask = rows_of(batch), rows_of(batch, "mask_T")
    logp, keys = rows_of(batch, "logp_behavior_T"), batch["conversation_B"].tolist()
    prompts = {0: [1], 1: [2, 1]}
    for row, stage in enumerate(batch["stage_B"].tolist()):
        prompt = prompts[int(batch["group_B"][row])]
        given = prompt
        if stage:
            (one,) = [r for r in range(row) if keys[r] == keys[row]]
            assert int(batch["stage_B"][one]) == 0
            given = [*ids[one], 3, *prompt, 3]
        assert ids[row][: len(given)] == given
        assert mask[row] == [False] * len(given) + [True] * (len(ids[row]) - len(given))
        assert 1 <= int(batch["length_B"][row]) <= 5
        for place in range(len(given), len(ids[row])):
            drawn = TABLE[ids[row][place - 1]][ids[row][place]]
            assert logp[row][place] == pytest.approx(math.log(drawn), abs=1e-5)
    assert len(set(batch["rollout_uid_B"].tolist())) == 10
    assert batch["version_T"][batch["mask_T"]].eq(0).all()


def test_the_first_attempts_are_plain_samples():
    ours = sampled(SampleTwoAttempts(words="?"))
    theirs = sampled(SampleIndependently())
    ours = ours.keep(ours["stage_B"] == 0)
    for name in theirs.columns:
        assert ours[name].equal(theirs[name]), name


def test_without_room_there_is_no_second_attempt():
    batch = sampled(SampleTwoAttempts(words="???"), context=8)
    keys, sizes = batch["conversation_B"].tolist(), batch["size_B"].tolist()
    for row, stage in enumerate(batch["stage_B"].tolist()):
        if stage == 0:
            assert (keys.count(keys[row]) == 2) == (sizes[row] + 3 < 8)
    assert max(sizes) <= 8
    assert {keys.count(key) for key in keys} == {1, 2}


def test_worked_example():
    """(r1, r2) -> what the second attempt earns: 0, 11, -10, 1; the first keeps its own."""
    pairs = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    rewards = torch.tensor([r for pair in pairs for r in pair])
    batch = flat_batch(
        [2] * 8, reward_B=rewards, outcome_B=rewards, stage_B=torch.tensor([0, 1] * 4),
        conversation_B=torch.tensor([7, 7, 3, 3, 9, 9, 1, 1]), scored_B=torch.ones(8).bool(),
    )  # fmt: skip
    result = run(RewardImprovement(), batch)
    assert result.value.tolist() == [0, 0, 0, 11, 1, -10, 1, 1]
    assert result.metrics == {
        "attempts/first": 0.5, "attempts/second": 0.5, "attempts/gain": 0.0,
        "attempts/frac_repaired": 0.25, "attempts/frac_spoilt": 0.25,
    }  # fmt: skip
    assert run(RewardImprovement(alpha=0.0), batch).value.equal(rewards)
    # the advantage is the reward, the same at both tokens: no baseline
    for algorithm in score_two_attempt().algorithms:
        shaped = batch.set(reward_B=result.value)
        assert stages(algorithm, shaped)["advantage_T"].tolist() == [
            r for r in result.value.tolist() for _ in range(2)
        ]


def test_a_second_attempt_without_a_scored_first_keeps_its_reward():
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.5])
    batch = flat_batch(
        [1] * 4, reward_B=rewards, outcome_B=rewards, stage_B=torch.tensor([0, 1, 1, 0]),
        conversation_B=torch.tensor([2, 2, 5, 8]), scored_B=torch.tensor([False, True, True, True]),
    )  # fmt: skip
    result = run(RewardImprovement(), batch)
    assert result.value.equal(rewards)
    assert result.metrics == {}


def test_a_stage_alone_learns_and_counts():
    batch = flat_batch([2, 1, 3], stage_B=torch.tensor([0, 1, 0]))
    kept = run(KeepRolloutsOfStage(1), batch).value
    assert kept.gradient_T.tolist() == [False, False, True, False, False, False]
    assert kept.denominator_T.equal(kept.gradient_T)


def test_what_each_stage_trains_and_holds():
    one, two = score_two_attempt(beta1=0.02, beta2=0.2).algorithms
    held = {term.name: (term.on.part.stage, term.coef) for term in one.terms}
    assert held == {"policy": (1, 1.0), "kl_first": (0, 0.2)}
    held = {term.name: (term.on.part.stage, term.coef) for term in two.terms}
    assert held == {"policy": (1, 1.0), "first": (0, 1.0), "kl": (1, 0.02), "kl_first": (0, 0.02)}
    assert [each.reward[-1].part.alpha for each in (one, two)] == [0.0, 10.0]
    free = score_two_attempt(beta1=0.0, beta2=0.0)
    assert [[t.name for t in each.terms] for each in free.algorithms] == [
        ["policy"], ["policy", "first"]
    ]  # fmt: skip
    assert "logp_ref_T" not in free.reads()


def test_a_run_goes_through_both_stages(tmp_path):
    lab = Lab.make(tmp_path / "lab")
    raw = lab.raw("score_two_attempt", reward="even", training={"steps": 4})
    run_ = Runner().whole(raw, tmp_path / "run")
    lines = [line for line in read_metrics(run_.record.folder) if line["step"]]
    assert [line["phase"] for line in lines] == [1, 1, 2, 2]
    assert ["loss/first" in line for line in lines] == [False, False, True, True]
    assert all(line["grad_norm"] > 0 and "attempts/gain" in line for line in lines)
    # two prompts with four conversations of two attempts
    assert all(line["data/rollouts_sampled"] == 16 for line in lines)


def test_words_that_the_tokenizer_cannot_write(tmp_path):
    lab = Lab.make(tmp_path / "lab")
    raw = lab.raw("score_two_attempt(words='once more')", reward="even")
    runner = Runner()
    run_ = runner.start(raw, tmp_path / "run")
    with pytest.raises(UserError, match="does not know"):
        runner.go(run_)
    assert notation.recipe("score_two_attempt(words='a {prompt}')").algorithms[0].rollout.part
