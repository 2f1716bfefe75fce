"""Methods that learn from a teacher or from votes train on prompts that nothing scores."""

import json

import pytest

from strop.method import notation

ROWS = [{"prompt": f"{a},{b}:{a + b}=", "completion": f"{a}+{b}"}
        for a in range(1, 5) for b in (3, 7)]  # fmt: skip
ZERO = "def zero(completions, **columns):\n    return [0.0] * len(completions)\n"
OF_REWARDS = {"reward", "reward_std", "reward_judged"}
OF_GROUPS = {"frac_reward_zero_std", "groups/frac_all_0", "groups/frac_mixed", "advantage/abs_mean"}


@pytest.fixture
def train(strop, tmp_path, monkeypatch):
    """Trains `tiny` on eight prompts for three steps; returns what was said."""
    monkeypatch.chdir(tmp_path)
    for name in ("data.jsonl", "validation.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "zero.py").write_text(ZERO)
    words = ["--model", "tiny", "--data", "data.jsonl", "training.steps=3", "training.lr=3e-3",
             "rollout.max_tokens=6", "sampling.num_prompts=4"]  # fmt: skip
    return lambda *more: strop("train", *words, *more)


def ended(run):
    """The weights at the end, and the metrics of the last step."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    weights = (run / "checkpoints/step-000003/model.safetensors").read_bytes()
    return weights, json.loads(lines[-1])


@pytest.mark.parametrize("recipe", ["gkd", "on_policy_distillation"])
def test_a_teacher_says_all(train, strop, tmp_path, recipe):
    """The weights are those with a reward that says nothing, which the log has."""
    assert train("sft", "--out", "teacher").code == 0
    words = [recipe, "model.reference=teacher/checkpoints/step-000003"]
    result = train(*words, "--out", "alone")
    assert result.code == 0, result.err
    assert "reward" not in result.out.partition("\n")[2].partition("done in")[0]
    assert "loss" in result.out
    weights, metrics = ended(tmp_path / "alone")
    assert metrics["grad_norm"] > 0
    assert not metrics.keys() & (OF_REWARDS | OF_GROUPS)
    assert train(*words, "--reward", "zero.py:zero", "--out", "scored").code == 0
    same, logged = ended(tmp_path / "scored")
    assert same == weights
    assert logged.keys() >= OF_REWARDS
    assert not logged.keys() & OF_GROUPS
    assert "?  problem" not in strop("doctor", "alone").out


def test_a_judge_of_validation_alone(train, strop):
    """It scores the validations, also after the run, and no other split."""
    words = ["model.reference=tiny", "--validation", "validation.jsonl"]
    result = train("gkd", *words, "evaluation.reward=zero.py:zero", "--out", "run")
    assert "eval/validation/pass@1: 0.000 -> 0.000" in result.out
    words = ["eval", "run", "--k", "1", "--trust-files", "--split"]
    assert "pass@1" in strop(*words, "validation").out
    assert "nothing scores these answers" in strop(*words, "train").err


def test_votes_need_no_labels(train, tmp_path):
    assert train("ettrl_ear", "--out", "alone").code == 0
    weights, metrics = ended(tmp_path / "alone")
    assert 0 < metrics["reward"] <= metrics["majority/share"]
    assert metrics.keys() >= OF_GROUPS
    assert "majority/right" not in metrics
    assert train("ettrl_ear", "--reward", "zero.py:zero", "--out", "scored").code == 0
    same, logged = ended(tmp_path / "scored")
    assert (same, logged["majority/right"]) == (weights, 0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["grpo"], "nothing scores the answers: give a reward function with --reward"),
        (["on_policy_distillation(rewards=true)", "model.reference=tiny"], "nothing scores the"),
        (["gkd", "model.reference=tiny", "curation=drop_uniform_groups"], "nothing scores the"),
        (["gkd", "model.reference=tiny", "--validation", "validation.jsonl"],
         "validation samples answers, which nothing scores: give a reward function that does"),
    ],
)  # fmt: skip
def test_what_needs_a_score_asks_for_it(train, tmp_path, words, why):
    result = train(*words, "--out", "run")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert why in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "columns", "needs"),
    [
        ("grpo", {"advantage_B"}, True),
        ("gigpo", {"advantage_B", "reward_K"}, True),
        ("sft", set(), False),
        ("dpo", {"preferred_B"}, True),
        ("spine", {"advantage_B"}, False),
    ],
)
def test_columns_of_rewards_that_are_learnt_from(recipe, columns, needs):
    algorithm = notation.recipe(recipe)
    assert algorithm.reward_columns() == columns
    assert algorithm.needs_scores() == needs
