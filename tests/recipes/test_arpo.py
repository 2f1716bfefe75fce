import pytest
import torch
from builders import flat_batch, ragged_batch, run, stages
from commands import Strop
from models import without_times

from strop.parts.advantage.credit.average_shared_prefixes import AverageSharedPrefixes
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.recipes.arpo import arpo
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

# Rollout 1 has two tokens of 0, rollout 2 three of 1 (two of them from 0), rollout 3 is alone.
TREE = {"parent_B": [-1, 0, 1, -1], "fork_at_B": [-1, 2, 3, -1]}


def test_shared_beginnings_learn_what_their_rollouts_earn_on_average():
    batch = flat_batch((3, 4, 5, 2), advantage_B=[1.0, -1.0, 0.5, 3.0], **TREE)
    found = run(AverageSharedPrefixes(), batch).value
    shared, pair = (1 - 1 + 0.5) / 3, (-1 + 0.5) / 2
    expected = [
        *[shared, shared, 1.0], *[shared, shared, pair, -1.0],
        *[shared, shared, pair, 0.5, 0.5], *[3.0, 3.0],
    ]  # fmt: skip
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    lone = batch.set(scored_B=torch.tensor([True, False, True, True]))
    found = run(AverageSharedPrefixes(), lone).value
    assert found.tolist() == pytest.approx(
        [0.75, 0.75, 1.0, *[0.0] * 4, 0.75, 0.75, 0.5, 0.5, 0.5, 3.0, 3.0], abs=1e-12
    )
    alike = batch.set(advantage_B=torch.full((4,), 0.1, dtype=torch.float64))
    assert run(AverageSharedPrefixes(), alike).value.eq(0.1).all()


def test_all_copies_of_a_token_together_learn_the_same_either_way():
    """The soft way's sum over copies is the hard way's: both are the sum of the advantages."""
    batch = flat_batch((3, 4, 5, 2), reward_B=[1.0, 0, 0, 1], **TREE)
    soft, hard = (stages(arpo(advantage=how), batch)["advantage_T"] for how in ("soft", "hard"))
    for copies in ([0, 3, 7], [1, 4, 8], [5, 9]):
        assert float(soft[copies].sum()) == pytest.approx(float(hard[copies].sum()))
    assert not soft.equal(hard)
    alone = ragged_batch(2).set(parent_B=torch.full((ragged_batch(2).size("B"),), -1))
    alone = alone.set(fork_at_B=alone["parent_B"])
    torch.testing.assert_close(
        run(AverageSharedPrefixes(), alone).value, run(SpreadEvenly(), alone).value
    )


def test_composition():
    algorithm = arpo(N=4, beam=3, w=0.5, num_rollouts=12)
    part = algorithm.rollout.part
    assert (part.initial, part.branching, part.penalty, part.monitor) == (4, (3, 0.5, 0.5), 0, 0)
    assert algorithm.sampling[0].part.num_rollouts == 12
    assert arpo().rollout.part.initial == 8
    assert arpo().sampling[0].part.num_rollouts == 16
    assert arpo().terms == grpo().terms
    assert arpo().advantage == grpo().advantage
    with pytest.raises(UserError, match="initial must be at least 1"):
        arpo(N=0)


def test_six_steps_from_the_command_line(tmp_path, monkeypatch, capsys):
    result = Strop(monkeypatch, capsys)(
        "train", "arpo(N=2,advantage='hard')", "data.task=calculator", "training.steps=6",
        "sampling.num_prompts=4", "sampling.num_rollouts=4", "evaluation.every=0",
        "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    lines = [line for line in without_times(tmp_path / "run") if line["step"]]
    assert len(lines) == 6
    assert {line["num_rollouts"] for line in lines} == {16}
    assert all(2 <= line["rollout/begun"] <= 4 for line in lines)
    assert sum(line["rollout/tokens_shared"] for line in lines) > 15
    assert "rollout/tokens_thrown_away" not in lines[0]


def test_an_engine_that_tells_no_likeliest_tokens_is_refused_before_step_1(
    tmp_path, monkeypatch, capsys
):
    from strop.engines.local import engine as local

    monkeypatch.setattr(local, "CAPABILITIES", local.CAPABILITIES - {"top"})
    run = tmp_path / "run"
    result = Strop(monkeypatch, capsys)(
        "train", "arpo", "data.task=calculator", "training.steps=1", "--out", run, "--quiet"
    )
    assert result.code != 0
    assert "branch_after_turns needs 'top', and the engine 'local' has no 'top'" in result.err


def test_a_task_without_turns_is_refused(tmp_path, monkeypatch, capsys):
    result = Strop(monkeypatch, capsys)("train", "arpo", "--out", tmp_path / "run", "--quiet")
    assert result.code != 0
    assert "branch_after_turns needs an environment" in result.err
