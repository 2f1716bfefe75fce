import math

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
    grading.own_reward = "recorded" if outcome else ""
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
    # the own vote breaks no tie: for the first 7 the others say 8, 7, for the last one 7, 8
    assert voted(["7", "8", "7"], leave_one_out=True).value.tolist() == [0, 0, 1]


def test_a_task_that_does_not_say_what_an_answer_is_is_refused():
    with pytest.raises(UserError, match="does not say what an answer is"):
        Task("maze", (), (), (), ()).final_answers(["1"])


def test_shares_are_paid():
    """Counts 5, 2, 1: H = .9003; log p less its mean -H: .430, -.486, -1.179."""
    answers = ["7"] * 5 + ["8"] * 2 + ["9"]
    found = voted([*answers, "", "7"], [*[0] * 9, 1], unscored=(9,), form="share")
    logs = [math.log(n / 8) for n in (5, 2, 1)]
    mean = (5 * logs[0] + 2 * logs[1] + logs[2]) / 8
    assert -mean == pytest.approx(0.9003, abs=1e-4)
    expected = [logs[0]] * 5 + [logs[1]] * 2 + [logs[2], mean, 0.0]  # what cannot be read: no push
    assert found.value.tolist() == pytest.approx(expected)
    advantages = [x - mean for x in logs]
    assert advantages == pytest.approx([0.430, -0.486, -1.179], abs=1e-3)
    assert found.metrics["majority/share"] == 5 / 8
    assert voted(["7", "7"], form="share").value.tolist() == [0, 0]
    assert voted(["7", "8"], form="share").value.tolist() == [math.log(1 / 2)] * 2  # no advantage
    assert voted(["", ""], form="share").value.tolist() == [0, 0]


def test_shares_follow_the_entropy_of_answers():
    """On the clusters' logits, at their own shares: the numerical derivative of -H."""
    p = torch.tensor([5.0, 2.0, 1.0]).double() / 8
    theta = p.log().requires_grad_()
    found = voted(["7"] * 5 + ["8"] * 2 + ["9"], form="share").value
    advantage = found - found.mean()
    logp = theta.log_softmax(0)[torch.tensor([0] * 5 + [1] * 2 + [2])]
    (step,) = torch.autograd.grad((advantage * logp).mean(), theta)
    q = theta.softmax(0)
    (exact,) = torch.autograd.grad((q * q.log()).sum(), theta)
    assert step.tolist() == pytest.approx(exact.tolist())
    assert step.tolist() == pytest.approx([0.2689, -0.1215, -0.1474], abs=1e-4)


@pytest.mark.parametrize(
    ("p", "form", "cosines"),
    [
        ((0.625, 0.25, 0.125), "share", (0.994, 0.998, 0.9995)),
        ((0.625, 0.25, 0.125), "majority", (0.984, 0.984, 0.976)),
        ((0.45, 0.35, 0.2), "share", (0.9945, 0.9985, 0.9998)),
        ((0.45, 0.35, 0.2), "majority", (0.929, 0.959, 0.943)),
    ],
)
def test_bias_of_the_mean_step(p, form, cosines):
    """Over all counts of groups of 4, 8 and 16: how the mean step lies to the gradient of -H.

    Of three answers with chances p and free logits: a step is sum_c n_c / G (reward_c - its mean)
    (onehot_c - p). The share's mean step is the gradient's .31, .63 and .82 in length at first.
    """
    p = torch.tensor(p).double()
    entropy = -(p * p.log()).sum()
    exact = p * (p.log() + entropy)
    lengths = []
    for num, expected in zip((4, 8, 16), cosines, strict=True):
        mean = torch.zeros(3).double()
        for counts in ((a, b, num - a - b) for a in range(num + 1) for b in range(num + 1 - a)):
            ways = math.factorial(num) / math.prod(map(math.factorial, counts))
            answers = [text for text, n in zip("789", counts, strict=True) for _ in range(n)]
            reward = voted(answers, form=form).value
            pushed = torch.zeros(3).double()
            cluster = torch.tensor([int(text) - 7 for text in answers])
            advantage = (reward - reward.mean()) / num
            pushed.index_add_(0, cluster, advantage)
            pushed -= p * advantage.sum()
            mean += ways * math.prod(x**n for x, n in zip(p.tolist(), counts, strict=True)) * pushed
        lengths.append(float(mean.norm() / exact.norm()))
        cosine = float(mean @ exact / mean.norm() / exact.norm())
        assert cosine == pytest.approx(expected, abs=6e-4)
    if (form, float(p[0])) == ("share", 0.625):
        assert lengths == pytest.approx([0.31, 0.63, 0.82], abs=5e-3)


def test_a_share_without_the_own_vote_is_refused():
    with pytest.raises(UserError, match="set leave_one_out off"):
        RewardMajorityAnswer(form="share", leave_one_out=True)
    with pytest.raises(UserError, match="majority, share"):
        RewardMajorityAnswer(form="entropy")
