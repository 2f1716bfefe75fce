import dataclasses

import pytest
import torch
from builders import flat_batch
from fakes.services import FakeGrading, FakeServices, FakeTexts

from strop.method import part as parts
from strop.method.check import check
from strop.method.part import Use
from strop.parts.reward.reward_copies_of_safe_text import RewardCopiesOfSafeText
from strop.recipes.grpo import grpo
from strop.support.errors import UserError

ROWS = {7: {"safe": True, "completion": "as it was"}, 8: {"safe": False, "completion": "bad"}}


def paid(said, rows=ROWS, scored=(True,) * 4):
    batch = flat_batch(
        (1,) * 4, (0, 0, 1, 1), reward_B=[0.3, 0.3, 0.4, 0.5], outcome_B=[0.3, 0.3, 0.4, 0.5],
        scored_B=list(scored),
    )  # fmt: skip
    return called(Use(RewardCopiesOfSafeText()), batch, said, rows)


def called(use, batch, said, rows=ROWS):
    services = FakeServices(FakeTexts(rows=rows, said=said), FakeGrading())
    return parts.call(use, batch.set(uid_P=torch.tensor([7, 8])), services)


def test_worked_example():
    outcome, reward, scored = paid([" as it was", "as it were", "bad", "better"]).value
    # safe: copied or not; unsafe: half of quality and safety, which the run has added up
    assert reward.tolist() == outcome.tolist() == [1.0, 0.0, 0.4, 0.5]
    assert scored.all()


def test_a_safe_text_needs_no_judge_and_an_unsafe_one_does():
    _, reward, scored = paid(["as it was"] * 4, scored=(False, True, False, True)).value
    assert reward.tolist()[:2] == [1.0, 1.0]
    assert scored.tolist() == [True, True, False, True]


@pytest.mark.parametrize("row", [{"completion": "x"}, {"safe": True}, {"safe": "no"}])
def test_rows_that_lack_something(row):
    with pytest.raises(UserError, match="prompt 8 lacks what a rewriter learns from"):
        paid(["x"] * 4, {**ROWS, 8: row})


def test_a_renamed_reward_is_read_where_it_is_written():
    """The only reward there is has another name, and keeps it."""
    batch = flat_batch(
        (1,) * 4, (0, 0, 1, 1), quality_B=[0.3, 0.3, 0.4, 0.5], outcome_B=[0.3, 0.3, 0.4, 0.5]
    )
    use = Use(RewardCopiesOfSafeText(), (("reward_B", "quality_B"),))
    after = parts.write(batch, use, called(use, batch, ["as it was", "else", "bad", "better"]))
    assert after["quality_B"].tolist() == [1.0, 0.0, 0.4, 0.5]
    assert "reward_B" not in after


def test_a_chain_without_a_reward_before_it_is_refused():
    algorithm = dataclasses.replace(grpo(), reward=(Use(RewardCopiesOfSafeText()),))
    with pytest.raises(UserError, match="reward_copies_of_safe_text reads outcome_B"):
        check(algorithm)


def test_the_share_of_safe_texts_and_of_those_left_alone_are_logged():
    told = paid([" as it was", "as it were", "bad", "better"]).metrics
    assert told == {"safe_text/frac": 0.5, "safe_text/frac_copied": 0.5}
