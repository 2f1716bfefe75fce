"""Methods in phases as a user types them, on the shipped model."""

import json

import pytest

from strop.training.settings import config

SHORT = ("sampling.num_prompts=2", "sampling.num_rollouts=4", "evaluation.every=0",
         "evaluation.num_samples=2", "training.save_every=1")  # fmt: skip


def phases_of(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line).get("phase") for line in lines if json.loads(line)["step"]]


def test_train_resume_and_what_is_made_of_the_run(strop, tmp_path):
    folder = tmp_path / "run"
    result = strop("train", "until(1, cure(min_letters=1)) | dapo", *SHORT, "training.steps=2")
    assert result.code == 2
    assert "cure has phases of its own" in result.err
    words = (
        "cure(min_letters=1)",
        "--model",
        "tiny",
        *SHORT,
        "phases.explore.until=1",
        "training.steps=2",
    )
    result = strop("train", *words, "--out", folder)
    assert result.code == 0, result.err
    assert "cure(min_letters=1) (phases explore, sharpen) on countdown" in result.out
    assert "step 1/2  phase 1 (explore)" in result.out
    assert "step 2/2  phase 2 (sharpen)" in result.out
    assert phases_of(folder) == [1, 2]
    again = strop("train", "--resume", folder, "training.steps=3")
    assert again.code == 0, again.err
    assert phases_of(folder) == [1, 2, 2]  # of three steps the first is a third
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "phases.explore.until" in page
    assert "explore, sharpen" in page
    result = strop("sample", folder, "3,5,7:22=")
    assert result.code == 0, result.err
    result = strop("doctor", folder)
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cure(until=300)"], "phase sharpen would begin after step 300, and the run has 200"),
        (["until(entropy < 0, grpo) | dapo"], "until entropy < 0.0: that never happens"),
        (["until(9, grpo) | until(3, dapo) | rloo"], "so they must rise"),
        (["cure", "phases.explor.until=3"], "no phase 'explor', did you mean explore"),
        (
            ["cure", "phases.explore.untill=3"],
            "no option phases.explore.untill, did you mean until",
        ),
        (["grpo", "phases.explore.until=3"], "phases: give at least two"),
        (["cure(until='later')"], "'later' is neither a step nor a condition"),
    ],
)
def test_a_phase_that_never_comes_is_one_line_before_step_1(strop, tmp_path, words, message):
    folder = tmp_path / "run"
    result = strop("train", *words, "--out", folder)
    assert result.code == 2
    assert message in " ".join(result.err.split())
    assert result.err.count("\n") == 1
    assert not folder.exists()


def test_the_page_of_a_recipe_and_its_file(strop, tmp_path):
    result = strop("recipes", "cure")
    assert result.code == 0
    assert "explore until 0.5" in result.out
    assert "rollout (explore)" in result.out
    file = tmp_path / "cure.toml"
    file.write_text(strop("recipes", "cure", "--toml").out, encoding="utf-8")
    made = config.load(file).build()
    assert made == config.make({"recipe": "cure"}).build()
