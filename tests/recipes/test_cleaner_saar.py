import dataclasses

import pytest
from commands import Strop
from models import without_times

from strop.recipes.cleaner_saar import cleaner_saar
from strop.recipes.dapo import dapo
from strop.support.errors import UserError


def test_composition():
    algorithm = cleaner_saar()
    part = algorithm.rollout.part
    assert (part.share, part.max_tries, part.likeness, part.marker) == (1.0, 3, 0.5, "<tool_call>")
    parent = dapo(dual_clip_c=10.0, num_minibatches=4)
    assert dataclasses.replace(algorithm, rollout=parent.rollout) == parent
    objective = algorithm.terms[0].objective.part
    assert (objective.clip_low, objective.clip_high, objective.dual_clip_c) == (0.2, 0.28, 10.0)
    assert algorithm.sampling[0].part.num_rollouts == 16
    for wrong, said in ({"p_roll": 2.0}, "share"), ({"max_retry": -1}, "max_tries"):
        with pytest.raises(UserError, match=f"rewrite_failed_turns.{said} must be"):
            cleaner_saar(**wrong)


def test_three_steps_from_the_command_line(tmp_path, monkeypatch, capsys):
    result = Strop(monkeypatch, capsys)(
        "train", "cleaner_saar(marker='')", "data.task=corridor", "training.steps=3",
        "sampling.num_prompts=8", "sampling.num_rollouts=8", "evaluation.every=0",
        "curation.drop_uniform_groups.max_rounds=1", "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    lines = [line for line in without_times(tmp_path / "run") if line["step"]]
    assert len(lines) == 3
    for line in lines:
        assert line["repair/kept"] == line["repair/whole"] <= line["repair/tried"]
        assert line["repair/failed"] > 0
        assert line.get("rollout/tokens_thrown_away", 0) >= line["repair/kept"]
    assert sum(line["repair/kept"] for line in lines) > 3
