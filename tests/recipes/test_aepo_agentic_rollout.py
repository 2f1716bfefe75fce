import dataclasses

from commands import Strop
from models import without_times

from strop.recipes.aepo_agentic_loss import aepo_agentic_loss
from strop.recipes.aepo_agentic_rollout import aepo_agentic_rollout
from strop.recipes.arpo import arpo


def test_composition():
    algorithm = aepo_agentic_rollout()
    part = algorithm.rollout.part
    assert (part.initial, part.branching, part.penalty, part.monitor) == (8, (2, 0.2, 0.5), 0.05, 0)
    assert algorithm.sampling[0].part.num_rollouts == 16
    assert (
        dataclasses.replace(algorithm, rollout=aepo_agentic_loss().rollout) == aepo_agentic_loss()
    )
    looking = aepo_agentic_rollout(pre_monitoring=True, sharpness=0.7)
    assert looking.rollout.part.monitor == 0.7
    # without a penalty and with a given number that begin: arpo's branches
    assert aepo_agentic_rollout(penalty=0.0).rollout == arpo().rollout


def test_three_steps_from_the_command_line(tmp_path, monkeypatch, capsys):
    method = "aepo_agentic_rollout(pre_monitoring=true,penalty=0.2)"
    result = Strop(monkeypatch, capsys)(
        "train", method, "data.task=corridor", "training.steps=3", "sampling.num_prompts=4",
        "sampling.num_rollouts=6", "evaluation.every=0", "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    lines = [line for line in without_times(tmp_path / "run") if line["step"]]
    assert len(lines) == 3
    assert {line["num_rollouts"] for line in lines} == {24}
    assert all(1 <= line["rollout/begun"] <= 6 for line in lines)
    # a probe and an episode of each prompt were looked at
    assert all(line["rollout/tokens_thrown_away"] >= 8 for line in lines)
