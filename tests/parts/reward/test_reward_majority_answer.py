import pytest
import torch
from builders import flat_batch, run
from fakes.services import FakeServices, FakeTexts

from strop.environments.tasks import Task
from strop.parts.reward.reward_majority_answer import RewardMajorityAnswer
from strop.support.errors import UserError
from strop.training.services.run import NoGrader, RunGrading


def voted(answers, groups=None, unscored=(), outcome=None, **fields):
    """The part's result for final answers given as texts; "" is none."""
    task = Task("t", (), (), (), (), answer="strop.rewards.answers:extract_answer")
    grading = RunGrading(task, NoGrader(), None, None)
    services = FakeServices(FakeTexts(said=answers), grading)
    scored_B = torch.tensor([i not in unscored for i in range(len(answers))])
    outcome_B = torch.tensor(outcome or [0.0] * len(answers)).double()
    batch = flat_batch([1] * len(answers), groups, scored_B=scored_B, outcome_B=outcome_B)
    return run(RewardMajorityAnswer(**fields), batch, services=services)


def test_the_majority_is_right():
    found = voted(["7", "8", "", "7", "8", "8"], [0, 0, 0, 0, 1, 1], outcome=[1, 0, 0, 1, 0, 0])
    assert found.value.tolist() == [1, 0, 0, 1, 1, 1]
    assert found.metrics == {"majority/share": 4 / 5, "majority/right": 0.5}
    three = voted(["7", "8", "8", "9"], [0, 1, 1, 2], outcome=[1, 0, 0, 1])
    assert three.metrics == {"majority/share": 1.0, "majority/right": 2 / 3}
    assert voted(["8", "7", "7", "8"]).value.tolist() == [1, 0, 0, 1]  # a tie: the first
    assert voted(["7", "8", "8", "7", "7"], unscored=(3, 4)).value.tolist() == [0, 1, 1, 0, 0]
    assert voted(["", ""]).value.tolist() == [0, 0]
    assert voted(["\\boxed{7}", "so\n7"]).value.tolist() == [1, 1]


def test_without_the_own_vote():
    # for the first 7 the others say 8, 8, 7; for an 8 they say 7, 8, 7 and 7 was first
    assert voted(["7", "8", "8", "7"], leave_one_out=True).value.tolist() == [0, 0, 0, 0]
    assert voted(["7", "7", "7", "8"], leave_one_out=True).value.tolist() == [1, 1, 1, 0]
    assert voted(["7"], leave_one_out=True).value.tolist() == [0]


def test_a_task_that_does_not_say_what_an_answer_is_is_refused():
    with pytest.raises(UserError, match="does not say what an answer is"):
        Task("maze", (), (), (), ()).final_answers(["1"])
