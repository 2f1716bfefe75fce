import pytest
import torch
from builders import assert_same_push, flat_batch, learning, ragged_batch, run, stages
from commands import Strop
from models import without_times

from strop.method import notation
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.scale.fix_praise_of_successes import FixPraiseOfSuccesses
from strop.recipes.r3l import r3l
from strop.support.errors import UserError

PLAIN = {"parent_B": [-1] * 4, "fork_at_B": [-1] * 4}


def advantages(rewards, groups=None, **params):
    batch = flat_batch((1,) * len(rewards), groups, reward_B=rewards, **{
        name: [-1] * len(rewards) for name in ("parent_B", "fork_at_B")})  # fmt: skip
    return stages(r3l(**params), batch)["advantage_T"].tolist()


def test_worked_example():
    # b = .4: 1 -> 1 (a success), .4 -> 0, .1 -> -.3
    assert advantages([1.0, 0.4, 0.1, 0.1]) == pytest.approx([1, 0, -0.3, -0.3])
    assert advantages([0.0, 0, 0, 0]) == [0, 0, 0, 0]
    # groups of their own: baseline 0, so that a success has 1
    assert advantages([1.0, 0, 1], groups=(0, 0, 1)) == pytest.approx([1, -0.5, 1])
    assert advantages([1.0]) == [1]
    # b = .3: .5 - .3 = .2 counts three times
    assert advantages([0.5, 0.1]) == pytest.approx([0.6, -0.2])
    assert advantages([0.5, 0.1], alpha=1.0) == pytest.approx([0.2, -0.2])
    assert advantages([1.0, 1.0], praise=3.0) == [3, 3]


def test_unscored_rollouts_have_no_praise():
    batch = flat_batch((1, 1), advantage_B=[0.5, 0.5], reward_B=[1.0, 1.0])
    batch = batch.set(scored_B=torch.tensor([True, False]))
    assert run(FixPraiseOfSuccesses(praise=2.0), batch).value.tolist() == [2, 0]


def test_before_the_pivot_neither_of_the_two_learns():
    # 1 took two tokens of 0, 2 three of 0: 0 learns from its fourth on
    batch = flat_batch(
        (5, 4, 4, 2), reward_B=[0.0, 1, 0.2, 0.4],
        parent_B=[-1, 0, 0, -1], fork_at_B=[-1, 2, 3, -1],
    )  # fmt: skip
    rows = dict(learning(stages(r3l(), batch)))
    assert rows == {0: [3, 4], 1: [7, 8], 2: [12], 3: [13, 14]}
    assert dict(learning(stages(r3l(pivotal=False), batch)))[0] == [0, 1, 2, 3, 4]


def test_loss_is_the_published_one():
    """-mean_t m A logp / (1 + tau), and .001 of half the squared distance."""
    batch = ragged_batch(3)
    num = batch.size("B")
    batch = batch.set(parent_B=torch.full((num,), -1), fork_at_B=torch.full((num,), -1))
    algorithm = r3l(tau=3.0, beta=0.001)
    batch = stages(algorithm, batch)
    kept, counted = batch["gradient_T"], batch["denominator_T"].sum()
    weight, reference = batch["advantage_T"], batch["logp_ref_T"]

    def loss_of(logp):
        follow = -(weight * logp)[kept].sum() / counted / 4
        return follow + 0.001 * ((logp - reference) ** 2 / 2)[kept].sum() / counted

    assert_same_push(algorithm, batch, loss_of)


def test_reduces_to_reinforce_with_the_group_mean():
    algorithm = r3l(alpha=1.0, praise=0.0, pivotal=False)
    batch = flat_batch((1,) * 3, reward_B=[0.9, 0.3, 0.0])
    centred = run(SubtractGroupMean(), batch.set(advantage_B=batch["reward_B"])).value
    assert stages(algorithm, batch)["advantage_T"].tolist() == pytest.approx(centred.tolist())


def test_composition_and_mistakes():
    algorithm = r3l()
    assert algorithm.sampling[0].part.num_rollouts == 4  # of the paper's 8: the others are retries
    assert [term.coef for term in algorithm.terms] == [0.5]
    assert notation.recipe("r3l(form='json')").rollout.part.form == "json"
    assert "logp_ref_T" in r3l(beta=0.1).reads()
    with pytest.raises(UserError, match="num_rollouts must be at least 1"):
        r3l(num_rollouts=0)


def test_three_steps_from_the_command_line(tmp_path, monkeypatch, capsys):
    result = Strop(monkeypatch, capsys)(
        "train", "r3l", "data.task=corridor", "training.steps=3", "sampling.num_prompts=4",
        "evaluation.every=0", "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code == 0, result.err
    lines = [line for line in without_times(tmp_path / "run") if line["step"]]
    assert len(lines) == 3
    for line in lines:
        assert line["num_rollouts"] == 16 + line["retry/tried"] + 2 * line["retry/better"]
        assert line["rollout/tokens_thrown_away"] == 16 - line["retry/better"]
    assert sum(line["retry/tried"] for line in lines) > 3


def test_words_for_the_form_json_are_refused_by_a_tokenizer_of_digits(
    tmp_path, monkeypatch, capsys
):
    result = Strop(monkeypatch, capsys)(
        "train", "r3l(form='json')", "data.task=corridor", "training.steps=1",
        "evaluation.every=0", "--out", tmp_path / "run", "--quiet",
    )  # fmt: skip
    assert result.code != 0
    assert "a text of an episode has letters" in result.err
