import torch
from builders import flat_batch, run
from fakes.services import FakeGrading, FakeServices, FakeTexts

from strop.method import part as parts
from strop.method.part import Use
from strop.method.services import Graded
from strop.parts.probe.add_pairwise_wins import AddPairwiseWins


class Judge(FakeGrading):
    """Scores a text by how many letters later it begins than the other; None where it is told."""

    def __init__(self, said, silent=()):
        super().__init__()
        self.said, self.silent, self.asked = list(said), set(silent), []

    def grade_beside(self, batch, opponents):
        own = [self.said[int(row)] for row in batch["rollout_uid_B"]]
        pairs = list(zip(own, opponents, strict=True))
        self.asked += pairs
        score_B = torch.tensor([float(ord(one) - ord(other)) for one, other in pairs])
        known_B = torch.tensor([pair not in self.silent for pair in pairs])
        return Graded(score_B[:, None], score_B, known_B, {}, known_B.long() * 0)


def compared(said, groups=None, silent=(), **columns):
    num = len(said)
    batch = flat_batch((1,) * num, groups, **{"reward_B": [0.0] * num, **columns})
    batch = batch.set(rollout_uid_B=torch.arange(num))
    judge = Judge(said, silent)
    services = FakeServices(FakeTexts(said=said), judge)
    return run(AddPairwiseWins(), batch, services=services), judge


def test_worked_example():
    """Four candidates A > B > C > D win 1, 2/3, 1/3 and 0 of their comparisons."""
    found, judge = compared("zyxw")
    assert found.value.tolist() == [1.0, 2 / 3, 1 / 3, 0.0]
    assert found.metrics == {"pairs/compared": 6.0, "pairs/frac_unjudged": 0.0}
    assert len(judge.asked) == 12
    assert ("z", "y") in judge.asked
    assert ("y", "z") in judge.asked


def test_wins_are_added_to_what_a_text_is_worth_alone():
    found, _ = compared("zyx", reward_B=[0.25, 1.0, -2.0])
    assert found.value.tolist() == [1.25, 1.5, -2.0]


def test_groups_ties_and_judgements_that_fail():
    # of the first group a and a are alike; in the second one candidate is alone
    found, judge = compared("aabz", (0, 0, 0, 1))
    assert found.value.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert all("z" not in pair for pair in judge.asked)
    # b against a is not judged: one pair is left to each of them
    found, _ = compared("abc", silent={("b", "a")})
    assert found.value.tolist() == [0.0, 0.0, 1.0]
    assert found.metrics["pairs/frac_unjudged"] == 1 / 3
    found, _ = compared("ab", silent={("a", "b")}, reward_B=[0.5, 0.25])
    assert found.value.tolist() == [0.5, 0.25]


def test_an_unscored_rollout_is_compared_with_nobody():
    found, judge = compared("abz", scored_B=[True, True, False], reward_B=[0.0, 0.0, 7.0])
    assert found.value.tolist() == [0.0, 1.0, 7.0]
    assert all("z" not in pair for pair in judge.asked)


def test_wins_are_added_to_a_renamed_reward():
    """The step's own reward beside it neither counts nor changes."""
    batch = flat_batch((1,) * 3, reward_B=[5.0, 5.0, 5.0], quality_B=[0.25, 1.0, -2.0])
    batch = batch.set(rollout_uid_B=torch.arange(3))
    use = Use(AddPairwiseWins(), (("reward_B", "quality_B"),))
    services = FakeServices(FakeTexts(said="zyx"), Judge("zyx"))
    after = parts.write(batch, use, parts.call(use, batch, services))
    assert after["quality_B"].tolist() == [1.25, 1.5, -2.0]
    assert after["reward_B"].tolist() == [5.0, 5.0, 5.0]


def test_its_tensors_are_where_the_batch_is():
    class OnCpu(Judge):
        def grade_beside(self, batch, opponents):
            with torch.device("cpu"):
                return super().grade_beside(batch, opponents)

    batch = flat_batch((1,) * 4, reward_B=[0.0] * 4).set(rollout_uid_B=torch.arange(4))
    services = FakeServices(FakeTexts(said="zyxw"), OnCpu("zyxw"))
    with torch.device("meta"):  # takes every tensor that is made without a device
        found = run(AddPairwiseWins(), batch, services=services)
    assert found.value.tolist() == [1.0, 2 / 3, 1 / 3, 0.0]
