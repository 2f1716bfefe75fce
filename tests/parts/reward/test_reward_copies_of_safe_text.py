import pytest
import torch
from builders import flat_batch, run
from fakes.services import FakeGrading, FakeServices, FakeTexts

from strop.parts.reward.reward_copies_of_safe_text import RewardCopiesOfSafeText
from strop.support.errors import UserError

ROWS = {7: {"safe": True, "completion": "as it was"}, 8: {"safe": False, "completion": "bad"}}


def paid(said, rows=ROWS, scored=(True,) * 4):
    batch = flat_batch(
        (1,) * 4, (0, 0, 1, 1), reward_B=[0.3, 0.3, 0.4, 0.5], outcome_B=[0.3, 0.3, 0.4, 0.5],
        scored_B=list(scored),
    )  # fmt: skip
    services = FakeServices(FakeTexts(rows=rows, said=said), FakeGrading())
    return run(RewardCopiesOfSafeText(), batch.set(uid_P=torch.tensor([7, 8])), services=services)


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
