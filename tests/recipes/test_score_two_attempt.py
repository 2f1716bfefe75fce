import pytest
import torch
from builders import flat_batch, run, stages
from models import Lab
from runs import Runner

from strop.method import notation
from strop.parts.reward.reward_improvement import RewardImprovement
from strop.parts.selection.keep_rollouts_of_stage import KeepRolloutsOfStage
from strop.recipes.score_two_attempt import score_two_attempt
from strop.support.errors import UserError
from strop.tracking.metrics_file import read_metrics


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
    with pytest.raises(UserError, match="has letters that the model's tokenizer would read as"):
        runner.go(run_)
    assert notation.recipe("score_two_attempt(words='a {prompt}')").algorithms[0].rollout.part
